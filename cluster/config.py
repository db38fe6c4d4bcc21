"""The one place where YAML and environment become checked, frozen settings.

`load_config("smollm2")` reads a preset, `load_config("path.yaml")` a file, `load_config({...})` a mapping
(Serve's `args`). A file may start from a preset with `preset: NAME`; `OUTRIDER_SERVER__GRPC_PORT=9001` style
variables override both. Every mistake becomes one line that names the field and the fix (`ConfigError`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from actors.drafter_specs import DrafterSpec, DraftModelSpec
from actors.spec import EMULATED, EmulationSpec, InlineTier, ModelSpec
from actors.watch import WatchSpec
from cluster.config_ahead import check_ahead
from cluster.config_auth import AuthConfig
from cluster.config_drafters import (
    DEFAULT_KIND,
    DrafterConfig,
    DraftModelConfig,
    check_features,
    check_longest,
    check_runs_above,
)
from cluster.config_emulation import check_emulation, emulation_spec
from cluster.config_inline import check_inline, processes
from cluster.config_load import ConfigError, load_mapping, validate
from cluster.config_lossy import LossyConfig, check_lossy
from cluster.config_section import Positive, Seconds, Section, Share
from cluster.config_telemetry import LoggingConfig, TelemetryConfig, watch_spec
from cluster.config_tls import TlsConfig
from cluster.config_vllm import from_vllm, is_vllm

__all__ = [
    "AuthConfig", "Config", "ConfigError", "DrafterConfig", "EmulationConfig", "LimitsConfig", "ReplicasConfig",
    "ResourcesConfig", "SamplingConfig", "ServerConfig", "SpeculationConfig", "TierConfig", "load_config",
]

logger = logging.getLogger(__name__)

_MAX_GUESSES = 32  # named words of an emulated tier, its best included: a vocabulary has at least 64


def _in_turn(value: object) -> object:
    """Shares, one after another, where one alone may be given as a number."""
    if value is None or isinstance(value, list | tuple):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no share; give one, e.g. 0.85, or a list of them")
    return (value,)


class ResourcesConfig(Section):
    """What Ray reserves for each actor (each tensor-parallel rank) of a replica; logical units."""

    num_cpus: Share = Field(1.0, description="logical CPUs per actor, fractions allowed")
    num_gpus: Share = Field(0.0, description="GPUs per actor, fractions allowed")
    accelerator_type: str | None = Field(None, description='Ray accelerator type, e.g. "L4"; null: any')
    custom: dict[str, Share] = Field(default_factory=dict, description="custom Ray resources per actor")

    def bundle(self) -> dict[str, float]:
        """One placement-group bundle that holds one actor."""
        bundle = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.custom}
        if self.accelerator_type:
            bundle[f"accelerator_type:{self.accelerator_type}"] = 0.001
        return {name: amount for name, amount in bundle.items() if amount > 0}


class ReplicasConfig(Section):
    """How many copies of a tier run. With min == max the count is fixed, else it follows the load."""

    min: Annotated[int, Field(ge=0)] = Field(
        1, description="replicas that always run; 0 (not for the target): none while nobody wants drafts",
    )
    max: Positive = Field(1, description="replicas at most")
    initial: Annotated[int, Field(ge=0)] | None = Field(None, description="replicas at start; null: min, or 1")
    target_load: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7, description="share of max_sequences that a replica should carry; above it replicas are added",
    )
    target_kv: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="share of its KV pages that a replica should have in use; above it replicas are added",
    )
    max_starved: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="tiers below the target: share of the rounds that may go without them, or wait for them",
    )
    upscale_delay_s: Annotated[float, Field(ge=0)] = Field(10.0, description="load must last this long, s")
    downscale_delay_s: Annotated[float, Field(ge=0)] = Field(120.0, description="idleness must last so, s")
    zero_delay_s: Annotated[float, Field(ge=0)] | None = Field(
        None, description="before the last replica goes, no draft may have been wanted for so long; "
        "null: as downscale_delay_s, s",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} exceeds max {self.max}; raise max or lower min")
        if self.initial is not None and not self.min <= self.initial <= self.max:
            raise ValueError(f"initial {self.initial} lies outside min..max; choose {self.min} to {self.max}")
        if self.zero_delay_s is not None and self.min > 0:
            raise ValueError(f"zero_delay_s is set but min {self.min} keeps replicas running; set min: 0 or remove it")
        return self

    @property
    def vary(self) -> bool:
        """Whether the count follows the load."""
        return self.min < self.max


class EmulationConfig(Section):
    """A device that takes its time and computes nothing; `model` only says whose tokenizer it uses."""

    pass_s: Annotated[float, Field(ge=0)] = Field(description="a forward pass of up to flat_rows rows, s")
    flat_rows: Positive = Field(64, description="rows that cost nothing in addition")
    row_s: Annotated[float, Field(ge=0)] = Field(0.0, description="each row beyond flat_rows, s")
    hop_s: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="network: each call to this tier and each of its answers takes so much longer, s",
    )
    agreement: Annotated[tuple[float, ...] | None, BeforeValidator(_in_turn)] = Field(
        None, description="how often it says what the tier it follows says; tier 0 may give a list, by position in "
        "the draft; null: only for the target",
    )
    further_guesses: Annotated[tuple[float, ...] | None, BeforeValidator(_in_turn)] = Field(
        None, description="how often its second best token is right where the best is wrong, then its third best where "
        "both are, and so on; one number: the second best only; null: never",
    )
    follows: str | None = Field(None, description="name of the tier it is a copy of; null: the next one")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="another seed, other choices")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for value in self.agreement or ():
            if not 0 <= value <= 1:
                raise ValueError(f"agreement {value:g} lies outside 0 to 1; give a share, e.g. 0.85")
        if self.agreement == ():
            raise ValueError("agreement is an empty list; give a share, or one for each position")
        for value in self.further_guesses or ():
            if not 0 <= value <= 1:
                raise ValueError(f"further_guesses {value:g} lies outside 0 to 1; give shares, e.g. [0.5, 0.3]")
        if self.further_guesses is not None and len(self.further_guesses) >= _MAX_GUESSES:
            most = _MAX_GUESSES - 1
            raise ValueError(f"further_guesses has {len(self.further_guesses)} ranks; at most {most} are emulated")
        return self


class TierConfig(Section):
    """One model of the ladder; the last tier is the target, and decides every token."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", description="short name, for logs and metrics")
    model: str | None = Field(
        None, min_length=1, description="directory, GGUF file, hub id, builtin:smollm2, or random:SHAPE",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="activations and KV; the fused CPU pass keeps activations in float32 anyway",
    )
    weights: Literal["fp32", "bf16", "int8", "w8a8", "int4"] = Field(
        "fp32", description="what the linear layers hold; w8a8 and int4 are meant for drafts",
    )
    kv_dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = Field(
        None, description="what keys and values are stored as; null: as dtype",
    )
    kernels: Literal["native", "portable"] = Field(
        "native", description="on a CPU: in C, compiled at first use, or the framework's own",
    )
    reduction: Literal["fast", "fixed"] = Field(
        "fast", description="on a GPU: fixed makes a row independent of its neighbours, and is slower",
    )
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu or cuda")
    tensor_parallel_size: Positive | Literal["auto"] = Field(
        1, description='ranks that share the model; "auto": 2 on CPU with at least 2 cores, else 1',
    )
    drafter: DrafterConfig | None = Field(None, description="tier 0 only, when there is a tier above it")
    num_threads: Positive | None = Field(None, description="CPU threads per rank; null: PyTorch's choice")
    cores: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="CPU cores of its node that each actor keeps to, e.g. [0]; empty: all of them",
    )
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig, description="per actor")
    replicas: ReplicasConfig = Field(default_factory=ReplicasConfig, description="copies of this tier")
    kv_tokens: Positive = Field(65536, description="KV memory of a replica, tokens")
    page_tokens: Positive = Field(64, description="KV page, tokens")
    max_context_tokens: Positive | None = Field(None, description="longest sequence; null: the model's")
    max_batch_tokens: Annotated[int, Field(ge=2)] = Field(512, description="rows of one forward pass, tokens")
    gather_s: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="while others wait, a pass begins so much later, for the sequences that the last one "
        "answered: about two hops, where a pass costs about the same for few rows and for many, s",
    )
    prefill_tokens: Positive | None = Field(
        None, description="of these, for prompts while others decode: more serves prompts sooner and makes the "
        "others wait longer for each token; null: a quarter, tokens",
    )
    max_sequences: Positive = Field(64, description="sequences that a replica holds at once")
    window: Positive = Field(
        8, description="middle tiers: verified tokens collected before going up; inline tiers: also tier 0, tokens",
    )
    inline: bool = Field(
        False, description="run in the process of the next tier, with its replicas and resources: no hop between them",
    )
    idle_timeout_s: Seconds = Field(120.0, description="a sequence nobody calls for this long is freed, s")
    step_timeout_s: Seconds = Field(60.0, description="a tensor-parallel step longer than this is a hang, s")
    emulation: EmulationConfig | None = Field(
        None, description="emulate a device instead of running `model`, whose tokenizer alone is used then",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind = self.drafter.kind if self.drafter is not None else DEFAULT_KIND
        has_model = self.drafter is None or self.drafter.has_model
        if not has_model and self.model is not None:
            raise ValueError(f"drafter {kind} needs no model; remove `model` or set drafter.kind to {DEFAULT_KIND}")
        if has_model and self.model is None:
            raise ValueError("`model` is required; give a directory, a Hugging Face id or builtin:smollm2")
        if self.emulation is not None:
            if kind != DEFAULT_KIND:
                raise ValueError(f"drafter {kind} cannot be emulated; remove emulation or set drafter.kind to "
                                 f"{DEFAULT_KIND}")
            if isinstance(self.drafter, DraftModelConfig) and self.drafter.tokenizers != "same":
                raise ValueError("an emulated tier speaks the target's ids; remove drafter.tokenizers")
            if self.tensor_parallel_size != 1:
                raise ValueError("an emulated tier runs on one rank; set tensor_parallel_size: 1, and pass_s as short "
                                 "as the ranks together would be")
            if self.device != "cpu":
                raise ValueError("an emulated tier needs no GPU; set device: cpu")
        if (self.model or "").startswith(EMULATED):
            raise ValueError(f"model {self.model!r} is the name of an emulated device; give the model itself and an "
                             "`emulation` section")
        if self.page_tokens & (self.page_tokens - 1):
            raise ValueError(f"page_tokens {self.page_tokens} is not a power of two; use 16, 32, 64, ...")
        if self.kv_tokens % self.page_tokens:
            raise ValueError(f"kv_tokens {self.kv_tokens} is not a multiple of page_tokens; use "
                             f"{-(-self.kv_tokens // self.page_tokens) * self.page_tokens}")
        if self.max_context_tokens is not None and self.max_context_tokens > self.kv_tokens:
            raise ValueError(f"max_context_tokens {self.max_context_tokens} exceeds kv_tokens "
                             f"{self.kv_tokens}; raise kv_tokens")
        if self.prefill_tokens is not None and self.prefill_tokens >= self.max_batch_tokens:
            raise ValueError(f"prefill_tokens {self.prefill_tokens} leaves no row of max_batch_tokens "
                             f"{self.max_batch_tokens} to decode; lower it")
        if self.kernels == "portable" and self.device == "cpu":
            if self.weights in ("w8a8", "int4"):
                raise ValueError(f"weights {self.weights} needs kernels: native; use fp32, bf16 or int8")
            if self.kv_dtype == "int8":
                raise ValueError("kv_dtype int8 needs kernels: native; use float32 or bfloat16")
        if self.kernels == "native" and self.device == "cpu" and (self.kv_dtype or self.dtype) == "float16":
            raise ValueError("float16 keys and values need kernels: portable; use float32, bfloat16 or int8")
        if self.device.startswith("cuda") and self.resources.num_gpus == 0 and not self.inline:
            raise ValueError("device cuda without GPUs; set resources.num_gpus, e.g. 1 or 0.5")
        if len(set(self.cores)) < len(self.cores):
            raise ValueError(f"cores {list(self.cores)} names a core twice; name each once")
        if self.device == "cpu" and self.resources.num_gpus > 0 and not self.inline:
            raise ValueError("resources.num_gpus is set but device is cpu; set device: cuda or num_gpus: 0")
        return self

    @property
    def num_ranks(self) -> int:
        """`tensor_parallel_size` with "auto" resolved on this machine."""
        if self.tensor_parallel_size != "auto":
            return self.tensor_parallel_size
        return 2 if self.device == "cpu" and (os.cpu_count() or 1) >= 2 else 1

    @property
    def label(self) -> str | None:
        """What it runs, as people read it: an emulated device is never taken for the model it is named after."""
        return self.model if self.emulation is None else f"{EMULATED}{self.model}"

    def model_spec(self, tier: int, default_model: str, emulation: EmulationSpec | None = None) -> ModelSpec:
        """What this tier's actors need to load and run it; `default_model` serves a drafter without one."""
        return ModelSpec(
            tier=tier, model=self.label or default_model, emulation=emulation, dtype=self.dtype, weights=self.weights,
            kv_dtype=self.kv_dtype, kernels=self.kernels, reduction=self.reduction, device=self.device,
            tensor_parallel_size=self.num_ranks, num_threads=self.num_threads,
            cores=self.cores, kv_tokens=self.kv_tokens, page_tokens=self.page_tokens,
            max_context_tokens=self.max_context_tokens,
            max_batch_tokens=self.max_batch_tokens, prefill_tokens=self.prefill_tokens, gather_s=self.gather_s,
            max_sequences=self.max_sequences,
            idle_timeout_s=self.idle_timeout_s, step_timeout_s=self.step_timeout_s,
        )


class OverlapConfig(Section):
    """Drafting for the outcomes of the target's pass while it is under way; for ladders of two pools."""

    branches: Annotated[int, Field(ge=1, le=256)] = Field(16, description="outcomes drafted for at most")
    guesses: Positive = Field(2, description="of these, for one number of accepted tokens")
    tokens: Positive = Field(8, description="drafted for each outcome, if lookahead is a number, tokens")
    siblings: Annotated[int, Field(ge=0, le=8)] = Field(0, description="tokens beside each of these, as in tree")


class TreeConfig(Section):
    """Drafts that branch."""

    widths: tuple[Positive, ...] = Field((), description="a static tree: children per node of each level")
    nodes: Annotated[int, Field(ge=0, le=512)] = Field(0, description="a dynamic tree: its size, tokens")
    siblings: Annotated[int, Field(ge=0, le=8)] = Field(
        0, description="a comb: a chain, and beside each of its tokens so many that were next best",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(map(bool, (self.widths, self.nodes, self.siblings))) != 1:
            raise ValueError("a tree is static, dynamic or a comb; give either widths, e.g. [3, 2, 1], or nodes, "
                             "e.g. 16, or siblings, e.g. 1")
        return self


class SpeculationConfig(Section):
    """How far and how the draft tiers ride ahead."""

    enabled: bool = Field(True, description="false: the target alone, for comparison")
    lookahead: Positive | Literal["auto"] = Field(
        4, description='draft tokens asked for (k); "auto": by measured goodput, down to none, tokens',
    )
    overlap: OverlapConfig | None = Field(None, description="draft while the target verifies; null: take turns")
    tree: TreeConfig | None = Field(None, description="null: drafts are chains")
    max_lookahead: Positive = Field(16, description="upper bound of k, tokens")
    draft_timeout_s: Seconds = Field(2.0, description="a round goes on plain after waiting this long, s")
    plain_tokens: Positive = Field(
        4, description="where 8 requests or more run and nobody drafts, the target sends so many tokens at once; 1: "
        "each as soon as it is there, tokens",
    )
    law_support: Annotated[int, Field(ge=0)] = Field(64, description="drafts are drawn from top-m; 0: all")
    block_verification: bool = Field(True, description="unseeded sampling: judge blocks, not single tokens")
    lossy: LossyConfig | None = Field(
        None, description="lets requests ask for text that is not exactly the target's; null: every text is exact",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lookahead != "auto" and self.lookahead > self.max_lookahead:
            raise ValueError(f"lookahead {self.lookahead} exceeds max_lookahead {self.max_lookahead}")
        return self


class SamplingConfig(Section):
    """What a request gets when it does not say."""

    temperature: Annotated[float, Field(ge=0, le=5)] = Field(0.0, description="0: greedy")
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="0: off, tokens")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="1: off")
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="0: off")
    max_tokens: Positive = Field(256, description="new tokens of a request, tokens")


class LimitsConfig(Section):
    """What one request may ask for, and how many may wait."""

    max_prompt_tokens: Positive = Field(8192, description="longest prompt, tokens")
    max_tokens: Positive = Field(4096, description="most new tokens of a request, tokens")
    max_concurrent_requests: Positive = Field(64, description="generating at once, per ingress replica")
    max_queued_requests: Annotated[int, Field(ge=0)] = Field(128, description="requests waiting their turn")
    queue_timeout_s: Seconds = Field(30.0, description="longest wait for a place, here or at full replicas, s")
    max_stop_strings: Annotated[int, Field(ge=0)] = Field(16, description="stop strings of a request")
    request_timeout_s: Seconds = Field(600.0, description="longest life of a request, s")
    silence_timeout_s: Seconds = Field(
        15.0, description="a replica that does not even answer a ping for so long while it has work is lost, s",
    )
    lease_timeout_s: Seconds = Field(180.0, description="longest wait for a replica, a rebuild included, s")


class ServerConfig(Section):
    """Where the service listens."""

    host: str = Field("127.0.0.1", description="address of the gRPC and HTTP ports")
    grpc_port: Annotated[int, Field(ge=1, le=65535)] = Field(9000, description="gRPC")
    http_port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="HTTP: OpenAI's API, health")
    tls: TlsConfig | None = Field(None, description="encrypts both ports; null: plaintext")
    max_message_bytes: Annotated[int, Field(ge=65536, le=2**31 - 1)] = Field(
        4 * 1024 * 1024, description="largest gRPC message; on a cluster its nodes have it in "
        "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE, bytes",
    )
    num_replicas: Positive = Field(1, description="copies of the ingress")
    num_cpus: Share = Field(0.1, description="logical CPUs of an ingress replica")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.grpc_port == self.http_port:
            raise ValueError(f"grpc_port and http_port are both {self.grpc_port}; choose another http_port")
        return self


class Config(Section):
    """All settings of one service."""

    model_name: str = Field("outrider", min_length=1, description="the name that clients ask for")
    tiers: tuple[TierConfig, ...] = Field(min_length=1, description="small to target; one alone: plain")
    speculation: SpeculationConfig = Field(default_factory=SpeculationConfig, description="drafting")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="defaults of a request")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="what is refused")
    server: ServerConfig = Field(default_factory=ServerConfig, description="ports")
    auth: AuthConfig | None = Field(None, description="tokens that requests must bring; null: everybody may send them")
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig, description="traces and metrics")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="logs")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [tier.name for tier in self.tiers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tiers: two tiers are named {name!r}; give each its own name")
        for index, tier in enumerate(self.tiers):
            if tier.drafter is not None and index > 0:
                raise ValueError(f"tiers.{index}.drafter: only tier 0 drafts; remove it")
            if tier.replicas.min == 0 and index == len(self.tiers) - 1:
                raise ValueError(f"tiers.{index}.replicas.min: the target decides every token, so one must run; set "
                                 "min: 1 or more (only tiers below it may go to none)")
            if index == 0 and len(self.tiers) > 1 and tier.num_ranks > 1:
                raise ValueError("tiers.0.tensor_parallel_size: a drafting tier runs on one rank; use 1")
        check_features(self.tiers)
        check_runs_above(self.tiers)
        check_longest(self.tiers[0].drafter, self.speculation)
        check_emulation(self.tiers)
        check_inline(self.tiers)
        if len(self.tiers) == 1 and self.tiers[0].drafter is not None:
            raise ValueError("tiers.0.drafter: a single tier has nobody to draft for; add the target "
                             "tier or remove drafter")
        if self.sampling.max_tokens > self.limits.max_tokens:
            raise ValueError(f"sampling.max_tokens: {self.sampling.max_tokens} exceeds limits.max_tokens "
                             f"{self.limits.max_tokens}; lower it")
        check_ahead(self)
        check_lossy(self)
        return self

    @property
    def target(self) -> TierConfig:
        """The tier that decides."""
        return self.tiers[-1]

    @property
    def watch(self) -> WatchSpec:
        """How every process is watched."""
        return watch_spec(self.telemetry, self.logging)

    @property
    def processes(self) -> tuple[tuple[int, ...], ...]:
        """The tiers of each process, small to target: one pool each, known by its last tier."""
        return processes(self.tiers)

    @property
    def target_drafts(self) -> bool:
        """Whether all lower tiers run in the target's process, so that it drafts for itself."""
        return len(self.processes) == 1 and len(self.tiers) > 1

    @property
    def sends_features(self) -> bool:
        """Whether tier 0 drafts from the target's features in a pool of its own."""
        drafter = self.tiers[0].drafter
        return len(self.processes) > 1 and not self.tiers[0].inline and bool(drafter and drafter.feature_layers)

    @property
    def feature_window(self) -> int:
        """Positions before the newest token whose features tier 0 reads; 0: all."""
        drafter = self.tiers[0].drafter
        return 0 if drafter is None else drafter.feature_window

    def inline_tiers(self, index: int) -> tuple[InlineTier, ...]:
        """The tiers that run in the process of tier `index`, the last of its process; smallest first."""
        below = next(shared[:-1] for shared in self.processes if shared[-1] == index)
        specs, drafter = self.model_specs(), self.drafter_spec()
        return tuple(InlineTier(specs[i], self.tiers[i].window, drafter if i == 0 else None) for i in below)

    def model_specs(self) -> tuple[ModelSpec, ...]:
        """One spec per tier, small to target."""
        above = self.tiers[min(1, len(self.tiers) - 1)]  # of tier 0: a head drafts for it, and reads its features
        drafter = self.tiers[0].drafter
        specs = [
            tier.model_spec(index, above.label or "", emulation_spec(self.tiers, index))
            for index, tier in enumerate(self.tiers)
        ]
        if drafter is not None and drafter.feature_layers:
            specs[1] = replace(specs[1], feature_layers=drafter.feature_layers)
        return tuple(specs)

    def drafter_spec(self) -> DrafterSpec | None:
        """How tier 0 proposes; None when there is only the target."""
        if len(self.tiers) == 1:
            return None
        spec = (self.tiers[0].drafter or DraftModelConfig()).spec(self.speculation.law_support)
        if isinstance(spec, DraftModelSpec) and spec.tokenizers != "same":
            return replace(spec, target=self.tiers[1].model or "")
        return spec


def load_config(
    source: str | os.PathLike[str] | dict[str, object], environ: dict[str, str] | None = None,
    on_note: Callable[[str], None] = logger.info,
) -> Config:
    """Settings from a preset name, a YAML file or a mapping, overridden by OUTRIDER_* variables.

    A vLLM configuration file will do: `on_note` is told what became of each of its keys. Raises `ConfigError` with one
    line per mistake.
    """

    def translate(data: dict[str, Any]) -> dict[str, Any]:
        if not is_vllm(data):
            return data
        ours, notes = from_vllm(data)
        for note in notes:
            on_note(note)
        return ours

    return validate(Config, load_mapping(source, dict(os.environ) if environ is None else environ, Config, translate))
