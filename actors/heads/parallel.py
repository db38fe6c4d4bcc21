"""Mask tokens: how a plain draft model learns to guess several tokens in one pass (PARD, 2504.18583).

After the context's last token, at position n, stand mask tokens at positions n + 1, n + 2, ...: the row of the last
token guesses token n + 1 as ever, the row of the d-th mask token guesses token n + 1 + d. A mask token attends to the
context and to the mask tokens before it. What its row leaves in the KV memory is worth nothing: the next pass, which
knows what stands there, begins where the context ended.

The embeddings of the mask tokens are rows `vocab_size` and on of the model's embedding, so a pass takes them by id like
any other token. There is one for each depth up to `num_masks`; deeper ones share the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from actors.heads.directory import BadHead, read_section

KIND = "parallel"


@dataclass(frozen=True, slots=True)
class MaskTokens:
    """Which ids mean "not known yet"."""

    vocab_size: int  # ids of real tokens lie below
    num_masks: int
    lookahead: int  # tokens that one pass was trained to guess; more are possible

    def ids(self, count: int) -> npt.NDArray[np.int32]:
        """Mask tokens of depths 1 to `count`, [count] int32."""
        return (self.vocab_size + np.minimum(np.arange(count), self.num_masks - 1)).astype(np.int32)


def read_mask_tokens(directory: Path | str) -> MaskTokens:
    """Of a stored model. Raises `BadHead`: it was not trained for this, or is damaged."""
    section = read_section(directory, KIND)
    try:
        tokens = MaskTokens(int(section["vocab_size"]), int(section["num_masks"]), int(section["lookahead"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadHead(f"{directory}: its config.json says nothing of mask tokens: train it again") from error
    if tokens.num_masks < 1 or tokens.lookahead < 2:
        raise BadHead(f"{directory} has no mask tokens to draft in one pass with: set drafter.kind to draft_model")
    return tokens
