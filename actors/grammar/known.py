"""The grammars that this process was told, by their digests."""

from __future__ import annotations

import threading

from actors.grammar.grammar import Grammar

MAX_KNOWN = 512  # the least recently used one is forgotten

_lock = threading.Lock()
_known: dict[bytes, Grammar] = {}  # least recently used first


class UnknownGrammar(LookupError):
    """A call names a grammar that was not told here, or was forgotten: call again with all of the sequence."""

    def __init__(self, sequence_id: str = "") -> None:
        super().__init__("a call names a grammar that was not told here")
        self.sequence_id = sequence_id


def learn_grammar(grammar: Grammar) -> Grammar:
    """Remember a grammar; returns the one and only of its kind."""
    with _lock:
        found = _known.pop(grammar.digest, grammar)
        _known[grammar.digest] = found
        while len(_known) > MAX_KNOWN:
            del _known[next(iter(_known))]
    return found


def known_grammar(digest: bytes) -> Grammar:
    """The grammar of a digest. Raises `UnknownGrammar`."""
    with _lock:
        found = _known.pop(digest, None)
        if found is None:
            raise UnknownGrammar
        _known[digest] = found
    return found
