"""Structured output in every mode: the text is what the target alone writes under its grammar, in id or in law."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.vocabulary import know
from actors.sampling.params import SamplingParams
from cluster.coordinator.request import FinishReason, GenerationRequest
from tests.faulty import Schedule
from tests.laws import Evidence, _law
from tests.soft_model import ShortMemory, SoftLaws, two_tokens
from tests.unit.test_exactness_modes import (
    APART,
    CONTROLLED,
    FEW,
    HOPELESS,
    LAW_WAYS,
    MODES,
    NO_FAULTS,
    OVERLAPS,
    P_MIN,
    PATIENT,
    SCALE,
    VOCAB,
    Alley,
    Ask,
    Street,
    Tally,
    prompt,
    serve_all,
    soft_workers,
)

pytestmark = pytest.mark.exactness

END = 1
PIECES = [b"", b"", *(bytes([code]) for code in b'abcdef0123456789{}":,[] x')]
PIECES += [b"ab", b"abc", b'":', b'","', b'{"', b"12", b"  "]
PIECES += [b""] * (VOCAB - len(PIECES))
MAX_TOKENS = 40


def over(pieces: list[bytes], kind: GrammarKind, source: str, end: int = END) -> Grammar:
    name = repr(pieces)
    know(name, lambda: pieces)
    return Grammar(kind, source, (end,), name, "")


def text_of(ids: list[int]) -> str:
    return b"".join(PIECES[token] for token in ids).decode()


SCHEMA = {
    "type": "object", "required": ["a", "b"], "additionalProperties": False, "properties": {
        "a": {"type": "string", "maxLength": 6}, "c": {"type": "integer"},
        "b": {"type": "array", "maxItems": 3, "items": {"enum": [0, 12, "ab"]}},
    },
}
CODE = r"(abc|[0-9]{2,4}|\[[a-f]{1,5}\],)*x"
GRAMMARS = {
    "schema": over(PIECES, GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": over(PIECES, GrammarKind.REGEX, CODE),
    "choice": over(PIECES, GrammarKind.CHOICE, json.dumps(["abcab", "abcdef", "12", "1212"])),
    "ebnf": over(PIECES, GrammarKind.EBNF, 'root ::= "[" (root | [a-f]+ | "12") "]" | "{" root? "}"'),
}
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, min_tokens=9, logit_bias=((5, 2.0), (END, 1.0))),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=1.3, seed=77, top_p=0.9, min_p=0.02, min_tokens=7),
    SamplingParams(temperature=0.7, seed=2**40 + 3, top_k=5, frequency_penalty=0.4),
)


@pytest.fixture(scope="module")
def street() -> Iterator[Street]:
    torch.set_num_threads(1)
    made = Street([soft_workers() for _ in range(2)], VOCAB)
    yield made
    made.close()


def asked(name: str, number: int, grammar: Grammar | None, **changes: object) -> GenerationRequest:
    sampling = replace(SAMPLINGS[number % len(SAMPLINGS)], grammar=grammar, eos_ids=(END,))
    values: dict[str, object] = {"max_tokens": MAX_TOKENS, "stop_ids": frozenset({END}), **changes}
    return GenerationRequest(name, prompt(number), sampling, **values)  # type: ignore[arg-type]


def is_whole(kind: str, text: str) -> bool:
    match kind:
        case "schema":
            value = json.loads(text)
            return isinstance(value["a"], str) and all(item in (0, 12, "ab") for item in value["b"])
        case "regex":
            return re.fullmatch(CODE, text) is not None
        case "choice":
            return text in ("abcab", "abcdef", "12", "1212")
    return text[0] + text[-1] in ("[]", "{}")


SLOW = pytest.mark.thorough  # more of the same


@pytest.mark.parametrize("kind", ["schema", pytest.param("regex", marks=SLOW), "choice", "ebnf"])
def test_every_mode_says_under_a_grammar_what_the_target_says_alone(street: Street, kind: str) -> None:
    """All modes at once, every sampling, drafts of several lengths; texts that end are whole, and end with a stop."""
    grammar = GRAMMARS[kind]
    ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
    numbers = range(len(SAMPLINGS))
    alone = Tally()
    texts = serve_all(ladders, [Ask("plain", asked(f"alone-{n}", n, grammar)) for n in numbers], alone)
    assert alone.drafted == 0
    num_whole = 0
    for ids, finish in texts:
        assert finish is not None
        if finish.reason is FinishReason.STOP:
            assert ids[-1] == END and END not in ids[:-1]
            assert is_whole(kind, text_of(ids)), text_of(ids)
            num_whole += 1
    assert num_whole >= 2
    tally = Tally()
    asks = [
        Ask(mode, asked(
            f"{mode}-{n}", n, grammar, lookahead=None if mode in CONTROLLED else (1, 3, 8)[(place + n) % 3]
        )) for place, mode in enumerate(MODES) for n in numbers
    ]
    for ask, (ids, finish) in zip(asks, serve_all(ladders, asks, tally), strict=True):
        number = int(ask.request.request_id.rpartition("-")[2])
        assert finish is not None
        assert (ids, finish.reason) == (texts[number][0], texts[number][1].reason), ask.request.request_id  # type: ignore[union-attr]
        assert not finish.figures.degraded, (ask.request.request_id, finish.figures.degraded)
    street.check_empty()
    hopeless = {*HOPELESS, *CONTROLLED}
    assert [mode for mode in MODES if tally.modes[mode] == 0 and mode not in hopeless] == []


def test_masked_drafts_are_accepted_as_often_as_drafts_without_a_grammar(street: Street) -> None:
    ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
    shares = []
    for grammar in (None, GRAMMARS["regex"]):
        tally = Tally()
        asks = [
            Ask("two", replace(asked(f"{n}", n, grammar, lookahead=4), sampling=replace(
                asked("", n, grammar).sampling, logit_bias=((END, -50.0),), min_tokens=0)))
            for n in range(10)
        ]
        serve_all(ladders, asks, tally)
        street.check_empty()
        assert tally.drafted > 100
        shares.append(tally.modes["two"] / tally.drafted)
    assert shares[1] > 0.8 * shares[0]


# --- unseeded requests ----------------------------------------------------------------------------------------------

LAW_PIECES = [b"a", b"b", b"c", b"ab", b""]
LAW_END = 4
FOREVER = over(LAW_PIECES, GrammarKind.REGEX, "(a(b|c)|b{1,2}c|c{3})*!", LAW_END)  # nobody can say the last character
LAW_SEQUENCES, LAW_TOKENS = 10, 100


@pytest.fixture(scope="module")
def alley() -> Iterator[Alley]:
    torch.set_num_threads(1)
    made = Alley(soft_workers(FEW, SCALE, APART, ShortMemory))
    yield made
    made.close()


@pytest.mark.parametrize("way", [
    "chain-ahead-block", pytest.param("chain-ahead-tokenwise", marks=SLOW), "static-ahead",
    pytest.param("dynamic", marks=SLOW), pytest.param("three", marks=SLOW),
])
def test_the_law_of_an_unseeded_text_is_the_masked_law_of_the_target(alley: Alley, way: str) -> None:
    mode, block, changes = LAW_WAYS[way]
    params = SamplingParams(temperature=0.9, block_verification=block, grammar=FOREVER, eos_ids=(LAW_END,))
    ladder = replace(alley.ladders(Schedule(3, NO_FAULTS))[mode], settings=replace(PATIENT, **changes))
    asks = [
        Ask(mode, GenerationRequest(
            f"{way}-{i}", prompt(i, FEW), replace(params, entropy=7919 * i + 1), LAW_TOKENS, lookahead=1 + i % 3
        )) for i in range(LAW_SEQUENCES)
    ]
    tally, text = Tally(), Evidence()
    target, draft = SoftLaws(FEW, scale=SCALE), SoftLaws(FEW, APART, 1, SCALE)
    for ask, (ids, _) in zip(asks, serve_all({mode: ladder}, asks, tally), strict=True):
        whole = np.append(ask.request.prompt_ids, ids).astype(np.int32)
        start = len(ask.request.prompt_ids)
        for place in range(start, len(whole)):
            before = whole[:place]
            last = [two_tokens(*before[-2:].tolist())]
            own, other = (_law(laws.rows(last)[0], params, before, start) for laws in (target, draft))
            text.add(own, int(whole[place]), drafter=other)
    alley.check_empty()
    assert text.p_value > P_MIN, text.p_values()
    assert tally.modes[mode] > 150, "hardly a draft was accepted: inconclusive"
    if mode in OVERLAPS or "ahead" in way:
        assert tally.ahead["hit"] > 15, "hardly a round overlapped: inconclusive"
    told = alley.told.evidence(FEW)
    assert told.p_value > P_MIN, told.p_values()
