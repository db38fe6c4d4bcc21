"""How MLPs are cut where two ranks cannot have as many KV heads each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from deepspeed.module_inject.tp_shard import AutoTPMeta, get_shard_size_list

from actors.loading.sharded import GRAIN, mlp_grain

MIB = 1 << 20


def config(num_kv_heads: int = 3, inner: int = 1536) -> Any:
    return SimpleNamespace(
        num_key_value_heads=num_kv_heads, num_attention_heads=3 * num_kv_heads, hidden_size=192 * num_kv_heads,
        intermediate_size=inner, head_dim=64,
    )


@pytest.mark.parametrize("weight_bytes", [4.0, 2.0, 1.0, 0.5])
def test_the_rank_with_fewer_heads_gets_as_much_more_of_an_mlp_as_it_fetches_while_it_waits(
    weight_bytes: float,
) -> None:
    model = config()
    grain = mlp_grain(model, 2, weight_bytes, MIB)
    meta = AutoTPMeta(model.num_key_value_heads, model.num_attention_heads, model.hidden_size, grain)
    less, more = get_shard_size_list(model.intermediate_size, 2, meta, "model.layers.0.mlp.gate_proj")
    assert less + more == model.intermediate_size and less % 32 == 0
    waited = 8 * model.head_dim * model.hidden_size * weight_bytes  # query and output of three heads, key, value
    surplus = (more - less) * 3 * model.hidden_size * weight_bytes
    assert surplus == pytest.approx(min(waited, MIB), abs=32 * 3 * model.hidden_size * weight_bytes)


def test_an_mlp_is_cut_evenly_where_nobody_waits_or_nothing_is_fetched_meanwhile() -> None:
    assert mlp_grain(config(4), 2, 4.0, MIB) == mlp_grain(config(), 3, 4.0, MIB) == GRAIN
    even = mlp_grain(config(), 2, 4.0, 0)
    assert get_shard_size_list(1536, 2, AutoTPMeta(3, 9, 576, even), "mlp.up_proj") == [768, 768]


def test_an_mlp_that_is_small_beside_the_attention_is_left_to_autotp() -> None:
    assert mlp_grain(config(inner=128), 2, 4.0, 64 * MIB) == GRAIN
