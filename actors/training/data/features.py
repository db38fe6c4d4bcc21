"""What the target says of a corpus, stored: worth its room when there are several epochs and the target is slow.

Beside the corpus, in `features-LAYERS/`, a file per shard: `features` float16 [tokens, layers * hidden], `hidden`
float16 [tokens, hidden], `normaliser` float32 [tokens], of the shard's texts one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from actors.training.data.errors import BadData
from actors.training.data.shards import Corpus, Text, read_shard, shard_numbers
from actors.training.target import Target

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_BATCH_TOKENS = 4096
_NAMES = ("features", "hidden", "normaliser")
_LARGEST = 65504.0  # of float16: what is larger is clipped, as where the drafter is served


def features_path(corpus: Path, feature_layers: Sequence[int]) -> Path:
    """Where the features of a corpus lie."""
    return corpus / f"features-{'-'.join(map(str, feature_layers)) or 'none'}"


class StoredFeatures:
    """Reads them, text by text."""

    def __init__(self, corpus: Path, feature_layers: Sequence[int], max_tokens: int) -> None:
        self._directory = features_path(corpus, feature_layers)
        self._max_tokens = max_tokens
        self._files: dict[int, object] = {}
        self._places: dict[int, tuple[int, int, int]] = {}  # index of a text -> shard, first and last token
        for number in shard_numbers(corpus):
            place = 0
            for text in read_shard(corpus, number):
                self._places[text.index] = (number, place, place + len(text.ids))
                place += len(text.ids)

    def read(self, texts: Sequence[Text], num_positions: int) -> Parts:
        """Features, hidden states (float32) and normalisers [B, num_positions, ...], 0 in the padding."""
        rows = [self._read(text) for text in texts]
        shapes = [(len(texts), num_positions, rows[0][i].shape[-1]) for i in range(2)]
        features, hidden = (torch.zeros(shape) for shape in shapes)
        normaliser = torch.zeros(len(texts), num_positions)
        for row, parts in enumerate(rows):
            length = min(len(parts[0]), num_positions)
            for whole, part in zip((features, hidden, normaliser), parts, strict=True):
                whole[row, :length] = part[:length]
        return features, hidden, normaliser

    def _read(self, text: Text) -> Parts:
        number, first, last = self._places[text.index]
        path = self._directory / f"shard-{number:05d}.safetensors"
        last = min(last, first + self._max_tokens)
        with safe_open(path, "pt") as file:
            features, hidden, normaliser = (file.get_slice(name)[first:last] for name in _NAMES)
        return features, hidden, normaliser


def store(
    corpus: Corpus, target: Target, feature_layers: Sequence[int], on_progress: Callable[[int, int], None]
) -> None:
    """Run the target over every shard that has no features yet; `on_progress(shards done, all)`.

    Raises `BadData` when those that are there are another target's, or damaged.
    """
    from actors.training.data.batches import normalisers

    directory = features_path(corpus.directory, feature_layers)
    directory.mkdir(exist_ok=True)
    numbers = shard_numbers(corpus.directory)
    for done, number in enumerate(numbers):
        on_progress(done, len(numbers))
        path = directory / f"shard-{number:05d}.safetensors"
        texts = read_shard(corpus.directory, number)
        if path.exists():
            _check(path, target, sum(len(text.ids) for text in texts))
            continue
        parts: list[Parts] = [(torch.empty(0),) * 3] * len(texts)
        for chosen in _alike(texts):
            ids = torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(texts[i].ids).long() for i in chosen], batch_first=True
            ).to(target.device)
            run = target.run(ids, feature_layers)
            lengths = torch.tensor([len(texts[i].ids) for i in chosen], device=ids.device)
            real = (torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]).float()
            sums = normalisers(target, run.hidden, real)
            for row, i in enumerate(chosen):
                n = len(texts[i].ids)
                parts[i] = (_half(run.features[row, :n]), _half(run.hidden[row, :n]), sums[row, :n].cpu())
        tensors = {name: torch.cat([part[i] for part in parts]).contiguous() for i, name in enumerate(_NAMES)}
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        save_file(tensors, temporary, {"target": target.name})
        os.replace(temporary, path)
    on_progress(len(numbers), len(numbers))


def _check(path: Path, target: Target, num_tokens: int) -> None:
    """Raises `BadData` unless a file holds what `target` said of so many tokens."""
    try:
        with safe_open(path, "pt") as file:
            whose = (file.metadata() or {}).get("target")
            lengths = {file.get_slice(name).get_shape()[0] for name in _NAMES}
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path} is damaged: delete it, and it is made again") from error
    if whose != target.name or lengths != {num_tokens}:
        raise BadData(f"{path} holds features of {whose or 'another target'}, not of {target.name}: delete "
                      f"{path.parent}, and they are made again")


def _half(values: torch.Tensor) -> torch.Tensor:
    return values.float().clamp(-_LARGEST, _LARGEST).half().cpu()


def _alike(texts: Sequence[Text]) -> list[list[int]]:
    """Texts of about one length together."""
    groups: list[list[int]] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].ids)):
        if not groups or (len(groups[-1]) + 1) * len(texts[i].ids) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(i)
    return groups
