"""Serve's options for a number of replicas that follows the load, or is fixed."""

from __future__ import annotations

import warnings
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from cluster.config import Config
from cluster.scaling.reports import INTERVAL_S, WINDOW_S

POLICIES = "cluster.scaling.policies"


def pool_scaling(config: Config, index: int) -> dict[str, Any]:
    """Of the pool of tier `index`, the last of its process."""
    tier, replicas = config.tiers[index], config.tiers[index].replicas
    if not replicas.vary:
        return {"num_replicas": replicas.max}
    place = next(place for place, shared in enumerate(config.processes) if shared[-1] == index)
    zero_s = replicas.downscale_delay_s if replicas.zero_delay_s is None else replicas.zero_delay_s
    is_target = index == len(config.tiers) - 1
    initial = max(1, replicas.min) if replicas.initial is None else replicas.initial
    return _scaling(replicas.min, replicas.max, initial, "TargetPolicy" if is_target else "DraftPolicy", {
        "pool": place,
        "limits": {
            "capacity": tier.max_sequences, "target_load": replicas.target_load, "target_kv": replicas.target_kv,
            "max_starved": replicas.max_starved,
        },
        "delays": {"up_s": replicas.upscale_delay_s, "down_s": replicas.downscale_delay_s, "zero_s": zero_s},
    })


def ingress_scaling(config: Config) -> dict[str, Any]:
    """Of the ingress: a fixed number, which reports to the pools' policies if there are any."""
    number = config.server.num_replicas
    if not any(config.tiers[shared[-1]].replicas.vary for shared in config.processes):
        return {"num_replicas": number}
    return _scaling(number, number, number, "IngressPolicy", {})


def _scaling(least: int, most: int, initial: int, policy: str, settings: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        # Serve 2.60 deprecates the interval for an environment variable that it does not read yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        return {"autoscaling_config": AutoscalingConfig(
            min_replicas=least, max_replicas=most, initial_replicas=initial,
            metrics_interval_s=INTERVAL_S, look_back_period_s=WINDOW_S,
            upscale_delay_s=0.0, downscale_delay_s=0.0, downscale_to_zero_delay_s=0.0,  # the policies have their own
            policy=AutoscalingPolicy(  # type: ignore[no-untyped-call]
                policy_function=f"{POLICIES}:{policy}", policy_kwargs=settings,
            ),
        )}
