"""p and q of a verify pass, position by position, computed on demand."""

from __future__ import annotations

import numpy as np

from actors.messages import Ids, Laws
from actors.sampling import laws as law_tools
from actors.sampling.draw import coupled_argmax
from actors.sampling.laws import Floats, SparseLaw
from actors.sampling.params import SamplingParams
from actors.sampling.processors import IdSequence, LogWeights, greedy_argmax, weigh
from actors.sampling.rows import LogitRows
from actors.sampling.validate import BadDraft


class Rows:
    """The verifier's laws and the draft's. Row i follows the first i draft tokens (a tree says otherwise)."""

    def __init__(
        self, draft_ids: Ids, laws: Laws | None, logits: LogitRows, params: SamplingParams,
        history_ids: IdSequence, num_prompt_tokens: int, truncate_to: int | None,
    ) -> None:
        self.num_draft = len(draft_ids)
        if len(logits) != self.num_draft + 1:
            raise ValueError(f"{self.num_draft} draft tokens need {self.num_draft + 1} rows of logits, "
                             f"got {len(logits)}")
        if laws is not None and laws.num_tokens != self.num_draft:
            raise BadDraft(f"{self.num_draft} draft tokens came with {laws.num_tokens} laws; send one each")
        self.draft: list[int] = draft_ids.tolist()
        self.logits = logits
        self.params = params
        self.size = logits.vocab_size
        self.num_prompt_tokens = num_prompt_tokens
        self.start = len(history_ids)
        self._laws = laws
        self._text = np.concatenate([np.asarray(history_ids, np.int32), np.asarray(draft_ids, np.int32)])
        self._truncate_to = truncate_to
        self._own: list[SparseLaw] = []

    def history(self, i: int) -> Ids:
        """All ids before row i."""
        return self._text[: self.start + i]

    def law(self, i: int) -> LogWeights:
        """The law of row i."""
        return weigh(self.logits, i, self.params, self.history(i), self.num_prompt_tokens)

    def best(self, i: int) -> int:
        """Argmax of row i after bias, penalties and min_tokens."""
        return greedy_argmax(self.logits, i, self.params, self.history(i), self.num_prompt_tokens)

    def coupled(self, i: int) -> int:
        """The id that `argmax(log p + g)` gives after row i."""
        return coupled_argmax(self.law(i), self.params, len(self.history(i)))

    def p(self, i: int) -> Floats:
        """p of row i, [V]; called once per row, in order. Truncated when this tier's laws travel."""
        law = self.law(i)
        if self._truncate_to is None:
            return law.scatter(law.probabilities())
        ids, probs = law_tools.truncate(law, self._truncate_to)
        self._own.append((ids, probs))
        dense = np.zeros(self.size)
        dense[ids] = law_tools.normalised(probs)
        return dense

    def q(self, i: int) -> tuple[Ids, Floats, float]:
        """Support, probabilities and q(x_i) of draft token i; the support may exceed the vocabulary."""
        token = self.draft[i]
        if self._laws is None:
            return np.array([token], np.int32), np.ones(1), 1.0
        ids, probs = self._laws.at(i)
        if not (len(probs) and 0.0 < float(probs.sum()) < np.inf and float(probs.min()) >= 0.0):
            raise BadDraft(f"the law of draft token {i} is not a distribution; send float32 probabilities")
        q = law_tools.normalised(probs)
        q_token = float(q[ids == token].sum())
        if q_token <= 0.0:
            raise BadDraft(f"draft token {i} lies outside the law it came with; send the law it was drawn by")
        return ids, q, q_token

    def p_token(self, p: Floats, i: int) -> float:
        """p(x_i); 0 for ids outside the vocabulary, which are therefore never accepted."""
        token = self.draft[i]
        return float(p[token]) if 0 <= token < self.size else 0.0

    def emitted_laws(self, num_tokens: int) -> Laws | None:
        """Laws of the emitted tokens, in the rejection modes of a tier that was asked for them.

        An emitted token, accepted or recovered, has law p_i given the tokens before it and given that it
        was emitted. For a lossless rule this follows from losslessness: continue the verdict with fresh
        draws from p; the whole is p in law and the continuation is p by construction, so the emitted
        part must be too. Variable length is no obstacle for the next tier, token-wise or block: in
        both, P(tau >= i | x_1..x_i) = pi_i holds whether or not the draft goes on after x_i, because
        whether it goes on is decided before x_{i+1} is drawn.
        """
        if self._truncate_to is None or not self._own:
            return None
        return law_tools.build(self._own[:num_tokens])
