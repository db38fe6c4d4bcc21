"""Linear kernels: exact integers, rows that do not see each other, the same bits on every instruction set."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.native import weights
from actors.engine.native.build import built_library
from actors.engine.native.library import INT4_GROUP, WEIGHT_KINDS, LinearArgs, library
from actors.engine.native.weights import NativeLinear, PackedWeight, pack_weight

KINDS = tuple(WEIGHT_KINDS)
SHAPES = [(1, 1), (16, 32), (17, 33), (33, 31), (96, 64), (130, 1030), (48, 2050)]  # (num_out, num_in)


def made(kind: str, num_out: int, num_in: int, bias: bool = True) -> tuple[NativeLinear, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(num_out * 7 + num_in)
    weight, offset = torch.randn(num_out, num_in, generator=g), torch.randn(num_out, generator=g)
    return NativeLinear(kind, weight, offset if bias else None), weight, offset


def rows_of(num_rows: int, num_in: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, num_in, generator=g) * torch.logspace(-3, 3, num_rows)[:, None]


TOLERANCE = {"fp32": 1e-6, "bf16": 4e-3, "int8": 5e-3, "w8a8": 1.5e-2, "int4": 8e-2}  # of the row's scale


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_product_is_the_plain_one_up_to_the_kinds_rounding(kind: str, shape: tuple[int, int]) -> None:
    linear, weight, bias = made(kind, *shape)
    x = rows_of(9, shape[1])
    exact = x.double() @ weight.double().t() + bias.double()
    scale = x.double().abs().amax(1, keepdim=True) * weight.abs().max() * shape[1] ** 0.5 + 1.0
    assert ((linear(x).double() - exact).abs() / scale).max() < TOLERANCE[kind]


MOST = {"int8": 16384, "w8a8": 127, "int4": 16192}  # the largest integer that a row's values are rounded to


def powers(num: int, period: int) -> torch.Tensor:
    """[num, 1] scales that differ between neighbours and are exact."""
    return torch.exp2(torch.arange(num) % period - 1.0)[:, None]


def representable_weights(kind: str, num_out: int, num_in: int) -> torch.Tensor:
    """Multiples of a power of two for each channel (int4: each group of 32), using all of the kind's range."""
    if kind != "int4":
        weight = torch.randint(-127, 128, (num_out, num_in)).float()
        weight[:, 0] = 127.0
        return weight * powers(num_out, 3)
    padded = -(-num_in // INT4_GROUP) * INT4_GROUP
    groups = torch.randint(-8, 8, (num_out, padded // INT4_GROUP, INT4_GROUP)).float()
    groups[:, :, 0], groups[:, :, 1] = -8.0, 7.0
    scaled = groups * powers(num_out * groups.shape[1], 3).view(num_out, -1, 1)
    return scaled.view(num_out, padded)[:, :num_in]


def representable_rows(kind: str, num_rows: int, num_in: int) -> torch.Tensor:
    """Small multiples of a power of two for each row; with one that is as large as the kind takes."""
    x = torch.randint(-100, 101, (num_rows, num_in)).float()
    x[:, 1] = MOST[kind]
    return x * powers(num_rows, 4)


@pytest.mark.parametrize("shape", [(16, 32), (17, 34), (33, 70), (96, 64), (130, 1030), (48, 2050)])
@pytest.mark.parametrize("kind", MOST)
def test_what_the_kind_can_represent_is_multiplied_exactly(kind: str, shape: tuple[int, int]) -> None:
    """Every sum on the way has less than 25 bits, with the bias: nothing may be rounded."""
    torch.manual_seed(shape[1])
    weight, x = representable_weights(kind, *shape), representable_rows(kind, 11, shape[1])
    bias = torch.randint(-25, 26, (shape[0],)).float() * 4
    exact = x.double() @ weight.double().t() + bias.double()
    assert torch.equal(NativeLinear(kind, weight, bias)(x).double(), exact)


@pytest.mark.parametrize("num_in", [32, 256])
@pytest.mark.parametrize("kind", MOST)
def test_the_largest_factors_of_either_sign_do_not_overflow(kind: str, num_in: int) -> None:
    most = {"int8": 127.0, "w8a8": 127.0, "int4": 7.0}[kind]
    signs = torch.tensor([1.0, -1.0]).repeat(16, num_in // 2) * torch.tensor([1.0, -1.0] * 8)[:, None]
    weight = torch.where(signs > 0, most, -8.0 if kind == "int4" else -most)
    x = torch.stack([signs[0], signs[1], torch.ones(num_in), -torch.ones(num_in)]) * MOST[kind]
    exact = x.double() @ weight.double().t()
    assert torch.equal(NativeLinear(kind, weight, None)(x), exact.float())


@pytest.mark.parametrize("num_in", [64, 1030, 2050])
def test_int8_is_an_exact_integer_product_of_the_rounded_factors(num_in: int) -> None:
    """15-bit activations: the only roundings are those of the two factors and of the float sum of blocks."""
    torch.manual_seed(num_in)
    weight = torch.randint(-127, 128, (32, num_in)).float()
    weight[:, 0] = 127.0  # every channel's scale is one
    x = torch.randint(-16384, 16385, (5, num_in)).float()
    x[:, 1] = 16384.0  # every row's scale is one
    got = NativeLinear("int8", weight, None)(x).double()
    exact = x.double() @ weight.double().t()
    assert torch.allclose(got, exact, rtol=3e-7, atol=16)  # blocks of up to 1e8 may cancel


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_with_any_neighbours(kind: str, shape: tuple[int, int]) -> None:
    linear, _, _ = made(kind, *shape)
    x = rows_of(40, shape[1])
    alone = torch.cat([linear(row[None]) for row in x])
    for size in (2, 3, 4, 5, 6, 7, 8, 13, 40):
        assert torch.equal(torch.cat([linear(part) for part in x.split(size)]), alone), f"{size} rows"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_row_is_not_finite_and_spoils_no_other(kind: str, bad: float) -> None:
    linear, _, _ = made(kind, 48, 70)
    x = rows_of(6, 70)
    good = linear(x)
    x[2, 69] = bad
    out = linear(x)
    assert not torch.isfinite(out[2]).any()
    keep = [0, 1, 3, 4, 5]
    assert torch.equal(out[keep], good[keep])


@pytest.mark.parametrize("kind", KINDS)
def test_zero_rows_and_zero_weights_give_the_bias(kind: str) -> None:
    linear, _, bias = made(kind, 20, 40)
    assert torch.equal(linear(torch.zeros(3, 40)), bias.expand(3, -1))
    zero = NativeLinear(kind, torch.zeros(20, 40), None)
    assert torch.equal(zero(rows_of(2, 40)), torch.zeros(2, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_rows(kind: str) -> None:
    linear, _, _ = made(kind, 20, 40)
    assert linear(torch.empty(0, 40)).shape == (0, 20)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'int3' is not one of fp32"):
        pack_weight("int3", torch.zeros(2, 2), None)


def run(lib: Any, packed: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    lib.matmul.argtypes = [ctypes.POINTER(LinearArgs), *[ctypes.c_void_p] * 1, ctypes.c_int64,
                           *[ctypes.c_void_p] * 3, ctypes.c_int32]  # fmt: skip
    out = torch.empty(len(x), packed.num_out)
    values, scale = torch.empty(len(x) * packed.bytes_per_row, dtype=torch.uint8), torch.empty(len(x))
    lib.matmul(packed.args(), x.data_ptr(), len(x), out.data_ptr(), values.data_ptr(), scale.data_ptr(), 2)
    return out


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
@pytest.mark.parametrize("march", ["haswell", "skylake-avx512"])
def test_every_instruction_set_computes_the_same_bits(march: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica on another processor must go on with the same text."""
    if march != "haswell" and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    other: Any = ctypes.CDLL(str(built_library((f"-march={march}",))))
    for kind in KINDS:
        for num_out, num_in in SHAPES:
            weight, x = torch.randn(num_out, num_in), rows_of(7, num_in)
            results = []
            for lib in (other, library()):
                with monkeypatch.context() as patch:  # some kinds are packed for the processor at hand
                    patch.setattr(weights, "library", lambda lib=lib: lib)
                    results.append(run(lib, pack_weight(kind, weight, None), x))
            assert torch.equal(*results), (kind, num_out, num_in)
