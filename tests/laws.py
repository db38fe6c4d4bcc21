"""Whether tokens have the laws that they are said to have: evidence that adds up over texts.

Counting tokens against their expectation spreads what is there over many cells. Drafting goes wrong in few ways, and
each moves the tokens in a direction that is known: towards what the target finds likely, or the drafter. So for every
such direction d the surplus of d(x) over its mean under the law is added up (a score test), which at a few thousand
tokens sees what no table of counts does. All of it holds along a text, for each law is given by the tokens before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from actors.messages import Draft, Enumeration, Ids, Verdict
from actors.sampling.laws import normalised
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from tests.soft_model import SoftLaws, two_tokens

Floats = npt.NDArray[np.float64]
_BINS = 16
_LEAST = 1e-6  # of a probability in a direction: the rarest tokens must not outweigh all others


class Evidence:
    """Tokens, each with its law."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_impossible = 0  # tokens that cannot come by their laws
        self._places: list[float] = []  # of tokens within their laws, uniform if these are right
        self._surplus: dict[str, float] = {}
        self._variance: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, law: Floats, token: int, **directions: Floats) -> None:
        """A token that is said to have the law [V]; `directions` [V]: other laws to look along."""
        if law[token] <= 0.0:
            self._num_impossible += 1
            return
        order = np.argsort(-law, kind="stable")
        before = law[order].cumsum() - law[order]
        place = int(np.flatnonzero(order == token)[0])
        self._places.append(float(before[place] + self._rng.random() * law[token]))
        for name, other in {"own": law, **directions}.items():
            along = np.log(np.maximum(other, _LEAST))
            mean = float(law @ along)
            self._surplus[name] = self._surplus.get(name, 0.0) + float(along[token]) - mean
            self._variance[name] = self._variance.get(name, 0.0) + float(law @ along**2) - mean**2

    def p_values(self) -> dict[str, float]:
        """Of each test alone."""
        counts = np.histogram(self._places, _BINS, (0.0, 1.0))[0]
        found = {"places": float(stats.chisquare(counts).pvalue)}
        if self._num_impossible:
            found["impossible"] = 0.0
        for name, surplus in self._surplus.items():
            deviation = math.sqrt(max(self._variance[name], 1e-12))
            found[name] = float(2.0 * stats.norm.sf(abs(surplus) / deviation))
        return found

    @property
    def p_value(self) -> float:
        """Of all of them together."""
        found = self.p_values()
        return min(1.0, len(found) * min(found.values()))


class Told:
    """Keeps what workers answer with laws, to be held against these."""

    def __init__(self, *workers: Any) -> None:
        """Of `workers`, drafters and verifiers, from now on."""
        self._answers: list[Draft] = []
        for worker in workers:
            for name in ("propose", "enumerate", "verify"):
                if hasattr(worker, name):
                    setattr(worker, name, self._watched(getattr(worker, name)))

    def evidence(self, vocab_size: int) -> Evidence:
        """Each token against the law that came with it: of chains and trees alike, for they were drawn in turn."""
        found = Evidence()
        answers, self._answers = self._answers, []
        for draft in answers:
            for i, token in enumerate(draft.tokens.tolist() if draft.laws is not None else ()):
                ids, probs = draft.laws.at(i)  # type: ignore[union-attr]
                law = np.zeros(vocab_size)
                law[ids] = normalised(probs)
                found.add(law, token)
        return found

    def _watched(self, call: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        def watched(*given: Any, **named: Any) -> Future[Any]:
            answer = call(*given, **named)
            answer.add_done_callback(self._keep)
            return answer

        return watched

    def _keep(self, done: Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        match done.result():
            case Draft() as draft:
                self._answers.append(draft)
            case Enumeration(branches=branches):
                self._answers += [branch.draft for branch in branches]
            case Verdict() as verdict:
                self._answers.append(verdict.as_draft())


def of_soft_texts(
    texts: Sequence[Sequence[int]], params: SamplingParams, target: SoftLaws, *drafters: SoftLaws
) -> Evidence:
    """Texts of a target that speaks by the last two tokens, along its own laws and those of its drafters."""
    pairs = list(itertools.product(range(target.vocab_size), range(target.vocab_size)))

    def laws(of: SoftLaws) -> dict[tuple[int, int], Floats]:
        return {pair: _law(of.rows([two_tokens(*pair)])[0], params, pair, 0) for pair in pairs}

    evidence, own, others = Evidence(), laws(target), [laws(of) for of in drafters]
    for text in texts:
        for first, second, token in zip(text, text[1:], text[2:], strict=False):
            pair = (first, second)
            evidence.add(own[pair], token, **{f"drafter {i}": of[pair] for i, of in enumerate(others)})
    return evidence


def of_real_texts(
    model: Any, prompts: Sequence[Ids], texts: Sequence[Sequence[int]], params: SamplingParams
) -> Evidence:
    """Texts that a transformers model goes on with after prompts, each as long as the others."""
    ids = np.array([[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)], np.int32)
    start = len(prompts[0])
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids).long()).logits
    evidence = Evidence()
    for row, whole in zip(logits, ids, strict=True):
        for place in range(start, len(whole)):
            evidence.add(_law(row[place - 1], params, whole[:place], start), int(whole[place]))
    return evidence


def _law(logits: torch.Tensor, params: SamplingParams, before: Sequence[int] | Ids, num_prompt_tokens: int) -> Floats:
    law: Floats = process(logits, params, before, num_prompt_tokens).double().exp().numpy()
    law /= law.sum()
    return law
