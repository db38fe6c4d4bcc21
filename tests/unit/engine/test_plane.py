"""Features are what the model computes at their positions, wherever they are kept, and cost it no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.layers import find_layers
from actors.engine.make import make_runner
from actors.engine.native.fused import FusedRunner
from actors.engine.plane import FeaturePlane
from actors.engine.runner import LocalRunner
from actors.engine.step import KeepsFeatures
from tests.models import ARCHITECTURES, VOCAB, tiny_model, tiny_spec
from tests.tape import Tape

LAYERS = (1, 3)
KERNELS = ("native", "portable")


def make(architecture: str, layers: tuple[int, ...] = LAYERS, **spec: Any) -> Any:
    spec = {"kv_tokens": 512, "page_tokens": 16, **spec}
    return make_runner(tiny_model(architecture), tiny_spec(feature_layers=layers, **spec))


def ids_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def hidden_states(architecture: str, ids: np.ndarray, layers: tuple[int, ...] = LAYERS) -> torch.Tensor:
    """[len(ids), layers * hidden] of transformers' own modules."""
    model, seen = tiny_model(architecture), {}

    def note(index: int) -> Any:
        return lambda _, __, out: seen.update({index + 1: (out[0] if isinstance(out, tuple) else out)[0]})

    for index, layer in enumerate(find_layers(model, architecture)):
        layer.register_forward_hook(note(index))
    with torch.inference_mode():
        model(torch.from_numpy(ids).long()[None])
    return torch.cat([seen[layer] for layer in layers], dim=1)


def kept(runner: KeepsFeatures, tape: Tape, sequence: int, count: int) -> torch.Tensor:
    slots = np.array([tape.slot(sequence, position) for position in range(count)], np.int32)
    return torch.from_numpy(runner.features_at(slots)).float()


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a - b).abs() <= 2e-3 * b.abs() + 2e-3).all())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_are_the_hidden_states_of_transformers(architecture: str, kernels: str) -> None:
    ids, other = ids_of(90), ids_of(60, 1)
    wanted = hidden_states(architecture, ids)
    runner = make(architecture, kernels=kernels)
    assert isinstance(runner, KeepsFeatures) and runner.features_kept == wanted.shape[1]
    for chunk in (90, 17, 1):
        tape = Tape(runner, 2, chunk, 16)
        tape.feed(1, other, 16)
        tape.feed(0, ids, chunk)
        assert close(kept(runner, tape, 0, 90), wanted)
        assert close(kept(runner, tape, 1, 60), hidden_states(architecture, other))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_logits_keep_their_bits_beside_a_plane(architecture: str, kernels: str) -> None:
    ids = ids_of(80)
    plain, planed = make(architecture, (), kernels=kernels), make(architecture, kernels=kernels)
    assert plain.features_kept == 0
    for chunk in (80, 7, 1):
        tapes = Tape(plain, 1, 5, 16), Tape(planed, 1, 5, 16)
        assert torch.equal(tapes[0].feed(0, ids, chunk), tapes[1].feed(0, ids, chunk))


@pytest.mark.parametrize("kernels", KERNELS)
def test_features_are_a_function_of_the_own_text_alone_bit_for_bit(kernels: str) -> None:
    runner, ids = make("llama", kernels=kernels), ids_of(70)
    found = []
    for chunk in (1, 9, 70):
        tape = Tape(runner, 2, chunk, 16)
        tape.feed(1, ids_of(40, chunk), 40)
        tape.feed(0, ids, chunk)
        found.append(kept(runner, tape, 0, 70))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_accepted_path_of_a_tree_takes_its_features_along(kernels: str) -> None:
    runner, ids = make("llama", kernels=kernels), ids_of(40)
    tape = Tape(runner, 2, 3, 16)
    tape.feed(0, ids[:30], 30)
    tree = np.array([ids[30], 5, 6, ids[31], 7, ids[32]], np.int32)
    parents = np.array([-1, -1, 0, 0, 1, 3], np.int32)
    tape.run([(0, 30, tree)], [parents])
    in_place = kept(runner, tape, 0, 36)[[*range(30), 30, 33, 35]]
    moves = [(tape.slot(0, 33), tape.slot(0, 31)), (tape.slot(0, 35), tape.slot(0, 32))]
    tape.run([(0, 33, ids[33:34])], moves=moves)
    chain = Tape(runner, 2, 3, 16)
    chain.feed(1, ids[:34], 34)
    assert torch.equal(in_place, kept(runner, chain, 1, 33))
    assert torch.equal(kept(runner, tape, 0, 34), kept(runner, chain, 1, 34))


def test_moves_are_made_before_copies_as_in_the_kv() -> None:
    plane = FeaturePlane((2,), 1, 12, 4)
    plane.rows[:, 0] = torch.arange(12.0)
    plane.rearrange(np.array([[3, 1]], np.int32), np.array([[0, 2]], np.int32))
    assert plane.read(np.arange(12, dtype=np.int32))[:, 0].tolist() == [0, 3, 2, 3, 4, 5, 6, 7, 0, 3, 2, 3]


def test_halves_are_rounded_to_even_and_clipped() -> None:
    """A layer that adds nothing leaves its input: any value can be sent through the kernel."""
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    runner = make_runner(model, tiny_spec(feature_layers=(1,), kv_tokens=1024, page_tokens=16))
    assert isinstance(runner, FusedRunner)
    rng = np.random.default_rng(0)
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)  # all finite halves
    between = (every[:-1] + every[1:]) / 2  # exact ties
    near = np.nextafter(between, np.where(rng.random(len(between)) < 0.5, np.float32(0), np.float32(1e9)))
    large = np.array([65504, 65519, 65520, 7e4, 1e30, 1e-9, 2e-8, 3e-8], np.float32)
    values = np.concatenate([every, between, near.astype(np.float32), large])
    values = np.concatenate([values, -values]) + np.float32(0)  # the layer adds 0, which makes -0 a 0
    values = np.resize(values, -(-len(values) // 64) * 64).reshape(-1, 64)
    wanted = np.clip(values, -65504, 65504).astype(np.float16)
    for start in range(0, len(values), 256):
        part = torch.from_numpy(values[start : start + 256].copy())
        step = _step(len(part))
        runner.forward(step, part)
        assert runner.features_at(step.slots).tobytes() == wanted[start : start + 256].tobytes()
    not_a_number = torch.full((1, 64), float("nan"))
    runner.forward(_step(1), not_a_number)
    assert np.isnan(runner.features_at(np.zeros(1, np.int32))).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_given_embeddings_stand_for_the_tokens(architecture: str, kernels: str) -> None:
    runner, ids = make(architecture, (), kernels=kernels), ids_of(40)
    assert isinstance(runner, FusedRunner if kernels == "native" else LocalRunner)
    step = _step(40, ids)
    looked_up = runner.forward(step).clone()
    embeds = tiny_model(architecture).get_input_embeddings()(torch.from_numpy(ids).long()).detach()
    assert torch.equal(runner.forward(_step(40), embeds), looked_up)
    if kernels == "native":
        with pytest.raises(ValueError, match="inputs_embeds"):
            runner.forward(step, embeds[:7])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("layers", [(0,), (4,), (2, 2)])
def test_layers_that_the_model_lacks_are_refused_at_load(kernels: str, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers 1 to 3"):
        make("llama", layers, kernels=kernels)


def _step(count: int, ids: np.ndarray | None = None) -> Any:
    """One sequence's rows, in the first slots."""
    steps: list[Any] = []

    class Spy:
        num_pages = 64

        def forward(self, step: Any) -> torch.Tensor:
            steps.append(step)
            return torch.empty(0)

    tape = Tape(Spy(), 1, 0, 16)
    tape.tables = [np.arange(64, dtype=np.int32)]
    tape.run([(0, 0, np.zeros(count, np.int32) if ids is None else ids)])
    return steps[0]
