"""A draft may be changed in place, a target may not, and a mistake is one line."""

from __future__ import annotations

import pytest

from actors.drafter_specs import DraftModelSpec
from actors.spec import ModelSpec
from cluster.groups import PoolSettings, updated


def settings(*, drafts: bool = True) -> PoolSettings:
    return PoolSettings(
        name="small", spec=ModelSpec(0, "old"), drafter=DraftModelSpec() if drafts else None, law_support=64,
        num_cpus=1.0, num_gpus=0.0, accelerator_type=None, resources={},
    )


def test_a_draft_gets_another_model_and_keeps_the_rest() -> None:
    changed = updated(settings(), {"model": "new", "weights": "int8"})
    assert (changed.spec.model, changed.spec.weights, changed.spec.tier) == ("new", "int8", 0)
    assert updated(settings(), {}) == settings()


@pytest.mark.parametrize(
    ("drafts", "changes", "line"),
    [
        (False, {"model": "new"}, "'small' decides tokens; deploy another application"),
        (True, {"kv_tokens": 5}, "user_config.kv_tokens: only model and weights"),
        (True, {"model": 5}, "user_config.model: 5 is no name"), (True, {"weights": ""}, "user_config.weights: ''"),
    ],
)
def test_what_cannot_be_changed_in_place_is_said_in_one_line(
    drafts: bool, changes: dict[str, object], line: str
) -> None:
    with pytest.raises(ValueError, match=line) as raised:
        updated(settings(drafts=drafts), changes)
    assert "\n" not in str(raised.value)
