"""One tensor-parallel rank of a tiny model, as a process: `python -m tests.rank_process RANK SIZE STORE OUT KINDS`.

Rank 0 writes {weights: [logits per chunk size]} to OUT. Sequences are fed by hand, so the test needs no engine.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers as tf

from actors.engine.broadcast import BroadcastRunner, Channel, GroupChannel, follow
from actors.engine.make import make_runner
from actors.engine.native.channel import open_channel
from actors.engine.native.fused import FusedRunner
from actors.engine.step import KeepsFeatures, ModelRunner, StepInput
from actors.loading.sharded import shard
from tests.models import tiny_spec
from tests.tape import Tape

CHUNKS = (1, 7, 50)
GRAIN = 80  # of an MLP of 192 columns: the last rank gets those that are left over
FEATURE_LAYERS = (1, 2)
TREE = np.array([3, 1, 4, 1, 5, 9], np.int32)
PARENTS = np.array([-1, -1, 0, 1, 2, 3], np.int32)
PATH = [1, 3, 5]


def model() -> tf.PreTrainedModel:
    """Three KV heads, so two ranks hold 2 + 1; biases on both sides of every sum; a head larger than a sum's memory."""
    torch.manual_seed(5)
    config = tf.LlamaConfig(
        vocab_size=1009, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=512, attention_bias=True, mlp_bias=True,
    )
    made = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def ids() -> np.ndarray:
    """What is fed."""
    return np.random.default_rng(2).integers(0, 97, 50).astype(np.int32)


def branch(tape: Tape) -> list[torch.Tensor]:
    """Logits of a branch in its tree, of its last token once the others are where a chain has them, and as a chain."""
    tape.feed(0, ids(), 50)
    in_tree = tape.run([(0, 50, TREE)], [PARENTS])[PATH]
    moves = [(tape.slot(0, 50 + node), tape.slot(0, 50 + at)) for at, node in enumerate(PATH[:-1])]
    after = tape.run([(0, 52, TREE[PATH[-1:]])], moves=moves)
    return [in_tree, after, tape.run([(0, 50, TREE[PATH])])]


class Shallow:
    """A runner all of whose passes run one layer."""

    def __init__(self, runner: Any, layer: int, wants_hidden: bool) -> None:
        self.num_pages = runner.num_pages
        self._runner = runner
        self._changes: dict[str, Any] = {"layers": np.array([layer], np.int32), "wants_hidden": wants_hidden}

    def forward(self, step: StepInput) -> torch.Tensor:
        """Of that layer."""
        result: torch.Tensor = self._runner.forward(replace(step, **self._changes))
        return result


def shallow(runner: Any) -> list[torch.Tensor]:
    """Logits by the second layer alone, and the residual stream after the first."""
    return [Tape(Shallow(runner, *which), 1, seed=4).feed(0, ids(), 25) for which in ((1, False), (0, True))]


def features(runner: KeepsFeatures, tape: Tape) -> torch.Tensor:
    """What is kept of the sequence that the tape has fed last."""
    slots = np.array([tape.slot(0, position) for position in range(len(ids()))], np.int32)
    return torch.from_numpy(runner.features_at(slots)).float()


def told(runner: ModelRunner) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """`branch` and `shallow`, rank 0 telling the others its steps as a group does (`actors.engine.broadcast`)."""
    group = dist.new_group()
    assert group is not None
    channel: Channel = open_channel(dist.get_rank(), dist.get_world_size(), 60.0) or GroupChannel(group)
    if dist.get_rank() > 0:
        follow(runner, channel, 60.0)
        return [], []
    leader = BroadcastRunner(runner, channel, 60.0)
    leader.num_pages = runner.num_pages  # type: ignore[attr-defined]  # for the tape
    found = branch(Tape(leader, 1, seed=3)), shallow(leader)
    leader.stop()
    return found


def main() -> None:
    """Run this rank."""
    rank, size, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    found = {}
    for weights in sys.argv[5].split(","):
        cut = shard(model(), size, None, grain=GRAIN)
        layers = FEATURE_LAYERS if rank == 0 else ()  # one rank keeps them for all
        spec = tiny_spec(weights=weights, tensor_parallel_size=size, max_batch_tokens=64, feature_layers=layers)
        runner = make_runner(cut, spec)
        assert isinstance(runner, FusedRunner)
        dist.barrier()
        tapes = [Tape(runner, 1, seed=chunk) for chunk in CHUNKS]
        found[weights] = [tape.feed(0, ids(), chunk) for tape, chunk in zip(tapes, CHUNKS, strict=True)]
        if rank == 0:
            found[f"{weights}-features"] = [features(runner, tapes[-1])]
        found[f"{weights}-tree"], found[f"{weights}-shallow"] = told(runner)
    if rank == 0:
        torch.save(found, out)
    dist.barrier()


if __name__ == "__main__":
    main()
