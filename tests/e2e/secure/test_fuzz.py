"""Thousands of malformed calls at the running service: it answers each with the right status, and goes on serving.

`pytest -m fuzz` makes all of them; a short part, from another seed, runs without asking.
"""

from __future__ import annotations

import collections
import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cluster.cli import client
from cluster.cli.client import Options
from cluster.edge.haproxy import MESSAGE_TIMEOUT_S
from tests.e2e.secure import raw
from tests.e2e.secure.calls import SLOWEST_S, Call, calls
from tests.e2e.secure.service import WAIT_S, Secured
from tests.e2e.service import workers

pytestmark = [pytest.mark.e2e]

NUM_THREADS = 4
BATCH = 200  # after so many the service must still give the right text
# Nothing of how the server is made: no traceback, no path, no class, no address in memory.
INTERNALS = re.compile(
    r"Traceback|File \"|site-packages|/tmp/|/usr/|\.py\b|<class|object at 0x|(?<!/)\bray\.|google\.protobuf"
)


def make(channel: grpc.Channel, call: Call, token: str) -> tuple[grpc.StatusCode, str, float]:
    """Status, details and seconds of one call."""
    began_s = time.monotonic()
    if len(call.payloads) == 1:
        run = channel.unary_stream(call.method)
        answer = run(call.payloads[0], timeout=call.timeout_s, metadata=call.metadata)
    else:
        shown = (*call.metadata, ("authorization", f"Bearer {token}"))  # the channel does so for honest calls only
        answer = channel.stream_stream(call.method)(iter(call.payloads), timeout=call.timeout_s, metadata=shown)
    try:
        for _ in answer:
            pass
    except grpc.RpcError as error:
        return error.code(), error.details() or "", time.monotonic() - began_s  # type: ignore[attr-defined]
    return grpc.StatusCode.OK, "", time.monotonic() - began_s


def storm(secured: Secured, seed: int, count: int) -> collections.Counter[tuple[str, str]]:
    """Make the calls; how often each kind got each status. Fails on a wrong status, an internal, or a wrong text."""
    want = good_ids(secured)
    pids, token = workers(), secured.access.token or ""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong: list[str] = []
    every = list(calls(seed, count, secured.vocab_size, secured.config.server.max_message_bytes))
    with (
        secured.access.channel() as known, secured.anonymous.channel() as unknown,
        ThreadPoolExecutor(NUM_THREADS) as pool,
    ):
        for first in range(0, count, BATCH):
            batch = every[first : first + BATCH]
            answers = pool.map(lambda each: make(known if each.with_token else unknown, each, token), batch)
            for number, (call, (code, details, seconds)) in enumerate(zip(batch, answers, strict=True), first):
                found[call.kind, code.name] += 1
                which = f"call {number} of seed {seed} ({call.kind}, {call.method[:60]})"
                if code not in call.allowed:
                    wrong.append(f"{which}: {code.name} {details[:200]}")
                if INTERNALS.search(details) or "\n" in details:
                    wrong.append(f"{which} tells of internals: {details[:300]}")
                if seconds > SLOWEST_S:
                    wrong.append(f"{which} took {seconds:.1f} s")
            assert good_ids(secured) == want, f"after call {first + len(batch)} of seed {seed}"
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} in all; {found}"
    assert workers() == pids, "a process died"
    return found


def good_ids(secured: Secured) -> tuple[int, ...]:
    """What an honest greedy request gets."""
    with client.connect(secured.access) as stub:
        return client.stream(stub, client.request("the quick", Options(max_tokens=6), chat=False), WAIT_S).token_ids


def noise(secured: Secured, seed: int, count: int, *, patient: bool) -> int:
    """Raw bytes; how many were answered or hung up on. Fails where an answer was due and none came.

    `patient`: also what is answered after a timeout only.
    """
    context = ssl.create_default_context(cafile=str(secured.authority.cert))
    context.load_cert_chain(secured.mine.cert, secured.mine.key)
    context.set_alpn_protocols(["h2"])
    address = ("127.0.0.1", secured.config.server.grpc_port)
    waits = {raw.NOW: SLOWEST_S, raw.LATER: MESSAGE_TIMEOUT_S + SLOWEST_S, raw.NEVER: 0.05}

    def attempt(data: bytes, due: str) -> bool:
        if due == raw.LATER and not patient:
            return False
        came = raw.answered(address, context, data, waits[due])
        assert came or due == raw.NEVER, f"hangs (seed {seed}): {data[:100]!r}"
        return came

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return sum(pool.map(lambda each: attempt(*each), raw.attempts(seed, count, secured.access.token or "")))


def test_malformed_calls_get_the_right_status_and_the_service_goes_on(secured: Secured) -> None:
    storm(secured, seed=1, count=400)


def test_bytes_that_are_no_call_hang_nobody(secured: Secured) -> None:
    want = good_ids(secured)
    noise(secured, seed=1, count=20, patient=False)
    assert good_ids(secured) == want


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
def test_ten_thousand_malformed_calls(secured: Secured) -> None:
    found = storm(secured, seed=20, count=9_600)
    num_answered = noise(secured, seed=20, count=400, patient=True)
    assert found.total() == 9_600
    print(f"\nraw connections answered or hung up on: {num_answered} of 400")
    for (kind, code), number in sorted(found.items()):
        print(f"{kind:>14} {code:<20} {number}")
