"""Several ranks on one machine: the fused pass with sums through shared memory."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from actors.engine.make import make_runner
from actors.engine.native.anatomy import dissect
from actors.engine.native.exchange import Exchange, num_bytes
from actors.engine.native.fused import FusedRunner, RankLate
from tests import rank_process
from tests.models import tiny_spec
from tests.tape import Tape

KINDS = ("fp32", "int8")


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_sharded_logits_agree_with_one_rank_and_keep_their_bits(num_ranks: int, tmp_path: Path) -> None:
    out = tmp_path / "logits"
    command = [sys.executable, "-m", "tests.rank_process"]
    ranks = [
        subprocess.Popen([*command, str(r), str(num_ranks), str(tmp_path / "store"), str(out), ",".join(KINDS)])
        for r in range(num_ranks)
    ]
    try:
        assert [rank.wait(300) for rank in ranks] == [0] * num_ranks
    finally:
        for rank in ranks:
            rank.kill()
    found = torch.load(out)
    for kind in KINDS:
        spec = tiny_spec(weights=kind, feature_layers=rank_process.FEATURE_LAYERS)
        whole = Tape(make_runner(rank_process.model(), spec), 1, seed=1)
        alone = whole.feed(0, rank_process.ids(), 50)
        first = found[kind][0]
        assert all(torch.equal(first, other) for other in found[kind][1:])
        in_tree, after, chain = found[f"{kind}-tree"]
        assert torch.equal(in_tree, chain) and torch.equal(after[0], chain[-1])
        tolerance = 1e-4 if kind == "fp32" else 5e-2
        assert (first - alone).abs().max() < tolerance
        kept = rank_process.features(whole.runner, whole)
        assert kept.abs().max() > 0.1 and (found[f"{kind}-features"][0] - kept).abs().max() < max(tolerance, 4e-3)
        for own, of_all in zip(rank_process.shallow(whole.runner), found[f"{kind}-shallow"], strict=True):
            assert own.shape == of_all.shape and (own - of_all).abs().max() < tolerance


def test_a_rank_that_never_comes_is_an_error_in_time() -> None:
    spec = tiny_spec(max_batch_tokens=8)
    exchange = Exchange(0, 2, 8 * 96, timeout_s=0.2, memory=mmap.mmap(-1, num_bytes(2, 8 * 96)))
    runner = FusedRunner(dissect(rank_process.model(), 512), spec, exchange)
    with pytest.raises(RankLate):
        Tape(runner, 1, seed=0).feed(0, rank_process.ids()[:4], 4)
