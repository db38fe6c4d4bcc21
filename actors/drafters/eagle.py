"""Drafting with an `eagle` head: `ModelDrafter` over a runner that reads the target's features (`EagleRunner`).

Chains, combs, trees and branches are those of any drafter with an engine. The rows that read own states are
provisional: with the features of the tokens that were accepted they are run again.
"""

from __future__ import annotations

from actors.drafter_specs import EagleSpec
from actors.engine.headed import EagleRunner
from actors.heads.eagle import EagleConfig, EagleHead
from actors.heads.format import check_fits, load_config
from actors.loading import checkpoint
from actors.loading.ends import load_ends
from actors.spec import ModelSpec


def load_eagle(spec: ModelSpec, drafter: EagleSpec) -> EagleRunner:
    """The head, for the target that `spec.model` names, ready for packed steps.

    Raises:
        BadHead: there is no such head, or it was trained for another target.
        ModelNotFound: the target's embedding cannot be had.
    """
    check_fits(load_config(drafter.head, EagleConfig), checkpoint.load_config(spec.model), drafter.head, spec.model)
    ends = load_ends(spec)
    head = EagleHead.load(drafter.head, ends.embedding, ends.output).to(spec.device)
    return EagleRunner(head.requires_grad_(False), spec)
