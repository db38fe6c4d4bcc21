"""Tokens are kept as hashes, found in constant time, limited by name, and never told of."""

from __future__ import annotations

import logging
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config import ConfigError, load_config
from cluster.config_auth import AuthConfig, make_guard
from cluster.ingress import auth
from cluster.ingress.allowance import Allowance, Bucket, Exceeded
from cluster.ingress.auth import Guard, TokenFile, Unauthenticated, authorization_of
from cluster.ingress.tokens import BadTokens, new_token, read_tokens

TARGET = {"tiers": [{"name": "target", "model": "builtin:smollm2"}]}
FREE = Allowance()


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def guard_of(*lines: str, default: Allowance = FREE, clock: Clock | None = None) -> Guard:
    table = read_tokens("\n".join(lines), "tokens", default)
    return Guard(lambda: table, clock or Clock())


def enter(guard: Guard, token: str) -> str | None:
    with guard.admitted(f"Bearer {token}") as caller:
        return caller


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_line_which_holds_nothing_of_its_secret() -> None:
    token, line = new_token("alice")
    other, other_line = new_token("bob")
    guard = guard_of("# staff", line, "", other_line + "  # nightly")
    assert enter(guard, token) == "alice"
    assert enter(guard, other) == "bob"
    assert token.split(".")[2] not in line
    assert len({new_token("alice")[0] for _ in range(50)}) == 50


def test_a_name_may_have_two_tokens_while_one_replaces_the_other() -> None:
    (old, old_line), (new, new_line) = new_token("ci"), new_token("ci")
    guard = guard_of(old_line, new_line)
    assert enter(guard, old) == enter(guard, new) == "ci"
    with pytest.raises(Unauthenticated):
        enter(guard_of(new_line), old)


@pytest.mark.parametrize("wrong", [
    None, "", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer {} {}", b"Bearer {}",
    "Bearer outrider.alice.", "Bearer outrider.nobody.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "Bearer é",
    "B" * 10_000,
])  # fmt: skip
def test_everything_else_is_refused_in_a_sentence_that_repeats_none_of_it(wrong: str | bytes | None) -> None:
    token, line = new_token("alice")
    shown = wrong.replace("{}", token) if isinstance(wrong, str) else wrong
    guard = guard_of(line)
    with pytest.raises(Unauthenticated, match="send `authorization: Bearer TOKEN`") as refused, guard.admitted(shown):
        pass
    assert token not in str(refused.value)


def test_a_token_with_one_character_changed_is_nobodys() -> None:
    """The last one carries two spare bits of base64, which the hash covers as well."""
    token, line = new_token("alice")
    guard = guard_of(line)
    for at, was in enumerate(token):
        for to in set("abcXYZ019-_.") - {was}:
            with pytest.raises(Unauthenticated):
                enter(guard, token[:at] + to + token[at + 1 :])


def test_every_hash_of_a_name_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr("cluster.ingress.tokens.hmac.compare_digest", compare)
    (first, one), (_, two) = new_token("ci"), new_token("ci")
    guard = guard_of(one, two)
    enter(guard, first)
    assert len(compared) == 2
    with pytest.raises(Unauthenticated):
        enter(guard, new_token("stranger")[0])
    assert len(compared) == 3, "an unknown name costs a comparison too"


@pytest.mark.parametrize(("text", "part"), [
    ("", "holds no token"),
    ("Alice sha256$00$00", "line 1: does not begin with a name"),
    ("alice", "line 1: 'alice' is not followed by"),
    ("# x\nalice outrider.alice.SECRET", "line 2: 'alice' is not followed by"),
    ("{line} rate=3", "unknown limit 'rate'"),
    ("{line} burst=0", "burst is no number above 0"),
    ("{line} requests_per_s=nan", "requests_per_s is no number"),
    ("{line} max_concurrent=1.5", "max_concurrent is no number"),
    ("{line}\n{line} burst=3", "line 2: 'alice' has other limits"),
    ("\n".join(["{line}"] * 9), "line 9: 'alice' has more than 8 tokens"),
])  # fmt: skip
def test_mistakes_in_the_file_are_named_by_line_without_quoting_a_token(text: str, part: str) -> None:
    with pytest.raises(BadTokens) as bad:
        read_tokens(text.replace("{line}", new_token("alice")[1]), "tokens", FREE)
    assert part in str(bad.value)
    assert "SECRET" not in str(bad.value)


@given(st.text(max_size=200))
def test_any_file_is_read_or_refused_in_words(text: str) -> None:
    with pytest.raises(BadTokens):
        read_tokens(text, "tokens", FREE)


@pytest.mark.parametrize("name", ["", "Alice", "a b", "a.b", "x" * 65, "../x", "é"])
def test_a_name_that_could_not_be_read_back_is_refused(name: str) -> None:
    with pytest.raises(BadTokens, match="is no name"):
        new_token(name)


# --- limits ---------------------------------------------------------------------------------------


def test_the_rate_is_kept_per_name_and_comes_back_with_time() -> None:
    clock = Clock()
    (alice, one), (bob, two) = new_token("alice"), new_token("bob")
    guard = guard_of(one, two, default=Allowance(requests_per_s=2.0, burst=3), clock=clock)
    for _ in range(3):
        enter(guard, alice)
    with pytest.raises(Exceeded, match="'alice' may send 2 requests per second: retry in 0.5 s") as slow:
        enter(guard, alice)
    assert slow.value.retry_after_s == pytest.approx(0.5)
    assert enter(guard, bob) == "bob"
    clock.now_s += 0.5
    enter(guard, alice)
    with pytest.raises(Exceeded):
        enter(guard, alice)
    clock.now_s += 3600
    for _ in range(3):
        enter(guard, alice)
    with pytest.raises(Exceeded):
        enter(guard, alice)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.floats(0.1, 20), st.integers(1, 10))
def test_no_span_of_time_ever_gets_more_than_its_rate_and_one_burst(
    waits: list[float], rate: float, burst: int
) -> None:
    now_s, bucket = 0.0, Bucket(rate, burst, 0.0)
    taken: list[float] = []
    for wait in waits:
        now_s += wait
        if bucket.take(now_s) == 0.0:
            taken.append(now_s)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + rate * (taken[last] - taken[first]) + 1e-6


@given(st.floats(0.1, 20), st.integers(1, 5))
def test_a_caller_that_waits_as_told_is_let_in(rate: float, burst: int) -> None:
    now_s, bucket = 0.0, Bucket(rate, burst, 0.0)
    for _ in range(burst):
        assert bucket.take(now_s) == 0.0
    assert bucket.take(now_s + bucket.take(now_s) + 1e-9) == 0.0


def test_requests_at_once_are_counted_out_however_they_end() -> None:
    token, line = new_token("alice")
    guard = guard_of(f"{line} max_concurrent=2")
    with guard.admitted(f"Bearer {token}"):
        with suppress(KeyError), guard.admitted(f"bearer {token}"):
            with pytest.raises(Exceeded, match="has 2 requests running and may have 2"):
                enter(guard, token)
            raise KeyError
        enter(guard, token)
    enter(guard, token)


def test_a_refused_request_uses_nothing_up() -> None:
    token, line = new_token("alice")
    guard = guard_of(f"{line} max_concurrent=1 requests_per_s=1 burst=2")
    with guard.admitted(f"Bearer {token}"):
        for _ in range(5):
            with pytest.raises(Exceeded, match="running"):
                enter(guard, token)
    enter(guard, token)  # the second of the burst is still there


def test_without_tokens_everybody_may_come() -> None:
    with Guard(None).admitted(None) as caller:
        assert caller is None


def test_refusals_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(Exceeded("slow down", 0.5)))
    assert (str(copy), copy.retry_after_s) == ("slow down", 0.5)


# --- files, environment, logs ---------------------------------------------------------------------


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    (old, old_line), (new, new_line) = new_token("alice"), new_token("bob")
    path = tmp_path / "tokens"
    path.write_text(old_line + "\n")
    guard = Guard(TokenFile(path, FREE, clock), clock)
    assert enter(guard, old) == "alice"
    path.write_text(new_line + "\n# longer\n")
    clock.now_s += auth.RELOAD_S
    assert enter(guard, new) == "bob"
    with pytest.raises(Unauthenticated):
        enter(guard, old)
    for breaks in (lambda: path.write_text("nonsense"), lambda: os.remove(path)):
        breaks()
        clock.now_s += auth.RELOAD_S
        assert enter(guard, new) == "bob"
    assert sum("stay in use" in record.message for record in caplog.records) == 2


def test_strangers_cannot_fill_the_log_and_tokens_never_appear_in_it(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    token, line = new_token("alice")
    guard = guard_of(line, clock=clock)
    with caplog.at_level(logging.DEBUG):
        for _ in range(100):
            clock.now_s += 0.15
            with pytest.raises(Unauthenticated):
                enter(guard, token + "x")
    assert 1 <= len(caplog.records) <= 3
    assert token not in caplog.text


def test_tokens_come_from_a_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, line = new_token("alice")
    monkeypatch.setenv("SERVICE_TOKENS", line)
    assert enter(make_guard(AuthConfig(tokens_env="SERVICE_TOKENS")), token) == "alice"
    (tmp_path / "tokens").write_text(line)
    assert enter(make_guard(AuthConfig(tokens_file=str(tmp_path / "tokens"))), token) == "alice"
    for wrong in (AuthConfig(tokens_env="NOT_SET"), AuthConfig(tokens_file=str(tmp_path / "none"))):
        with pytest.raises(ConfigError, match=r"auth: .*outrider token new NAME") as error:
            make_guard(wrong)
        assert len(error.value.lines) == 1


def test_settings_name_exactly_one_place_of_tokens() -> None:
    for both in ({}, {"tokens_file": "x", "tokens_env": "Y"}):
        with pytest.raises(ConfigError, match="auth: set one of tokens_file and tokens_env"):
            load_config({**TARGET, "auth": both}, environ={})
    found = load_config({**TARGET, "auth": {"tokens_env": "T", "requests_per_s": 2}}, environ={}).auth
    assert found is not None and found.allowance() == Allowance(2.0, 10, None)


def test_of_two_authorizations_none_counts() -> None:
    assert authorization_of([("x", "1"), ("authorization", "Bearer a")]) == "Bearer a"
    assert authorization_of([("authorization", "Bearer a"), ("Authorization", "Bearer b")]) is None
    assert authorization_of([]) is None
