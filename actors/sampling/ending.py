"""When a drafter draws no further token, whatever it would be."""

from __future__ import annotations

from actors.sampling.lossy import falls_back
from actors.sampling.params import SamplingParams
from actors.sampling.processors import IdSequence, can_go_on
from actors.sampling.rows import LogitRows


def ends_draft(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int
) -> bool:
    """Whether the token after row `index` is left to the target: by the grammar, or by a lossy policy.

    Decided before the token is drawn. Raises `BadLogits`, `BadGrammar`.
    """
    return not can_go_on(logits, index, params, history_ids, num_prompt_tokens) or falls_back(
        logits, index, params, history_ids, num_prompt_tokens
    )
