"""A client whose ingress replica dies in mid-stream. The last module of this package: it leaves another ingress."""

from __future__ import annotations

import os
import signal

import pytest

from cluster.client import Client, Options, Retry
from tests.e2e.service import REBUILD_S, Service, workers

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.exactness, pytest.mark.timeout(420)]


def test_the_stream_goes_on_without_a_lost_or_repeated_token(service: Service) -> None:
    options = Options(temperature=0.9, seed=5, max_tokens=400, ignore_eos=True)
    with Client(service.grpc, timeout_s=REBUILD_S, retry=Retry(resumptions=200, longest_s=1.0)) as client:
        wanted = client.generate("one two three", options)
        with client.stream("one two three", options) as stream:
            while len(stream.text) < 100:
                next(stream)
            (pid,) = workers("ServeReplica:outrider:ingress")
            os.kill(pid, signal.SIGKILL)
            got = stream.result()
    assert workers("ServeReplica:outrider:ingress") not in ([pid], []), "nothing died: inconclusive"
    assert (got.text, got.token_ids) == (wanted.text, wanted.token_ids)
