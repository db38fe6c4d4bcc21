"""A whole run: data, target, vocabulary, untrained measure, training, measure, weights and card."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from actors.heads.format import WEIGHTS
from actors.loading.tokenizer import eos_ids, fingerprint
from actors.training import checkpoint
from actors.training.card import Facts, write_card
from actors.training.data.batches import Batcher, Order
from actors.training.data.errors import BadData
from actors.training.data.features import StoredFeatures, store
from actors.training.data.shards import Corpus, num_tokens
from actors.training.data.vocabulary import coverage, draft_vocabulary
from actors.training.evaluate import Acceptance, Evaluation, evaluate
from actors.training.kind import Kind, Trainee
from actors.training.optimiser import OptimiserSettings, restore
from actors.training.ranks import Ranks
from actors.training.schedule import Schedule
from actors.training.target import Target
from actors.training.trainer import Report, Trainer, TrainerSettings

UNTRAINED = "untrained.json"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What `outrider train KIND` is told besides the kind's own options."""

    data: Path
    out: Path
    draft_vocab_size: int = 8192  # 0: the target's own
    num_steps: int = 0  # 0: as `epochs` says
    epochs: float = 3.0
    minutes: float = 0.0
    learning_rate: float = 0.0  # 0: the kind's
    weight_decay: float = 0.0
    batch_tokens: int = 2048
    accumulate: int = 1
    max_tokens: int = 1024  # of a text
    seed: int = 0
    precision: str = "fp32"
    zero_stage: int = 0
    checkpoint_every: int = 200
    lookahead: int = 4  # of the measure
    num_held_out: int = 64  # conversations at most
    store_features: bool = False


class Watcher(Protocol):
    """Shows how far a run is."""

    def stage(self, title: str) -> Callable[[int, int], None]:
        """A new stage begins; the result is told (done, total)."""
        ...

    def report(self, report: Report) -> None:
        """Some steps were made."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    untrained: Evaluation | None
    trained: Evaluation
    num_steps: int
    finished: bool  # False: it was stopped; the same command goes on


def run(
    kind: Kind, target: Target, settings: RunSettings, watcher: Watcher, ranks: Ranks,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome | None:
    """Train, from the beginning or from the checkpoint in `settings.out`; weights and card are there afterwards.

    None on all ranks but the first. Raises `BadData`, `BadCheckpoint`, `Diverged`, or `ValueError` for options that do
    not fit.
    """
    corpus = Corpus(settings.data)
    _check_corpus(corpus, target)
    layers = kind.feature_layers(target)
    stored = _stored(kind, corpus, target, settings, layers, watcher, ranks)
    vocabulary = _vocabulary(corpus, target, settings.draft_vocab_size)
    torch.manual_seed(settings.seed)
    trainee = kind.build(target, vocabulary)
    order = Order(corpus.training, settings.batch_tokens, settings.max_tokens, settings.seed)
    per_epoch = order.num_batches(ranks.count) / settings.accumulate
    num_steps = settings.num_steps or max(1, int(settings.epochs * per_epoch))
    rate = settings.learning_rate or kind.learning_rate
    told = {
        "kind": kind.name, "options": kind.options(), "target": target.name, "data": corpus.description.to_json(),
        "num_texts": len(corpus.training), "draft_vocab": settings.draft_vocab_size, "num_steps": num_steps,
        "learning_rate": rate, "weight_decay": settings.weight_decay, "batch_tokens": settings.batch_tokens,
        "accumulate": settings.accumulate, "max_tokens": settings.max_tokens, "seed": settings.seed,
        "precision": settings.precision, "minutes": settings.minutes, "zero_stage": settings.zero_stage,
        "num_ranks": ranks.count,
    }  # fmt: skip
    settings.out.mkdir(parents=True, exist_ok=True)
    measured = Batcher(target, layers, settings.max_tokens, stored)

    def measure(subject: Trainee, title: str) -> Evaluation:
        texts = [t for t in corpus.held_out if len(t.ids) <= settings.max_tokens]
        tell = watcher.stage(title)
        return evaluate(
            subject, target, measured, texts[: settings.num_held_out], settings.lookahead, settings.seed, tell
        )

    untrained = None
    if ranks.is_first:
        untrained = _untrained(settings.out, told, lambda: measure(trainee, "measuring acceptance, untrained"))
    torch.manual_seed(settings.seed + 1 + ranks.rank)  # whatever was measured before; a checkpoint brings its own
    trainer = Trainer(
        trainee, Batcher(target, layers, settings.max_tokens, stored, bare=kind.trains_target), order,
        TrainerSettings(
            num_steps, Schedule(rate), OptimiserSettings(settings.weight_decay, accumulate=settings.accumulate),
            settings.precision, settings.minutes, settings.checkpoint_every, zero_stage=settings.zero_stage,
        ),
        told, settings.out, ranks,
    )  # fmt: skip
    watcher.stage("training")
    state = trainer.run(watcher.report, stop)
    whole = trainer.whole_state()
    if not ranks.is_first:
        ranks.barrier()
        return None
    if whole is not None:  # the trainee itself holds a part
        trainee = kind.build(target, vocabulary)
        restore(trainee, whole)
    finished = trainer.progress >= 1.0
    trained = measure(trainee, "measuring acceptance")
    kind.export(trainee, target, settings.out)
    (settings.out / WEIGHTS).chmod(0o644)  # safetensors makes files that others cannot read
    write_card(settings.out, _facts(
        kind, target, settings, corpus, trainee, vocabulary, told, state, (untrained, trained)
    ))  # fmt: skip
    ranks.barrier()
    return Outcome(untrained, trained, state.step, finished)


def _check_corpus(corpus: Corpus, target: Target) -> None:
    if target.tokenizer is not None and corpus.description.tokenizer_fingerprint != fingerprint(target.tokenizer):
        raise BadData(
            f"{corpus.directory} was written by {corpus.description.target}, whose ids mean other texts than those of "
            f"{target.name}: sample from that one"
        )
    largest = max(int(text.ids.max(initial=0)) for text in corpus.texts)
    if largest >= target.vocab_size:
        raise BadData(
            f"{corpus.directory} holds the id {largest}, and {target.name} knows {target.vocab_size}: sample from that "
            "one"
        )
    if not corpus.training or not corpus.held_out:
        raise BadData(
            f"{corpus.directory} holds {len(corpus.texts)} texts, too few: sample more with `outrider train data`"
        )


def _stored(
    kind: Kind, corpus: Corpus, target: Target, settings: RunSettings, layers: tuple[int, ...], watcher: Watcher,
    ranks: Ranks,
) -> StoredFeatures | None:
    if not settings.store_features:
        return None
    if kind.trains_target:
        raise ValueError(f"{kind.name} trains the target itself, so its features change: leave out --store-features")
    if ranks.is_first:
        store(corpus, target, layers, watcher.stage("running the target over the data"))
    ranks.barrier()
    return StoredFeatures(corpus.directory, layers, settings.max_tokens)


def _vocabulary(corpus: Corpus, target: Target, size: int) -> torch.Tensor | None:
    if size <= 0 or size >= target.vocab_size:
        return None
    always = eos_ids(target.tokenizer, target.model.generation_config) if target.tokenizer is not None else ()
    return draft_vocabulary(corpus.training, size, target.vocab_size, always).to(target.device)


def _untrained(out: Path, told: dict[str, Any], measure: Callable[[], Evaluation]) -> Evaluation:
    """Measured once, before the first step of the first run of these settings (`told`)."""
    file = out / UNTRAINED
    run = json.loads(json.dumps(told))
    try:
        found = json.loads(file.read_text())
        if found["run"] == run:
            return Evaluation(*(_acceptance(found["measured"].get(name)) for name in ("greedy", "sampled")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # none yet, or of no use: it is measured again
    result = measure()
    file.write_text(json.dumps({"run": run, "measured": result.to_json()}))
    return result


def _acceptance(values: dict[str, Any] | None) -> Acceptance | None:
    if values is None:
        return None
    return Acceptance(tuple(values["by_position"]), values["mat"], values["num_rounds"], values["num_tokens"])


def _facts(
    kind: Kind, target: Target, settings: RunSettings, corpus: Corpus, trainee: Trainee,
    vocabulary: torch.Tensor | None, told: dict[str, Any], state: checkpoint.State,
    measured: tuple[Evaluation | None, Evaluation],
) -> Facts:
    from safetensors import safe_open

    file = settings.out / WEIGHTS
    with safe_open(file, "pt") as opened:
        names = list(opened.keys())
        count = sum(math.prod(opened.get_slice(name).get_shape()) for name in names)
    training = corpus.training
    shown = ("draft_vocab", "learning_rate", "weight_decay", "batch_tokens", "accumulate", "max_tokens", "seed",
             "precision", "zero_stage", "num_ranks")  # fmt: skip
    return Facts(
        kind=kind.name, summary=kind.summary, target=target.name, options=kind.options(),
        settings={name.replace("_", " "): told[name] for name in shown}, num_parameters=count,
        num_bytes=file.stat().st_size, draft_vocab_size=0 if vocabulary is None else len(vocabulary),
        vocab_coverage=1.0 if vocabulary is None else coverage(training, vocabulary.cpu()),
        data=corpus.description.to_json(), num_texts=len(training), num_tokens=num_tokens(training),
        num_answer_tokens=sum(text.num_answer_tokens for text in training), num_steps=state.step,
        num_trained_tokens=state.num_tokens, seconds=state.elapsed_s, machine=_machine(target.device),
        lookahead=settings.lookahead, untrained=measured[0], trained=measured[1],
        num_held_out=min(len(corpus.held_out), settings.num_held_out),
    )  # fmt: skip


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
