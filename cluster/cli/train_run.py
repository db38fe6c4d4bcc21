"""Sampling and training with progress, interrupts and mistakes as a terminal expects them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from actors.engine.native.build import KernelBuildError
from actors.loading.errors import ModelNotFound, UnsupportedModel
from actors.training import checkpoint
from actors.training.data.make import SamplingSettings, sample
from actors.training.data.shards import DESCRIPTION
from actors.training.kind import Kind
from actors.training.ranks import Ranks, join
from actors.training.run import UNTRAINED, Outcome, RunSettings, run
from actors.training.target import Target
from actors.training.trainer import Diverged
from cluster.cli import train_launch
from cluster.cli.output import CommandError, stderr, stdout
from cluster.cli.train_options import Shared
from cluster.cli.train_show import Quiet, SamplingBar, Screen, outcome_table


def sample_corpus(settings: SamplingSettings) -> str:
    """Fill a corpus; returns the line that tells of it."""
    _check_device(settings.device)
    with _mistakes(), SamplingBar(stderr, settings.num_tokens) as bar, _stop_flag() as stop:
        done = sample(settings, bar.show, stop)
    if settings.only_prompts and not done.num_texts and not stop():
        raise CommandError(f"{settings.directory}: no prompt gave a text; those longer than "
                           f"{settings.max_context_tokens} tokens are left out")
    complete = settings.only_prompts or done.num_tokens >= settings.num_tokens
    return (
        f"{settings.directory}: {done.num_texts:,} conversations, {done.num_tokens:,} tokens in {done.num_shards} "
        f"shards, {bar.tokens_per_s:.0f} tokens/s; {'done' if complete else 'stopped: the same command goes on'}"
    )


def train_kind(kind: Kind, shared: Shared) -> None:
    """Sample what is missing, train, measure, and show what came of it."""
    if shared.threads:
        torch.set_num_threads(shared.threads)
    data = shared.data or shared.out / "data"
    _check_device(shared.device)
    ranks = train_launch.ranks_of_launcher()
    if ranks == 1:
        _prepare(shared, data)
        if shared.num_gpus > 1:
            train_launch.launch(shared.num_gpus, shared.device)
            return
    with _mistakes():
        place = join(shared.device)
        target = Target.load(shared.target, shared.dtype, _own_device(shared.device, place))
        watcher: Any = Screen(stderr) if place.is_first else Quiet()
        with watcher, _stop_flag() as stop:
            outcome = run(kind, target, _settings(shared, data, place), watcher, place, stop)
    if outcome is not None:
        _tell(shared.out, outcome)


def _prepare(shared: Shared, data: Path) -> None:
    if shared.restart:
        with _mistakes():
            checkpoint.forget(shared.out / checkpoint.DIRECTORY)
            (shared.out / UNTRAINED).unlink(missing_ok=True)
    if shared.data is None:
        line = sample_corpus(SamplingSettings(
            shared.target, data, shared.tokens, device=shared.device, dtype=shared.dtype,
            weights="int8" if shared.device == "cpu" else "bf16", num_threads=shared.threads or None,
        ))  # fmt: skip
        stdout.print(line)
    elif not (data / DESCRIPTION).exists():
        raise CommandError(f"{data} is no corpus: make one with `outrider train data {data}`, or leave out --data")


def _settings(shared: Shared, data: Path, ranks: Ranks) -> RunSettings:
    if shared.precision not in ("fp32", "bf16"):
        raise ValueError(f"--precision {shared.precision!r}: choose fp32 or bf16")
    zero = (1 if ranks.count > 1 else 0) if shared.zero is None else shared.zero
    if ranks.count > 1 and zero == 0:
        raise ValueError("several processes share their work by DeepSpeed ZeRO: give --zero 1, 2 or 3")
    if ranks.count == 1 and zero > 0:
        raise ValueError(f"--zero {zero} shares work among processes: give --num-gpus, or leave it out")
    return RunSettings(
        data, shared.out, shared.draft_vocab, shared.num_steps, shared.epochs, shared.minutes, shared.lr,
        shared.weight_decay, shared.batch_tokens, shared.accumulate, shared.max_tokens, shared.seed,
        shared.precision, zero, shared.checkpoint_every, shared.measured_tokens, shared.measured_texts,
        shared.store_features,
    )


def _own_device(device: str, ranks: Ranks) -> str:
    return f"cuda:{ranks.local_rank}" if device.startswith("cuda") and ranks.count > 1 else device


def _tell(out: Path, outcome: Outcome) -> None:
    stdout.print(outcome_table(outcome))
    if outcome.finished:
        stdout.print(f"{out}: weights and card written; serve it as the README there says")
    else:
        stdout.print(f"{out}: stopped after {outcome.num_steps} steps, weights as they are; the same command goes on")


@contextmanager
def _mistakes() -> Iterator[None]:
    """What one line explains."""
    try:
        yield
    except (KernelBuildError, Diverged, ValueError, ModelNotFound, UnsupportedModel) as error:  # and their children
        raise CommandError(str(error)) from error
    except (OSError, SafetensorError) as error:  # from storing: whatever reads a file says itself what is wrong with it
        why = " ".join(str(error).split())
        raise CommandError(f"{why}: name a directory that can be written, with room") from error


def _check_device(device: str) -> None:
    if re.fullmatch(r"cpu|cuda(:\d+)?", device) is None:
        raise CommandError(f"--device {device!r}: choose cpu, cuda or cuda:N")
    number = int(device.partition(":")[2] or 0)
    if device != "cpu" and torch.cuda.device_count() <= number:
        raise CommandError(f"--device {device}: PyTorch sees {torch.cuda.device_count()} GPUs here; choose another one "
                           "or cpu")


@contextmanager
def _stop_flag() -> Iterator[Any]:
    """The first interrupt asks to stop at the next step, so that what is there can be stored; a second one stops."""
    import signal

    asked: list[float] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: Any) -> None:
        if asked and time.monotonic() - asked[0] > 0.5:
            raise KeyboardInterrupt
        asked.append(time.monotonic())

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
