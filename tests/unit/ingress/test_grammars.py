"""Grammars are compiled at the ingress, and a bad one is the client's mistake in one line."""

from __future__ import annotations

import pytest

from actors.grammar.compiled import is_ready
from cluster.ingress.checks import InvalidRequest
from cluster.ingress.grammars import check_grammar
from tests.grammars import regex


@pytest.mark.asyncio
async def test_a_good_grammar_is_compiled_and_a_bad_one_refused_every_time() -> None:
    await check_grammar(None)
    good = regex("ab|ingress")
    await check_grammar(good)
    assert is_ready(good)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            await check_grammar(regex("(ingress"))
        assert str(caught.value).startswith("regex cannot be used: the grammar cannot be compiled: ")
        assert "\n" not in str(caught.value)
