"""A line of the log says what it is about, to whom it belongs, and nothing else."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from actors import logs
from actors.watch import WatchSpec


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The loggers are the process's."""
    loggers = [logging.getLogger(name) for name in logs.PACKAGES]
    before = [(logger.handlers, logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.level = handlers, level


def lines(format: str, level: str = "INFO") -> io.StringIO:
    """Where the log goes from now on."""
    stream = io.StringIO()
    logs.configure(WatchSpec(log_format=format, log_level=level), component="draft", replica="r")
    for name in logs.PACKAGES:
        (handler,) = logging.getLogger(name).handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
    return stream


def test_a_json_line_has_the_request_the_process_and_what_came_with_it() -> None:
    stream = lines("json")
    logging.getLogger("actors.draft").warning("tier %d: %s", 0, "la\"te", extra={"request_id": "a-1", "detail": None})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "WARNING", "logger": "actors.draft", "message": 'tier 0: la"te', "component": "draft", "replica": "r",
        "request_id": "a-1",
    }


def test_every_line_of_a_task_names_its_request() -> None:
    stream = lines("json")

    async def work(name: str) -> None:
        logs.request_id.set(name)
        await asyncio.sleep(0)
        await asyncio.create_task(say())

    async def say() -> None:
        logging.getLogger("cluster.leases").info("a replica was lost")

    async def main() -> None:
        logs.request_id.set(None)
        await asyncio.gather(work("a"), work("b"))
        await say()

    asyncio.run(main())
    assert [json.loads(line).get("request_id") for line in stream.getvalue().splitlines()] == ["a", "b", None]


def test_an_error_stays_on_one_json_line_with_its_traceback() -> None:
    stream = lines("json")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("cluster.app").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "RuntimeError: boom" in json.loads(line)["exception"]


def test_text_lines_have_it_at_their_end() -> None:
    stream = lines("text")
    logging.getLogger("cluster.app").info("request ended: %s", "length", extra={"request_id": "a-1", "rounds": 3})
    assert stream.getvalue().endswith("cluster.app draft r: request ended: length [request_id=a-1 rounds=3]\n")


def test_configuring_twice_writes_once_and_the_level_holds() -> None:
    lines("json")
    stream = lines("text", level="WARNING")
    logging.getLogger("cluster.app").info("no")
    logging.getLogger("cluster.app").warning("yes")
    assert stream.getvalue().count("yes") == 1
    assert "no" not in stream.getvalue().replace("cluster", "")
