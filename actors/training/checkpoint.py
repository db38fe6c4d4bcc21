"""What a run can go on from: parameters, optimiser, random state, and its place in the data, under one name."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from actors.training.optimiser import Stepper

_STATE = "state.json"
_NOISE = "noise-{rank}.safetensors"
DIRECTORY = "checkpoint"


class BadCheckpoint(ValueError):
    """The checkpoint is of another run; one line that names the fix."""


@dataclass(slots=True)
class State:
    """Where a run is."""

    step: int = 0  # steps made
    position: int = 0  # batches taken, of each rank
    num_tokens: int = 0  # of text seen, repeats counted, of all ranks
    elapsed_s: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)  # what was watched, now and then


def save(
    directory: Path, run: dict[str, Any], state: State, stepper: Stepper, rank: int = 0, barrier: Any = None
) -> None:
    """Write all of it, whole or not at all. `run`: what makes the run what it is, checked by `load`.

    Called by all ranks; `barrier()` waits for them.
    """
    wait = barrier or (lambda: None)
    new, old = _beside(directory)
    if rank == 0:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    wait()
    stepper.save(new)
    save_file(_noise(), new / _NOISE.format(rank=rank))
    wait()
    if rank == 0:
        (new / _STATE).write_text(json.dumps({"run": run, "state": dataclasses.asdict(state)}))
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            os.replace(directory, old)
        os.replace(new, directory)
        shutil.rmtree(old, ignore_errors=True)
    wait()


def load(directory: Path, run: dict[str, Any], stepper: Stepper, rank: int = 0) -> State | None:
    """Go on from what was saved; None: there is nothing. Raises `BadCheckpoint`."""
    if not directory.exists():
        _, left = _beside(directory)  # a process died between the two renamings
        if not left.exists():
            return None
        directory = left
    try:
        found = json.loads((directory / _STATE).read_text())
        told, state = dict(found["run"]), State(**found["state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, error) from error
    wanted = json.loads(json.dumps(run))
    different = sorted(name for name in wanted if wanted[name] != told.get(name))
    if different:
        raise BadCheckpoint(
            f"{directory} is of a run with other settings ({', '.join(different)}): name another OUT, use the same "
            "settings, or begin anew with --restart"
        )
    try:
        stepper.load(directory)
        _set_noise(load_file(directory / _NOISE.format(rank=rank)))
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:  # other tensors are a RuntimeError
        raise _damaged(directory, error) from error
    return state


def forget(directory: Path) -> None:
    """Delete a checkpoint, whatever is left of it."""
    for one in (directory, *_beside(directory)):
        shutil.rmtree(one, ignore_errors=True)


def _beside(directory: Path) -> tuple[Path, Path]:
    """Where the next checkpoint is written, and where the last one is while the next takes its place."""
    return directory.with_name(f"{directory.name}.new"), directory.with_name(f"{directory.name}.old")


def _damaged(directory: Path, error: Exception) -> BadCheckpoint:
    why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return BadCheckpoint(f"{directory} is damaged ({why}): begin anew with --restart")


def _noise() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_noise(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
