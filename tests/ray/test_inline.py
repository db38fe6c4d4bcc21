"""Tiers that share an actor: one drafts inside a drafting actor, one inside rank 0 of the target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.messages import Context, DraftShape, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.wire.codec import decode_draft, decode_verdict, encode_close, encode_propose, encode_step, encode_verify
from actors.wire.frames import Kind
from cluster.app import pool_settings
from cluster.channel import CallFailed, Channel
from cluster.config import Config, load_config
from cluster.groups import Group, make_group
from tests.conftest import TinyModel
from tests.ray.test_target_group import uneven_model

pytestmark = pytest.mark.ray

PROMPT = (np.arange(70, dtype=np.int32) * 37 + 11) % 250 + 4
NUM_TOKENS = 24
SETTINGS = [SamplingParams(), SamplingParams(temperature=0.9, seed=7)]


def settings(path: Path, *inline: bool, ranks: int = 1) -> Config:
    """Copies of one model below a target, each rounded in its own way, so that not every draft is right."""
    common = {"model": str(path), "num_threads": 1, "kv_tokens": 2048}
    kinds: list[dict[str, Any]] = [{"weights": "int4"}, {"weights": "int8"}][2 - len(inline) :]
    tiers = [
        {"name": f"t{i}", "inline": here, "window": 3, **kind, **common}
        for i, (here, kind) in enumerate(zip(inline, kinds, strict=True))
    ]
    target = {"name": "target", "tensor_parallel_size": ranks, **common}
    return load_config({"tiers": [*tiers, target]}, environ={})


def context(tokens: Ids, round: int, sampling: SamplingParams) -> Context:
    return Context("s", 0, tokens, len(PROMPT), len(tokens), sampling, round)


async def generated(step: Callable[[Context], Awaitable[Verdict]], sampling: SamplingParams) -> tuple[list[int], int]:
    """Text ids, and how many of them were accepted drafts."""
    tokens, accepted, round = PROMPT, 0, 0
    while len(tokens) < len(PROMPT) + NUM_TOKENS:
        round += 1
        verdict = await step(context(tokens, round, sampling))
        assert (verdict.error, verdict.draft_error) == (None, None)
        accepted += verdict.num_accepted
        tokens = np.concatenate([tokens, verdict.tokens])
    return tokens[len(PROMPT) :][:NUM_TOKENS].tolist(), accepted


async def verify(channel: Channel, told: Context, *drafts: bytes) -> Verdict:
    return decode_verdict(await channel.call(Kind.VERIFY, encode_verify(told, drafts, want_laws=False)))


def with_groups(config: Config, body: Callable[[list[Group], list[Channel]], Awaitable[None]]) -> None:
    async def main() -> None:
        groups = [
            make_group(pool_settings(config, shared[-1], num_cpus=0.5), lambda _: None) for shared in config.processes
        ]
        try:
            for group in groups:
                await group.start()
            await body(groups, [await Channel.connect(group.endpoint) for group in groups])
        finally:
            for group in groups:
                await group.shutdown()

    asyncio.run(main())


async def attended(groups: list[Group]) -> None:
    """As by a pool that has leased the sequence."""
    for group in groups:
        await group.leader.attend.remote("s", "lease")


async def frees_everything(group: Group, channel: Channel) -> None:
    await channel.call(Kind.CLOSE, encode_close("s", None))
    async with asyncio.timeout(30):
        while (stats := await group.leader.stats.remote()).num_sequences:
            await asyncio.sleep(0.01)
    assert stats.num_free_pages == stats.num_pages


def test_three_tiers_with_the_small_one_in_the_actor_of_the_medium_one(ray_env: None, tiny_model: TinyModel) -> None:
    async def body(groups: list[Group], channels: list[Channel]) -> None:
        drafting, target = channels

        async def step(told: Context) -> Verdict:
            draft = await drafting.call(Kind.PROPOSE, encode_propose(told, DraftShape(6)))
            assert (len(decode_draft(draft).tokens), decode_draft(draft).tier) == (6, 1)
            return await verify(target, told, draft)

        for sampling in SETTINGS:
            await attended(groups)
            plain, _ = await generated(lambda told: verify(target, told), sampling)
            await target.call(Kind.CLOSE, encode_close("s", None))
            await attended(groups)
            ids, accepted = await generated(step, sampling)
            assert ids == plain
            assert accepted > NUM_TOKENS / 3
            for group, channel in zip(groups, channels, strict=True):
                await frees_everything(group, channel)
        info = await groups[0].leader.info.remote()
        assert (info.tier, info.page_tokens) == (1, 64)
        with pytest.raises(CallFailed):  # nothing is inline in this target
            await target.call(Kind.STEP, encode_step(context(PROMPT, 99, SamplingParams()), DraftShape(2)))

    with_groups(settings(tiny_model(seed=0), True, False), body)


def test_a_drafter_in_rank_0_of_a_tensor_parallel_target_needs_one_call_a_round(
    ray_env: None, tmp_path: Path
) -> None:
    async def body(groups: list[Group], channels: list[Channel]) -> None:
        (target,) = channels

        async def step(told: Context) -> Verdict:
            verdict = decode_verdict(await target.call(Kind.STEP, encode_step(told, DraftShape(4))))
            assert verdict.draft_tiers == (0, 0, 0, 0)
            return verdict

        for sampling in SETTINGS:
            await attended(groups)
            plain, _ = await generated(lambda told: verify(target, told), sampling)
            await target.call(Kind.CLOSE, encode_close("s", None))
            await attended(groups)
            ids, accepted = await generated(step, sampling)
            assert ids == plain
            assert accepted > NUM_TOKENS / 3
            await frees_everything(groups[0], target)

    with_groups(settings(uneven_model(tmp_path), True, ranks=2), body)


@pytest.mark.parametrize("drafter", [{"kind": "early_exit", "exit_layer": 1}, {"kind": "layer_skip"}], ids=str)
def test_a_tensor_parallel_target_drafts_for_itself_with_some_of_its_layers(
    ray_env: None, tmp_path: Path, drafter: dict[str, Any]
) -> None:
    async def body(groups: list[Group], channels: list[Channel]) -> None:
        (target,) = channels
        num_drafted = 0

        async def step(told: Context) -> Verdict:
            nonlocal num_drafted
            verdict = decode_verdict(await target.call(Kind.STEP, encode_step(told, DraftShape(4))))
            num_drafted += verdict.num_draft
            return verdict

        for sampling in SETTINGS:
            await attended(groups)
            plain, _ = await generated(lambda told: verify(target, told), sampling)
            await target.call(Kind.CLOSE, encode_close("s", None))
            await attended(groups)
            ids, _ = await generated(step, sampling)
            assert ids == plain
            await frees_everything(groups[0], target)
        assert num_drafted >= NUM_TOKENS

    tiers = [
        {"name": "self", "inline": True, "drafter": drafter},
        {"name": "target", "model": str(uneven_model(tmp_path)), "tensor_parallel_size": 2, "num_threads": 1,
         "kv_tokens": 4096},
    ]
    with_groups(load_config({"tiers": tiers}, environ={}), body)
