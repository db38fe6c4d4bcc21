"""Grammars are compiled once per process, and kept while they are used."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from actors.grammar.grammar import BadGrammar, Grammar
from actors.grammar.lark import to_lark
from actors.grammar.masks import Masks
from actors.grammar.vocabulary import tokens_of

MAX_COMPILED = 64
_MAX_LEXER_STATES = 50_000  # one or two kB each; the library's default is five times as many

_PREFIX = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"(\d+ \|.*)|[|^ ]*")

_lock = threading.Lock()
_compiled: dict[Grammar, Future[Masks]] = {}  # least recently used first; failures too
_worker: ThreadPoolExecutor | None = None


def masks_of(grammar: Grammar) -> Masks:
    """The masks of a grammar; compiles it here and now unless that was done before. Raises `BadGrammar`."""
    with _lock:
        known = _compiled.pop(grammar, None)
        found: Future[Masks] = Future() if known is None else known
        _compiled[grammar] = found  # popped and put back: most recently used last
        while len(_compiled) > MAX_COMPILED:
            del _compiled[next(iter(_compiled))]
    if known is None:
        try:
            found.set_result(_compile(grammar))
        except BadGrammar as error:
            found.set_exception(error)
        except BaseException as error:
            with _lock:
                _compiled.pop(grammar, None)  # nothing is wrong with the grammar: the next one who asks tries again
            found.set_exception(error)
    return found.result()


def is_ready(grammar: Grammar) -> bool:
    """Whether `masks_of` answers at once."""
    with _lock:
        found = _compiled.get(grammar)
    return found is not None and found.done()


def compile_aside(grammar: Grammar) -> Future[Masks]:
    """`masks_of` in a thread of its own, the only one: big grammars take turns, and no step waits for them."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = ThreadPoolExecutor(1, "grammars")
    return _worker.submit(masks_of, grammar)


def _compile(grammar: Grammar) -> Masks:
    from llguidance import LLMatcher, LLParserLimits

    tokens = tokens_of(grammar)
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    start = LLMatcher(tokens, to_lark(grammar.kind, grammar.source), log_level=0, limits=limits)
    if not start.is_error():
        start.compute_bitmask()  # a grammar that allows nothing at all is found out here
    if start.is_error():
        raise BadGrammar(f"the grammar cannot be compiled: {_line(start.get_error())}")
    return Masks(start, tokens.vocab_size, grammar.eos_ids)


def _line(text: str) -> str:
    """What the library says, without places and excerpts of its own form of the grammar."""
    lines = [line.strip() for line in _PREFIX.sub("", text).splitlines()]
    return " ".join(line for line in lines if not _EXCERPT.fullmatch(line))
