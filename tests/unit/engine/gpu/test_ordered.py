"""Sums of a model in one order: the same values as PyTorch's, with bits that know nothing of other rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from actors.engine.gpu.ordered import FixedOrder, UnorderedSum
from tests.models import tiny_model

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install 'outrider[gpu]'")

from actors.engine.gpu import kernels  # noqa: E402  # only where Triton is

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_and_means_agree_with_pytorch(dtype: torch.dtype) -> None:
    x, weight, bias = noise(3, 5, 150, dtype=dtype), noise(70, 150, dtype=dtype), noise(70, dtype=dtype)
    calls: list[Any] = [
        lambda: torch.nn.functional.linear(x, weight, bias),
        lambda: torch.nn.functional.linear(x.transpose(0, 1), weight),
        lambda: torch.addmm(bias, x[0], weight.t().contiguous()),
        lambda: x[0] @ weight.t(),
        lambda: x @ weight.t(),
        lambda: x.float().pow(2).mean(-1, keepdim=True),
        lambda: x.float().sum(-1),
        lambda: x.sum((-1,), dtype=torch.float32),
    ]
    for call in calls:
        with torch.inference_mode():
            expected = call()
            with FixedOrder(kernels):
                ours = call()
        assert ours.shape == expected.shape and ours.dtype == expected.dtype
        tolerance = 1e-4 if ours.dtype == torch.float32 else 0.02
        assert torch.allclose(ours.float(), expected.float(), rtol=tolerance, atol=tolerance * 10)


@pytest.mark.exactness
def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    x, weight = noise(70, 300), noise(50, 300)
    with torch.inference_mode(), FixedOrder(kernels):
        product, mean = torch.nn.functional.linear(x, weight), x.mean(-1)
        for start, end in ((0, 1), (1, 4), (4, 70), (63, 66)):
            assert torch.equal(torch.nn.functional.linear(x[start:end], weight), product[start:end])
            assert torch.equal(x[start:end].mean(-1), mean[start:end])


def _values_alone(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """Attention is not the mode's business, the runner brings its own: here each row keeps its own value."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_a_whole_model_agrees_with_itself_out_of_order(architecture: str) -> None:
    model = tiny_model(architecture).to(DEVICE)
    ids = torch.arange(6, device=DEVICE)[None]
    AttentionInterface.register("values_alone", _values_alone)
    model.set_attn_implementation("values_alone")
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits
        with FixedOrder(kernels):
            ours = model(input_ids=ids, use_cache=False).logits
    assert (ours - expected).abs().max() < 2e-4


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.bmm(x, x), lambda x: x @ x, lambda x: x.mean(), lambda x: x.sum(0), lambda x: x.std(),
        lambda x: torch.einsum("abc,abd->acd", x, x), lambda x: torch.addmm(x[0], x[0], x[0], beta=0.5),
    ],
)  # fmt: skip
def test_sums_without_a_fixed_order_are_refused_not_let_through(call: Any) -> None:
    with torch.inference_mode(), FixedOrder(kernels), pytest.raises(UnorderedSum, match="use the fast reduction"):
        call(noise(4, 4, 4))


def test_no_rows_make_no_launch() -> None:
    with torch.inference_mode(), FixedOrder(kernels):
        assert torch.nn.functional.linear(noise(0, 8), noise(5, 8)).shape == (0, 5)
        assert noise(0, 8).mean(-1).shape == (0,)
