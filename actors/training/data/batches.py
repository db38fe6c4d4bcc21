"""Texts in the order they are trained on, side by side, with what the target says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from actors.training.data.features import StoredFeatures
from actors.training.data.shards import Text
from actors.training.kind import Batch
from actors.training.target import Target

_SORTED_TOGETHER = 16  # batches whose texts are sorted by length, so that little is padded
_HEAD_ROWS = 1024  # positions whose logits over the whole vocabulary are in memory at once


@dataclass(frozen=True, slots=True)
class Order:
    """Batches of texts: which, and in which order, is a function of (seed, epoch) alone."""

    texts: Sequence[Text]
    batch_tokens: int  # of a batch, padding included
    max_tokens: int  # of a text; the rest is cut off
    seed: int = 0

    def epoch(self, number: int) -> list[list[int]]:
        """Indices of the texts of each batch."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, 2, number))))
        lengths = np.array([min(len(text.ids), self.max_tokens) for text in self.texts])
        order = rng.permutation(len(lengths))
        pieces = max(1, int(lengths.sum()) // (self.batch_tokens * _SORTED_TOGETHER))
        batches: list[list[int]] = []
        for piece in np.array_split(order, pieces):
            batches += self._fill(piece[np.argsort(lengths[piece], kind="stable")], lengths)
        return [batches[i] for i in rng.permutation(len(batches))]

    def _fill(self, chosen: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
        """Batches of ascending texts, each as large as may be."""
        batches: list[list[int]] = []
        for text in chosen.tolist():
            if not batches or (len(batches[-1]) + 1) * lengths[text] > self.batch_tokens:
                batches.append([])
            batches[-1].append(text)
        return batches

    def from_position(self, position: int, rank: int = 0, num_ranks: int = 1) -> Iterator[list[Text]]:
        """Batches without end, from the `position`-th on, one of each `num_ranks` of them.

        The batches that are left over at the end of an epoch, fewer than ranks, are left out.
        """
        epoch = 0
        while True:
            batches = self.epoch(epoch)
            rounds = len(batches) // num_ranks
            if rounds == 0:
                raise ValueError(
                    f"{len(batches)} batches of text are too few for {num_ranks} ranks: sample more text, or make them "
                    "smaller"
                )
            for index in range(position, rounds):
                yield [self.texts[i] for i in batches[index * num_ranks + rank]]
            position = max(0, position - rounds)
            epoch += 1

    def num_batches(self, num_ranks: int = 1) -> int:
        """Of the first epoch, of one rank."""
        return len(self.epoch(0)) // num_ranks


class Batcher:
    """Makes batches: pads, and has the target run (or reads what it once said)."""

    def __init__(
        self, target: Target, feature_layers: Sequence[int], max_tokens: int, stored: StoredFeatures | None = None,
        bare: bool = False,
    ) -> None:
        """`bare`: without anything of the target, for kinds that train it."""
        self._target = target
        self._layers = tuple(feature_layers)
        self._max_tokens = max_tokens
        self._stored = stored
        self._bare = bare

    def batch(self, texts: Sequence[Text]) -> Batch:
        """One batch on the target's device."""
        device = self._target.device
        lengths = [min(len(text.ids), self._max_tokens) for text in texts]
        ids = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
        weight = torch.zeros(ids.shape)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            ids[row, :length] = torch.from_numpy(text.ids[:length].astype(np.int64))
            ids[row, length:] = ids[row, 0]
            weight[row, : length - 1] = torch.from_numpy(text.answer[1:length].astype(np.float32))
        ids, weight = ids.to(device), weight.to(device)
        counts = torch.tensor(lengths, device=device)
        if self._bare:
            nothing = torch.empty(*ids.shape, 0, device=device)
            return Batch(ids, counts, weight, nothing, nothing, torch.zeros_like(weight))
        if self._stored is not None:
            features, hidden, normaliser = (part.to(device) for part in self._stored.read(texts, max(lengths)))
            return Batch(ids, counts, weight, features, hidden, normaliser)
        run = self._target.run(ids, self._layers)
        return Batch(ids, counts, weight, run.features, run.hidden, normalisers(self._target, run.hidden, weight))


@torch.no_grad()
def normalisers(target: Target, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[B, T] float32: log of the sum of the exponentials of all logits, where the weight is not 0 (else 0)."""
    result = torch.zeros(weight.shape, device=hidden.device)
    wanted = weight > 0
    states = hidden[wanted]
    parts = [target.logits(states[i : i + _HEAD_ROWS]).logsumexp(-1) for i in range(0, len(states), _HEAD_ROWS)]
    if parts:
        result[wanted] = torch.cat(parts)
    return result
