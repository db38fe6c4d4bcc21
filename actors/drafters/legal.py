"""What a grammar leaves of a draft that was looked up: the rest would only be rejected.

For deterministic drafts alone: they are functions of the text, so what is left of one is as well. A sampled draft may
never be cut by what its tokens are; those are drawn from a masked law instead.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import numpy as np

from actors.grammar.compiled import masks_of
from actors.grammar.grammar import BadGrammar, Grammar

log = logging.getLogger(__name__)


def legal_nodes(
    grammar: Grammar | None, output: Sequence[int], tokens: Sequence[int], parents: Sequence[int] | None
) -> list[int]:
    """The nodes of a draft after `output` whose paths the grammar allows, ascending; of a chain (no parents) its
    beginning. Where the grammar is not to be had here all of them: the verifier masks them anyway."""
    everything = list(range(len(tokens)))
    if grammar is None:
        return everything
    try:
        masks = masks_of(grammar)
        paths: dict[int, list[int]] = {-1: list(output)}
        for node, token in enumerate(tokens):
            path = paths.get(node - 1 if parents is None else parents[node])
            if path is not None and masks.allows(np.array(path, np.int32), token):
                paths[node] = [*path, token]
    except BadGrammar as error:
        _say(grammar, str(error))
        return everything
    return [node for node in everything if node in paths]


@functools.lru_cache(maxsize=256)
def _say(grammar: Grammar, why: str) -> None:
    """Once for each grammar."""
    log.warning("looked-up drafts are not held to a grammar, more of them will be rejected: %s", why)
