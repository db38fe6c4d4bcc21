"""Grammars of requests: made over the target's tokens, and compiled here first, so that no bad one reaches a tier."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from actors.grammar.compiled import compile_aside, is_ready, masks_of
from actors.grammar.grammar import BadGrammar, Grammar, GrammarKind
from cluster.ingress.checks import MAX_GRAMMAR_BYTES, InvalidRequest


@dataclass(frozen=True, slots=True)
class Grammars:
    """What all grammars of one target have in common."""

    eos_ids: tuple[int, ...] = ()
    vocabulary: str = ""  # fingerprint of the target's tokenizer
    model: str = ""  # the target's

    def make(self, field: str, kind: GrammarKind, source: str) -> Grammar:
        """The grammar that `field` of a request holds. Raises `InvalidRequest`."""
        if not self.eos_ids:
            raise InvalidRequest(f"{field} cannot be used: this model has no end-of-sequence id to end a text with")
        size = len(source.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"{field} has {size} bytes: the limit is {MAX_GRAMMAR_BYTES}")
        return Grammar(kind, source, self.eos_ids, self.vocabulary, self.model)


async def check_grammar(grammar: Grammar | None) -> None:
    """Compile a grammar unless that was done before. Raises `InvalidRequest` for one that cannot be used."""
    if grammar is None:
        return
    try:
        if is_ready(grammar):
            masks_of(grammar)
        else:
            await asyncio.wrap_future(compile_aside(grammar))
    except BadGrammar as error:
        raise InvalidRequest(f"{grammar.kind} cannot be used: {error}") from error
