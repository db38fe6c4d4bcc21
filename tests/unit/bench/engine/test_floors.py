"""Floors of a forward pass, counted by hand on a small model."""

from __future__ import annotations

import pytest
import transformers as hf

from cluster.bench.engine.floors import ARITHMETIC, WEIGHT_BYTES, floors, model_shape
from cluster.bench.engine.machine import Rates
from cluster.bench.engine.models import DTYPE_BYTES, WEIGHTS, Kind

RATES = Rates(read_bytes_per_s=1e9, operations_per_s={"fp32": 1e9, "bf16": 2e9, "int8": 4e9})
CONFIG = hf.LlamaConfig(
    vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)
LAYER = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48  # q, k and v, o, MLP
LINEAR = 2 * LAYER + 100 * 32  # and the head


def test_every_linear_weight_counts_once_head_included() -> None:
    assert model_shape(CONFIG).num_linear_weights == LINEAR


def test_bytes_are_weights_plus_keys_and_values_of_the_context() -> None:
    shape = model_shape(CONFIG)
    kv = 2 * 2 * 2 * 8 * 10  # keys and values, layers, heads, size, tokens
    assert shape.read_bytes("fp32", 4.0, 10) == 4 * LINEAR + 4 * kv
    assert shape.read_bytes("int4", 1.0, 10) == LINEAR / 2 + kv


def test_floors_grow_with_rows_only_in_operations_and_take_the_fastest_arithmetic() -> None:
    shape = model_shape(CONFIG)
    one, five = (floors(shape, RATES, "fp32", 4.0, 10, rows) for rows in (1, 5))
    assert five.bandwidth_s == one.bandwidth_s
    assert five.operations_s == pytest.approx(5 * one.operations_s)
    assert floors(shape, RATES, "int8", 4.0, 10, 5).operations_s == pytest.approx(five.operations_s / 4)


def test_every_kind_has_its_bytes_and_arithmetic() -> None:
    assert set(WEIGHTS) == set(WEIGHT_BYTES) == set(ARITHMETIC)


@pytest.mark.parametrize("text", ["fp32", "bf16", "int8", "int8:bfloat16", "w8a8", "int4:float16"])
def test_kinds_are_read_as_they_are_written(text: str) -> None:
    kind = Kind.parse(text)
    assert kind.label == text
    assert kind.kv_bytes == DTYPE_BYTES[kind.dtype]


@pytest.mark.parametrize("text", ["int3", "", "int8:int8", "fp32:"])
def test_unknown_kinds_are_refused_with_the_choices(text: str) -> None:
    if text == "fp32:":
        assert Kind.parse(text) == Kind("fp32", "float32")
        return
    with pytest.raises(ValueError, match="is not one of|are not one of"):
        Kind.parse(text)
