"""A head comes back as it was stored, and whatever does not fit is one line that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.heads.directory import read_feature_layers
from actors.heads.eagle import EagleConfig, EagleHead, eagle_config
from actors.heads.format import BadHead, check_fits, head_kind, load_config, load_head, save_head
from tests.models import VOCAB, tiny_model
from tests.unit.heads.fresh import fresh_head


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    fresh_head().save(tmp_path / "head", card="# A head\n")
    return tmp_path / "head"


def _change(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text())
    values["outrider_head"].update(fields)
    path.write_text(json.dumps(values))


def test_a_head_comes_back_as_it_was_stored(stored: Path) -> None:
    head = fresh_head()
    config, tensors = load_head(stored, EagleConfig)
    assert config == head.config
    assert {name: t.tolist() for name, t in tensors.items()} == {n: t.tolist() for n, t in head.state_dict().items()}
    assert head_kind(stored) == "eagle"
    assert read_feature_layers(stored, "eagle") == head.config.feature_layers
    assert (stored / "README.md").read_text() == "# A head\n"


def test_the_targets_matrices_are_not_stored_and_an_untrained_output_need_not_be(tmp_path: Path) -> None:
    head, model = fresh_head(), tiny_model("llama")
    head.save(tmp_path, with_head=False)
    tensors = load_head(tmp_path, EagleConfig)[1]
    assert not {"embedding", "head.weight"} & set(tensors)
    again = EagleHead.load(tmp_path, model.model.embed_tokens.weight, model.lm_head.weight)
    assert torch.equal(again.head.weight, head.head.weight)


def test_halves_are_read_as_floats(tmp_path: Path) -> None:
    head, model = fresh_head(), tiny_model("llama")
    head.save(tmp_path, dtype=torch.float16)
    again = EagleHead.load(tmp_path, model.model.embed_tokens.weight, model.lm_head.weight)
    assert again.join.weight.dtype == torch.float32
    torch.testing.assert_close(again.join.weight, head.join.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "medusa"}, "kind 'medusa', not 'eagle'"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"feature_layers": [2, 1]}, "feature_layers [2, 1] must ascend between 1 and 3"),
        ({"feature_layers": [4]}, "must ascend between 1 and 3"),
        ({"feature_layers": "all"}, "feature_layers is 'all', not a list"),
        ({"draft_vocab_size": 0}, "draft_vocab_size 0 must lie between 1 and"),
        ({"hidden": "wide"}, "hidden is 'wide', not of type int"),
        ({"depth": 3}, "depth is unknown: copy or train the head again"),
        ({"hidden": None}, "hidden is None, not of type int"),
        ({"core": 3}, "Core is 3"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(stored: Path, fields: dict[str, Any], says: str) -> None:
    _change(stored, **fields)
    with pytest.raises(BadHead) as caught:
        load_config(stored, EagleConfig)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_head_is_said_to_be_none(tmp_path: Path, stored: Path) -> None:
    with pytest.raises(BadHead, match=r"has no config.json: give the directory of a draft head"):
        load_config(tmp_path / "nowhere", EagleConfig)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadHead, match="describes no draft head"):
        load_config(tmp_path, EagleConfig)
    (stored / "model.safetensors").write_bytes(b"short")
    with pytest.raises(BadHead, match="missing or damaged"):
        load_head(stored, EagleConfig)


def test_weights_of_another_shape_are_refused(stored: Path) -> None:
    model = tiny_model("llama")
    ends = model.model.embed_tokens.weight, model.lm_head.weight
    config, tensors = load_head(stored, EagleConfig)
    save_head(stored, config, tensors | {"join.weight": torch.zeros(3, 3)})
    with pytest.raises(BadHead, match=r"join.weight has the shape \[3, 3\]"):
        EagleHead.load(stored, *ends)
    del tensors["join.weight"]
    save_head(stored, config, tensors)
    with pytest.raises(BadHead, match=r"do not belong together \(join.weight\)"):
        EagleHead.load(stored, *ends)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("hidden_size", 128, "its hidden size is 64, the target's 128"),
        ("vocab_size", 99, f"its vocabulary is {VOCAB}, the target's 99"),
        ("num_hidden_layers", 5, "its number of layers is 3, the target's 5"),
    ],
)
def test_a_head_for_another_target_is_refused(field: str, value: int, says: str) -> None:
    target = tiny_model("llama").config
    config = eagle_config(target, 32, name="tiny")
    check_fits(config, target, "head", "tiny")
    setattr(target, field, value)
    with pytest.raises(BadHead, match=says) as caught:
        check_fits(config, target, "head", "other")
    assert str(caught.value).startswith("the head head (made for tiny) does not fit other: ")


def test_a_setting_that_is_missing_is_named(stored: Path) -> None:
    path = stored / "config.json"
    values = json.loads(path.read_text())
    del values["outrider_head"]["core"]
    path.write_text(json.dumps(values))
    with pytest.raises(BadHead, match=r"core is missing: copy or train the head again$"):
        load_config(stored, EagleConfig)


@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: ids.index_fill(0, torch.tensor([len(ids) - 1]), VOCAB + 5), f"outside the vocabulary of {VOCAB}"),
        (lambda ids: ids.index_fill(0, torch.tensor([0]), -3), f"outside the vocabulary of {VOCAB}"),
        (lambda ids: ids.flip(0), "must ascend"),
        (lambda ids: ids.index_fill(0, torch.tensor([1]), int(ids[0])), "must ascend"),
        (lambda ids: ids + 0.5, "must be whole numbers"),
        (lambda ids: ids[None], "must ascend"),
    ],
)
def test_ids_that_are_none_are_one_line_that_names_the_head(
    tmp_path: Path, change: Any, says: str, with_head: bool
) -> None:
    head, model = fresh_head(), tiny_model("llama")
    head.save(tmp_path, with_head=with_head)
    tensors = load_head(tmp_path, EagleConfig)[1]
    tensors["head.draft_vocab_ids"] = change(tensors["head.draft_vocab_ids"])
    save_head(tmp_path, head.config, tensors)
    with pytest.raises(BadHead) as caught:
        EagleHead.load(tmp_path, model.model.embed_tokens.weight, model.lm_head.weight)
    assert f"{tmp_path}: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
