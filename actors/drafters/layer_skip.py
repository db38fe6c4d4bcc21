"""Drafting with the target without some of its layers (Draft & Verify, 2309.08168; SWIFT, 2410.06916): no training.

Which layers are least missed is found out when the tier starts, unless the settings name them.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np

from actors.drafter_specs import LayerSkipSpec
from actors.drafters.calibration import Calibration
from actors.drafters.copies import Copies
from actors.drafters.layer_cost import pass_cost
from actors.drafters.shallow import ShallowDrafter
from actors.drafters.skip_search import Found, Skip, search
from actors.engine.shallow import Shallow
from actors.loading.checkpoint import load_config
from actors.loading.tokenizer import load_tokenizer
from actors.verifier import Verifier

log = logging.getLogger(__name__)


def layer_skip_drafter(drafter: LayerSkipSpec, host: Verifier, tier: int) -> ShallowDrafter:
    """A drafter in the engine of `host`; without layers in the settings this takes a while.

    Raises `ValueError` for layers that the model lacks, `CalibrationFailed` where they cannot be tried out.
    """
    model = host.engine.spec.model
    config = load_config(model)
    num_layers = int(config.get_text_config().num_hidden_layers)
    foreign = [layer for layer in drafter.skip if not 1 <= layer <= num_layers]
    if foreign:
        raise ValueError(f"skip names layer {foreign[0]}: {model} has the layers 1 to {num_layers}; remove it")
    if len(set(drafter.skip)) >= num_layers:
        raise ValueError(f"skip names all {num_layers} layers of {model}; leave some to draft with")
    cost = partial(pass_cost, config)
    skip = frozenset(layer - 1 for layer in drafter.skip)
    if not skip:
        if num_layers < 2:
            raise ValueError(f"{model} has one layer: there is none to skip; choose another kind of drafter")
        found = find_skip(host, num_layers, cost, drafter.num_evaluations)
        log.info(
            "%s: drafting skips layers %s of %d, found in %d trials: %.0f %% of its tokens are the target's, "
            "expected speed-up %.2f", model, [layer + 1 for layer in found.skip], num_layers, found.num_evaluations,
            100 * found.agreement, found.speed_up,
        )
        if found.speed_up < 1.0:
            log.warning(
                "%s: no layers were found whose loss pays; use another kind of drafter, or lookahead: auto, which "
                "then drafts little", model,
            )
        skip = frozenset(found.skip)
    copies = Copies() if drafter.copying else None
    return ShallowDrafter(host, tier, drafter.law_support, passing(skip, num_layers, cost), copies)


def find_skip(host: Verifier, num_layers: int, cost: partial[float], num_evaluations: int) -> Found:
    """The layers whose loss costs a draft least. Raises `CalibrationFailed`."""
    calibration = Calibration(host, load_tokenizer(host.engine.spec.model))
    try:
        return search(
            num_layers, lambda skip: calibration.agreement(passing(skip, num_layers, cost)), cost, num_evaluations
        )
    finally:
        calibration.close()


def passing(skip: Skip, num_layers: int, cost: partial[float]) -> Shallow:
    """Passes without the layers of `skip` (0: the first)."""
    layers = np.array([layer for layer in range(num_layers) if layer not in skip], np.int32)
    return Shallow(layers, cost(len(layers)))
