"""The services that the bench starts by itself: small enough to be broken hundreds of times."""

from __future__ import annotations

from typing import Any

from cluster.config import Config, load_config

COPIES = 2  # replicas of each pool
NODE_RESOURCE = "outrider-chaos-{}"  # so many units per node as there is room for replicas of the pool
STREAMS = 6


def ladder() -> Config:
    """Emulated devices, rounds that overlap, two replicas of each pool (one per node), two ingress replicas."""
    def tier(name: str, emulation: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": name, "model": "builtin:smollm2", "kv_tokens": 4096, "page_tokens": 16, "max_context_tokens": 1024,
            "idle_timeout_s": 20, "emulation": emulation, "replicas": {"min": COPIES, "max": COPIES},
            "resources": {"num_cpus": 0.1, "custom": {NODE_RESOURCE.format(name): 1}},
        }

    return load_config({
        "model_name": "chaos",
        "tiers": [
            tier("draft", {"pass_s": 0.002, "agreement": 0.8, "further_guesses": 0.5}),
            tier("target", {"pass_s": 0.03}),
        ],
        "speculation": {
            "lookahead": 5, "draft_timeout_s": 0.5, "overlap": {"branches": 8, "guesses": 2, "tokens": 5},
        },
        "limits": {
            "max_prompt_tokens": 800, "max_tokens": 256, "lease_timeout_s": 60, "silence_timeout_s": 4,
            "request_timeout_s": 90, "max_concurrent_requests": 96,
        },
        "server": {"num_replicas": 2, "num_cpus": 2},
    }, environ={})


def ranks() -> Config:
    """Small random models: a target of two tensor-parallel ranks that really compute, and a drafter of int8 weights."""
    def tier(name: str, **more: Any) -> dict[str, Any]:
        return {
            "name": name, "model": "random:tiny-llama", "kv_tokens": 4096, "page_tokens": 16,
            "max_context_tokens": 1024, "num_threads": 1, "idle_timeout_s": 20,
            "replicas": {"min": COPIES, "max": COPIES}, "resources": {"num_cpus": 0.1}, **more,
        }

    return load_config({
        "model_name": "chaos-ranks",
        "tiers": [tier("draft", weights="int8"), tier("target", tensor_parallel_size=2, step_timeout_s=3)],
        "speculation": {"lookahead": 4, "draft_timeout_s": 0.5},
        "limits": {
            "max_prompt_tokens": 800, "max_tokens": 256, "lease_timeout_s": 60, "silence_timeout_s": 4,
            "request_timeout_s": 90, "max_concurrent_requests": 96,
        },
    }, environ={})


STAGES = {"ladder": ladder, "ranks": ranks}
