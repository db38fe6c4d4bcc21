"""How much of one given draft a rule accepts on average over its own noise: what `verify` would give, without dice."""

from __future__ import annotations

from actors.messages import Ids, Laws
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.positions import Rows
from actors.sampling.processors import IdSequence
from actors.sampling.rows import LogitRows
from actors.sampling.verify import block_steps


def expected_accepted(
    draft_ids: Ids,  # [k]
    laws: Laws,
    logits: LogitRows,  # k + 1 rows; row i follows the first i draft tokens
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> float:
    """Mean of `Verified.num_accepted` of a sampled chain, over the uniforms that judge it.

    For the rejection modes. Raises like `verify`, and ValueError in other modes.
    """
    rows = Rows(draft_ids, laws, logits, params, history_ids, num_prompt_tokens, None)
    match params.mode:
        case VerifyMode.REJECTION:
            return _token_wise(rows)
        case VerifyMode.BLOCK:
            return _block(rows)
        case mode:
            raise ValueError(f"{mode} verification has no noise of its own: count with `verify`")


def _token_wise(rows: Rows) -> float:
    """Sum over i of the probability that the first i tokens all pass."""
    mean, reached = 0.0, 1.0
    for i in range(rows.num_draft):
        _, _, q_token = rows.q(i)
        reached *= min(rows.p_token(rows.p(i), i) / q_token, 1.0)
        if reached == 0.0:
            break
        mean += reached
    return mean


def _block(rows: Rows) -> float:
    """Sum over i of the probability that some step from i on passes."""
    thresholds = [step.threshold for step in block_steps(rows)][1:]
    mean, none_passes = 0.0, 1.0
    for threshold in reversed(thresholds):
        none_passes *= 1.0 - threshold
        mean += 1.0 - none_passes
    return mean
