"""A whole run on a tiny target: measured before and after, stored, described, and gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file, save_file

from actors.training.card import Facts, render
from actors.training.checkpoint import forget
from actors.training.data.errors import BadData
from actors.training.data.shards import read_description, read_shard, shard_path, write_shard
from actors.training.evaluate import Acceptance, Evaluation
from actors.training.kinds.draft import Draft
from actors.training.ranks import Ranks
from actors.training.run import Outcome, RunSettings, run
from actors.training.target import Target
from actors.training.trainer import Report
from tests.conftest import TinyModel

KIND = Draft(layers=(1,))


class Silent:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, title: str) -> Callable[[int, int], None]:
        self.stages.append(title)
        return lambda done, total: None

    def report(self, report: Report) -> None:
        pass


def _settings(corpus: Path, out: Path) -> RunSettings:
    return RunSettings(corpus, out, 130, num_steps=30, learning_rate=5e-3, batch_tokens=300, max_tokens=64, lookahead=3)


def _run(target: Target, settings: RunSettings, stop: Callable[[], bool] = lambda: False) -> Outcome:
    outcome = run(KIND, target, settings, Silent(), Ranks(), stop)
    assert outcome is not None
    return outcome


def test_a_run_ends_with_better_weights_and_a_card_that_says_so(target: Target, corpus: Path, tmp_path: Path) -> None:
    settings = _settings(corpus, tmp_path)
    calls = iter(range(1000))
    first = _run(target, settings, lambda: next(calls) >= 10)
    assert not first.finished and first.num_steps == 10 and (tmp_path / "model.safetensors").exists()
    outcome = _run(target, settings)
    assert outcome.finished and outcome.num_steps == 30
    assert outcome.untrained is not None and outcome.untrained.to_json() == first.untrained.to_json()  # type: ignore[union-attr]
    assert outcome.trained.best_mat > outcome.untrained.best_mat
    facts = json.loads((tmp_path / "training.json").read_text())
    assert facts["trained"] == outcome.trained.to_json() and facts["num_steps"] == 30
    card = (tmp_path / "README.md").read_text()
    assert f"{outcome.trained.sampled.mat:.2f}" in card  # type: ignore[union-attr]
    again = _run(target, settings)  # nothing is left to do
    assert again.trained.to_json() == outcome.trained.to_json()
    with pytest.raises(ValueError, match="learning_rate"):
        _run(target, replace(settings, learning_rate=1e-4))


def test_a_corpus_of_other_ids_is_refused(corpus: Path, tiny_model: TinyModel, tmp_path: Path) -> None:
    other = Target.load(str(tiny_model(vocab_size=260)))
    other.tokenizer.add_tokens(["<|new|>"])
    with pytest.raises(BadData, match="other texts"):
        _run(other, _settings(corpus, tmp_path))


def test_the_card_is_markdown_with_readable_metadata() -> None:
    one = Acceptance((0.7, 0.5), 2.05, 100, 205)
    card = render(Facts(
        "draft", "a small draft", "builtin:smollm2", {"layers": (1, 30)}, {"seed": 0}, 12345678, 24691356, 8192, 0.987,
        {"weights": "int8", "recipe": {"seed": 0, "answer_temperatures": [0.0, 1.0]}, "prompts": []}, 900, 400000,
        300000, 500, 900000, 600.0, "a CPU", 2, Evaluation(None, None), Evaluation(one, None), 30,
    ))  # fmt: skip
    head = yaml.safe_load(card.split("---")[1])
    assert head["base_model"] == "builtin:smollm2"
    for words in ("98.7%", "answer_temperatures 0.0/1.0", "| trained, greedy | 0.700 | 0.500 | 2.05"):
        assert words in card


def test_the_measure_before_a_run_is_of_that_run(target: Target, corpus: Path, tmp_path: Path) -> None:
    """A run that died before its first checkpoint leaves its measure behind, and the next one may have other heads."""
    settings = replace(_settings(corpus, tmp_path), num_steps=1)
    _run(target, settings)
    told = json.loads((tmp_path / "untrained.json").read_text())
    forget(tmp_path / "checkpoint")
    _run(target, replace(settings, draft_vocab_size=60))
    again = json.loads((tmp_path / "untrained.json").read_text())
    assert again["run"] != told["run"] and again["measured"] != told["measured"]


def test_a_corpus_with_ids_that_the_target_lacks_is_refused(target: Target, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    texts = read_shard(tmp_path / "corpus", 1)
    texts[0].ids[0] = target.vocab_size
    write_shard(tmp_path / "corpus", 1, texts)
    with pytest.raises(BadData, match=f"the id {target.vocab_size}"):
        _run(target, _settings(tmp_path / "corpus", tmp_path / "out"))


@pytest.mark.parametrize("text", ["[1]", '{"format": 1}', "{"])
def test_a_damaged_description_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "corpus.json").write_text(text)
    with pytest.raises(BadData, match=r"^[^\n]*corpus\.json is damaged[^\n]*: sample into a new directory$"):
        read_description(tmp_path)


def test_a_shard_without_one_of_its_columns_is_one_line(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    path = shard_path(tmp_path / "corpus", 0)
    tensors = load_file(path)
    del tensors["answer"]
    save_file(tensors, path)
    with pytest.raises(BadData, match="missing or damaged: delete it and sample again"):
        read_shard(tmp_path / "corpus", 0)
