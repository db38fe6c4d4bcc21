"""The Python client against a real service, and README's examples as they stand there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.client import AsyncClient, CallFailed, Client, Options, Origin, Raw
from tests.e2e.edges.conftest import MODEL
from tests.e2e.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

README = Path(__file__).parents[3] / "README.md"
SEEDED = Options(temperature=0.9, seed=5, max_tokens=48, num_logprobs=1)


@pytest.mark.exactness
def test_whole_streamed_and_asynchronous_answers_are_one_text(service: Service) -> None:
    async def streamed() -> tuple[str, tuple[int, ...]]:
        async with AsyncClient(service.grpc) as client, client.stream("one two", SEEDED) as stream:
            text = "".join([chunk.text async for chunk in stream])
            return text, (await stream.result()).token_ids

    with Client(service.grpc) as client:
        whole = client.generate("one two", SEEDED)
        with client.stream("one two", SEEDED) as stream:
            assert "".join(chunk.text for chunk in stream) == whole.text
        assert stream.result().tokens == whole.tokens
        assert client.model_info().model == MODEL
        assert client.generate(Raw("one"), Options(max_tokens=2)).finish.usage.completion_tokens == 2
        with pytest.raises(CallFailed, match="temperature is 9"):
            client.generate("one", Options(temperature=9))
    assert asyncio.run(streamed()) == (whole.text, whole.token_ids)
    assert {token.origin for token in whole.tokens} >= {Origin.ACCEPTED}
    assert all(token.logprob is not None and len(token.top_logprobs) == 1 for token in whole.tokens)
    assert whole.finish.acceptance


def test_a_reader_that_leaves_frees_everything(service: Service) -> None:
    endless = Options(temperature=1.0, max_tokens=900, ignore_eos=True)
    with Client(service.grpc) as client, client.stream("one two", endless) as stream:
        next(stream)
    service.wait_idle()


def examples() -> list[str]:
    """Python blocks of README's "Call it"."""
    section = README.read_text(encoding="utf-8").split("\n## Call it\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_readmes_python_examples_run(service: Service) -> None:
    assert len(examples()) >= 3
    program = "\n".join(examples())
    for there, here in (("127.0.0.1:9000", service.grpc), ("http://127.0.0.1:8000", service.http),
                        ("smollm2-135m-instruct", MODEL)):
        assert there in program
        program = program.replace(there, here)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "accepted" in done.stdout
