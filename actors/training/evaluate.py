"""Acceptance on texts of the target that nobody trained on, without serving: drafts are judged along the text itself.

A text x that the target wrote decides what is accepted. Greedy: a drafted token is accepted if it is the text's.
Sampled at temperature 1: the text's token is what comes out either way, and it came by acceptance with probability
min(1, q(x) / p(x)), since sum over x of p min(1, q/p) = sum of min(p, q) (Leviathan et al. 2211.17192). So rounds are
walked as they would be served: from a text's answer on, drafts of k tokens, each accepted or not, then one token of the
target's. The drafter works with its own hidden states as far as it would then (`Trainee.roll`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from actors.training.data.batches import Batcher
from actors.training.data.shards import Text
from actors.training.kind import Batch, Trainee
from actors.training.target import Target

_BATCH_TOKENS = 1024  # logits of all steps over the draft vocabulary are in memory, a step at a time
_GREEDY, _SAMPLED = 0.0, 1.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of rounds of up to k drafted tokens."""

    by_position: tuple[float, ...]  # [k] share accepted among those whose predecessors were
    mat: float  # committed tokens a round
    num_rounds: int
    num_tokens: int  # committed in these rounds

    def to_json(self) -> dict[str, object]:
        """For cards and reports."""
        return {
            "by_position": [round(value, 4) for value in self.by_position], "mat": round(self.mat, 4),
            "num_rounds": self.num_rounds, "num_tokens": self.num_tokens,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Both ways of decoding; None: no held-out text was written so."""

    greedy: Acceptance | None
    sampled: Acceptance | None

    @property
    def best_mat(self) -> float:
        """One number to compare by: the mean of what there is."""
        found = [one.mat for one in (self.greedy, self.sampled) if one is not None]
        return sum(found) / len(found) if found else 0.0

    def to_json(self) -> dict[str, object]:
        """For cards and reports."""
        both = {"greedy": self.greedy, "sampled": self.sampled}
        return {name: one.to_json() for name, one in both.items() if one is not None}


def evaluate(
    trainee: Trainee, target: Target, batcher: Batcher, texts: Sequence[Text], lookahead: int, seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None, batch_tokens: int = _BATCH_TOKENS,
) -> Evaluation:
    """Walk held-out texts in rounds of `lookahead` drafted tokens. `batcher` must not be bare."""
    was_training = trainee.training
    trainee.eval()
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, 3))))
    walks = {_GREEDY: _Walks(lookahead), _SAMPLED: _Walks(lookahead)}
    chosen = [text for text in texts if text.temperature in walks]
    noise = {text.index: rng.random(len(text.ids)) for text in chosen}
    done = 0
    with torch.no_grad():
        for group in _alike(chosen, batch_tokens):
            batch = batcher.batch(group)
            chances = _chances(trainee, target, batch, group, lookahead)
            for row, text in enumerate(group):
                wanted = batch.weight[row].cpu().numpy() > 0
                walks[text.temperature].walk(chances[:, row], wanted, noise[text.index])
            done += len(group)
            on_progress(done, len(chosen))
    trainee.train(was_training)
    return Evaluation(walks[_GREEDY].result(), walks[_SAMPLED].result())


def _chances(
    trainee: Trainee, target: Target, batch: Batch, texts: Sequence[Text], lookahead: int
) -> Floats:
    """[k, B, T] probability that the text's token after position t is accepted as the (s + 1)-th of a draft."""
    ids = trainee.draft_vocab_ids
    following = torch.roll(batch.ids, -1, 1)
    places = following if ids is None else torch.searchsorted(ids, following).clamp_max(len(ids) - 1)
    known = torch.ones_like(following, dtype=torch.bool) if ids is None else ids[places] == following
    greedy = torch.tensor([text.temperature == _GREEDY for text in texts], device=batch.ids.device)[:, None]
    target_logs = _target_logs(target, batch, following) if not bool(greedy.all()) else batch.weight
    result = np.zeros((lookahead, *batch.ids.shape))
    for step, logits in enumerate(trainee.roll(batch, lookahead)):
        hits = (logits.argmax(-1) == places) & known
        draft_logs = logits.gather(-1, places[..., None])[..., 0].float() - logits.float().logsumexp(-1)
        ratio = (draft_logs - target_logs).clamp_max(0.0).exp() * known
        result[step] = torch.where(greedy, hits.float(), ratio).cpu().numpy()
    return result


def _target_logs(target: Target, batch: Batch, following: torch.Tensor) -> torch.Tensor:
    """[B, T] the target's log-probability of each next token, where the weight is not 0."""
    result = torch.zeros(batch.weight.shape, device=batch.ids.device)
    wanted = batch.weight > 0
    states, tokens = batch.hidden[wanted], following[wanted]
    if target.has_output_extras:
        logits = torch.stack([target.logits(s, t[None])[0] for s, t in zip(states, tokens, strict=True)])
    else:
        logits = (states.float() * target.head[tokens].float()).sum(-1)
    result[wanted] = logits - batch.normaliser[wanted]
    return result


class _Walks:
    """Rounds along texts."""

    def __init__(self, lookahead: int) -> None:
        self._tried = np.zeros(lookahead, np.int64)
        self._kept = np.zeros(lookahead, np.int64)
        self._rounds = 0
        self._tokens = 0

    def walk(
        self,
        chances: Floats,  # [k, T]
        wanted: npt.NDArray[np.bool_],  # [T] whether the token after a position is one to be drafted
        noise: Floats,  # [at least T]
    ) -> None:
        """From each answer's beginning to its end; a round that the end cuts short counts as far as it got."""
        position, length = 0, chances.shape[1]
        while position < length:
            if not wanted[position]:
                position += 1
                continue
            self._rounds += 1
            for step in range(len(chances)):
                if position >= length or not wanted[position]:
                    break
                self._tried[step] += 1
                if noise[position] >= chances[step, position]:
                    position += 1  # the target's own token stands there
                    self._tokens += 1
                    break
                self._kept[step] += 1
                position += 1
                self._tokens += 1
            else:
                if position < length and wanted[position]:  # the token after a draft that was accepted whole
                    position += 1
                    self._tokens += 1

    def result(self) -> Acceptance | None:
        """None: nothing was walked."""
        if not self._rounds:
            return None
        shares = self._kept / np.maximum(self._tried, 1)
        return Acceptance(tuple(shares.tolist()), self._tokens / self._rounds, self._rounds, self._tokens)


def _alike(texts: Sequence[Text], batch_tokens: int) -> list[list[Text]]:
    groups: list[list[Text]] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if not groups or (len(groups[-1]) + 1) * len(text.ids) > batch_tokens:
            groups.append([])
        groups[-1].append(text)
    return groups
