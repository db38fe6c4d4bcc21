"""The call that drafts and verifies at once, as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from actors.messages import Context, Draft, DraftShape
from actors.sampling.params import SamplingParams
from actors.wire.codec import decode_step, encode, encode_step


@pytest.mark.parametrize("shape", [DraftShape(5), DraftShape(4, num_nodes=9), DraftShape(2, widths=(3, 2))])
@pytest.mark.parametrize("drafts", [(), (Draft(np.array([4, 5], np.int32), tier=1),)])
def test_a_step_arrives_as_it_was_sent(shape: DraftShape, drafts: tuple[Draft, ...]) -> None:
    sent = Context("s", 2, np.array([1, 2], np.int32), 3, 4, SamplingParams(seed=1, temperature=1.0), 7)
    context, arrived, pieces = decode_step(encode_step(sent, shape, [encode(draft) for draft in drafts]))
    assert (context.sequence_id, context.start, context.round, context.sampling) == ("s", 2, 7, sent.sampling)
    assert context.tokens.tolist() == [1, 2]
    assert arrived == shape
    assert [(draft.tokens.tolist(), draft.tier) for draft in pieces] == [([4, 5], 1)] * len(drafts)
