"""The Serve application: one deployment per tier (none for inline ones), and the ingress in front of them.

Usable from a Serve config file as `import_path: cluster.app:build`, with the settings of `cluster.config`
(or just `preset: NAME`) as `args`.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from cluster.config import Config, load_config
from cluster.groups import PoolSettings
from cluster.ingress.deployment import Ingress
from cluster.pools import Pool
from cluster.prefixes import PrefixDirectory
from cluster.scaling.options import ingress_scaling, pool_scaling
from cluster.telemetry.board import MetricsBoard

REPLICA_CPUS = 0.01  # a pool's replica only hands out leases; its actors do the work
LEASE_MARGIN = 16  # calls beside leases (info, stats), and leases refused in words instead of by waiting
REFUSAL_MARGIN = 64  # requests an ingress replica takes only to refuse them with a status
DRAIN_MARGIN_S = 30.0  # beyond the longest request


def build(args: dict[str, Any]) -> serve.Application:
    """The application for these settings. Raises `ConfigError`, one line per mistake."""
    return application(load_config(args))


def application(config: Config, pool: type[Pool] = Pool) -> serve.Application:
    """The application for settings that are checked; `pool`: the class of every tier's replicas."""
    pools = [_pool(config, shared[-1], pool) for shared in config.processes]
    limits = config.limits
    # HTTP goes to what `Ingress.__serve_build_asgi_app__` returns. The class itself stays an importable one.
    ingress = _deployment(serve.ingress()(Ingress)).options(
        name="ingress",
        **ingress_scaling(config),
        ray_actor_options={"num_cpus": config.server.num_cpus},
        max_ongoing_requests=limits.max_concurrent_requests + limits.max_queued_requests + REFUSAL_MARGIN,
        max_queued_requests=limits.max_queued_requests + REFUSAL_MARGIN,
        graceful_shutdown_timeout_s=limits.request_timeout_s + DRAIN_MARGIN_S,
        logging_config=_logging(config),
    )
    if config.server.num_replicas == 1:
        return ingress.bind(config, pools)
    directory, board = (
        _deployment(cls).options(
            name=name, ray_actor_options={"num_cpus": REPLICA_CPUS}, logging_config=_logging(config),
            max_ongoing_requests=10_000,
        )
        for cls, name in ((PrefixDirectory, "prefixes"), (MetricsBoard, "metrics"))
    )
    return ingress.bind(config, pools, directory.bind(), board.bind())


def pool_settings(config: Config, index: int, **overrides: Any) -> PoolSettings:
    """What each replica of the pool of tier `index`, the last of its process, creates."""
    tier = config.tiers[index]
    drafts = index == config.processes[0][-1] and len(config.processes) > 1
    return PoolSettings(**{
        "name": tier.name, "spec": config.model_specs()[index],
        "drafter": config.drafter_spec() if drafts else None,
        "law_support": config.speculation.law_support, "num_cpus": tier.resources.num_cpus,
        "num_gpus": tier.resources.num_gpus, "accelerator_type": tier.resources.accelerator_type,
        "resources": dict(tier.resources.custom), "inline": config.inline_tiers(index), "watch": config.watch,
        "model_name": config.model_name, "metrics_interval_s": config.telemetry.interval_s,
        "ray_metrics": config.telemetry.ray_metrics, **overrides,
    })


def pool_options(config: Config, index: int) -> dict[str, Any]:
    """Serve's options of tier `index`: scaling, placement, and time to drain."""
    tier = config.tiers[index]
    bundle = tier.resources.bundle() or {"CPU": REPLICA_CPUS}
    return {
        "name": f"tier{index}-{tier.name}",
        **pool_scaling(config, index),
        "max_ongoing_requests": tier.max_sequences + LEASE_MARGIN,
        "request_router_config": RequestRouterConfig(
            request_router_class="cluster.router:PrefixRouter",  # type: ignore[arg-type]  # its stub is wrong
            request_router_kwargs={"capacity": tier.max_sequences},
        ),
        "ray_actor_options": {"num_cpus": REPLICA_CPUS},
        # The replica sits in bundle 0; its actors, one per rank, are captured into the others.
        "placement_group_bundles": [{"CPU": REPLICA_CPUS}, *([bundle] * tier.num_ranks)],
        "placement_group_strategy": "PACK",
        "graceful_shutdown_timeout_s": config.limits.request_timeout_s + DRAIN_MARGIN_S,
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 30.0,
        "logging_config": _logging(config),
    }


def _logging(config: Config) -> LoggingConfig:
    """Of Serve itself. Its access log would name every lease."""
    settings = config.logging
    return LoggingConfig(enable_access_log=False, encoding=settings.format.upper(), log_level=settings.level)


def _pool(config: Config, index: int, pool: type[Pool]) -> serve.Application:
    settings = pool_settings(config, index)
    return _deployment(pool).options(**pool_options(config, index)).bind(settings)


def _deployment(cls: type) -> serve.Deployment:
    deployment: serve.Deployment = serve.deployment(cls)  # type: ignore[assignment]  # a decorator by its stub
    return deployment

