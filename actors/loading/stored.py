"""The safetensors files of a checkpoint as one mapping from name to tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from actors.loading.errors import ModelNotFound, UnsupportedModel, first_line


class StoredTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, each read from its memory-mapped file when it is asked for.

    `source` is a directory or a Hugging Face id (fetched into the hub's cache); `model` is for messages.

    Raises:
        ModelNotFound: a file is missing or damaged.
        UnsupportedModel: there are weights, but no safetensors.
    """

    def __init__(self, model: str, source: Path | str) -> None:
        directory = source if isinstance(source, Path) else _download(source)
        self._files: dict[str, Any] = {}
        for path in _weight_files(model, directory):
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                reason = first_line(error)
                raise ModelNotFound(f"{model}: cannot read {path.name} ({reason}): download it again") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _weight_files(model: str, directory: Path) -> list[Path]:
    """What the index lists, or every safetensors file (older quantisers name theirs freely)."""
    indices = sorted(directory.glob("*.safetensors.index.json"))
    if len(indices) == 1:
        listed = json.loads(indices[0].read_text())["weight_map"].values()
        return [directory / name for name in sorted(set(listed))]
    found = sorted(directory.glob("*.safetensors"))
    if found:
        return found
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt")):
        raise UnsupportedModel(f"{model} keeps quantised weights in pickle files: save it again as safetensors")
    raise ModelNotFound(f"the checkpoint {model} has no weights: download or convert it again")


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.safetensors.index.json"]))
