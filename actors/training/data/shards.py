"""The corpus on disk: `corpus.json` says what it is, `shard-00000.safetensors` and so on hold its texts.

Tensors of a shard: `ids` int32 [tokens] of all texts one after another, `answer` uint8 [tokens] (1: written by the
target as an answer; what training predicts), `cu_len` int64 [texts + 1], and per text `index` int64 (its conversation),
`held_out` uint8, `temperature` float32 (of its answers) and `digests` int64 (of its first question).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from actors.messages import Ids
from actors.training.data.errors import BadData

DESCRIPTION = "corpus.json"
FORMAT = 1
_NAME = re.compile(r"shard-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A conversation."""

    ids: Ids  # [num_tokens]
    answer: npt.NDArray[np.uint8]  # [num_tokens] 1: written by the target as (part of) an answer
    index: int
    held_out: bool
    temperature: float
    digest: int

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that are answers."""
        return int(self.answer.sum())


@dataclass(frozen=True, slots=True)
class Description:
    """What a corpus is, for whoever goes on with it, trains on it, or writes the card."""

    target: str  # as the user named it
    tokenizer_fingerprint: str
    vocab_size: int
    recipe: dict[str, Any]
    weights: str  # of the engine that wrote it
    prompts: tuple[str, ...] = ()  # names of the user's files

    def to_json(self) -> dict[str, Any]:
        """For `corpus.json`."""
        return {
            "format": FORMAT, "target": self.target, "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "vocab_size": self.vocab_size, "recipe": self.recipe, "weights": self.weights,
            "prompts": list(self.prompts),
        }  # fmt: skip


def write_description(directory: Path, description: Description) -> None:
    """Make the directory of a corpus, or check that it already is this one. Raises `BadData`."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / DESCRIPTION
    wanted = json.loads(json.dumps(description.to_json()))
    if file.exists():
        found = _read_json(file)
        different = sorted(name for name in wanted if wanted[name] != found.get(name))
        if different:
            raise BadData(
                f"{directory} holds a corpus with other settings ({', '.join(different)}): name another directory, or "
                "the settings in its corpus.json"
            )
        return
    _replace(file, json.dumps(wanted, indent=2).encode() + b"\n")


def read_description(directory: Path) -> Description:
    """What the corpus in `directory` is. Raises `BadData`."""
    values = _read_json(directory / DESCRIPTION)
    if values.get("format") != FORMAT:
        raise BadData(f"{directory} has the format {values.get('format')!r}, this version reads {FORMAT}: sample again")
    try:
        return Description(
            values["target"], values["tokenizer_fingerprint"], int(values["vocab_size"]), values["recipe"],
            values["weights"], tuple(values["prompts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{directory / DESCRIPTION} is damaged ({error!r}): sample into a new directory") from error


def shard_path(directory: Path, number: int) -> Path:
    """Where a shard lies."""
    return directory / f"shard-{number:05d}.safetensors"


def shard_numbers(directory: Path) -> list[int]:
    """The shards that are there, ascending."""
    found = (_NAME.fullmatch(file.name) for file in directory.iterdir()) if directory.is_dir() else ()
    return sorted(int(match[1]) for match in found if match)


def write_shard(directory: Path, number: int, texts: Sequence[Text]) -> None:
    """Write a shard, whole or not at all."""
    lengths = np.array([0, *(len(text.ids) for text in texts)], np.int64)
    tensors: dict[str, npt.NDArray[Any]] = {
        "ids": np.concatenate([np.empty(0, np.int32), *(text.ids for text in texts)]).astype(np.int32),
        "answer": np.concatenate([np.empty(0, np.uint8), *(text.answer for text in texts)]).astype(np.uint8),
        "cu_len": lengths.cumsum(),
        "index": np.array([text.index for text in texts], np.int64),
        "held_out": np.array([text.held_out for text in texts], np.uint8),
        "temperature": np.array([text.temperature for text in texts], np.float32),
        "digests": np.array([text.digest for text in texts], np.int64),
    }
    path = shard_path(directory, number)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    save_file(tensors, temporary, {"format": str(FORMAT)})
    temporary.chmod(0o644)
    os.replace(temporary, path)


def read_shard(directory: Path, number: int) -> list[Text]:
    """All texts of a shard. Raises `BadData`."""
    path = shard_path(directory, number)
    try:
        tensors = load_file(path)
        cuts = tensors["cu_len"][1:-1]
        columns = zip(
            np.split(tensors["ids"], cuts), np.split(tensors["answer"], cuts), tensors["index"].tolist(),
            tensors["held_out"].tolist(), tensors["temperature"].tolist(), tensors["digests"].tolist(), strict=True,
        ) if len(tensors["index"]) else ()  # fmt: skip
        return [Text(ids, answer, index, bool(held), temp, mark) for ids, answer, index, held, temp, mark in columns]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadData(f"{path} is missing or damaged: delete it and sample again") from error


class Corpus:
    """All texts of a directory, in order."""

    def __init__(self, directory: Path) -> None:
        """Raises `BadData`: no corpus, a damaged one, or an empty one."""
        self.directory = directory
        self.description = read_description(directory)
        self.texts = [text for number in shard_numbers(directory) for text in read_shard(directory, number)]
        if not self.texts:
            raise BadData(f"{directory} holds no texts yet: run `outrider train data` first")

    @property
    def training(self) -> list[Text]:
        """Texts to train on."""
        return [text for text in self.texts if not text.held_out]

    @property
    def held_out(self) -> list[Text]:
        """Texts to measure on, never trained on."""
        return [text for text in self.texts if text.held_out]


def num_tokens(texts: Iterable[Text]) -> int:
    """Tokens of all texts, prompts included."""
    return sum(len(text.ids) for text in texts)


def known_digests(directory: Path) -> Iterator[int]:
    """Of the questions that a corpus holds already."""
    for number in shard_numbers(directory):
        for text in read_shard(directory, number):
            yield text.digest


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise BadData(f"{file.parent} is no corpus (it has no {file.name}): run `outrider train data`") from None
    except ValueError as error:
        raise BadData(f"{file} is damaged ({error}): sample into a new directory") from error
    if not isinstance(values, dict):
        raise BadData(f"{file} is damaged: sample into a new directory")
    return values


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, file)
