"""The Serve deployment that clients reach: checks, admits, generates, and answers in text."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors import logs
from actors.garbage import settle
from actors.grammar.vocabulary import know, pieces_of
from actors.loading.tokenizer import explain_mismatch, load_tokenizer
from actors.messages import ReplicaInfo
from actors.spec import EMULATED
from cluster.config import Config, ConfigError
from cluster.config_auth import make_guard
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason, Usage
from cluster.edge.haproxy import BINARY, CERT, KEY
from cluster.ingress.admission import Admission
from cluster.ingress.auth import authorization_of
from cluster.ingress.calls import CallLog, timed
from cluster.ingress.checks import InvalidRequest, RequestLimits
from cluster.ingress.convert import IngressRequest, RequestDefaults, from_pb
from cluster.ingress.errors import StatusContext, set_status
from cluster.ingress.failed import RequestFailed
from cluster.ingress.grammars import Grammars, check_grammar
from cluster.ingress.http.app import http_app
from cluster.ingress.http.backend import Backend, Endpoint
from cluster.ingress.outflow import Outflow
from cluster.ingress.replies import chunk_to_pb, finish_to_pb, merged, response_to_pb, tokens_to_pb
from cluster.ingress.servicer import Unreadable
from cluster.ingress.speculation import COLD_LOOKAHEAD, controller, coordinator_settings
from cluster.ingress.status import PoolsStatus
from cluster.ingress.tokenizing import TextCodec
from cluster.prefixes import LocalPrefixes, SharedPrefixes
from cluster.rpc import outrider_pb2 as pb
from cluster.running import running
from cluster.scaling.reports import of_ingress
from cluster.telemetry.prometheus import CONTENT_TYPE
from cluster.telemetry.watch import IngressWatch, Metadata, WatchedRequest
from cluster.tiers import RayTier

logger = logging.getLogger(__name__)


class TokenizersDiffer(ValueError):
    """The tiers do not mean the same by the same token ids."""


class CallContext(StatusContext, Protocol):
    """What is needed of Serve's `grpc_context`."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]: ...


class Ingress:
    """gRPC methods of `outrider.v1.Outrider`, and HTTP over the same generations (with `serve.ingress`)."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: Config, pools: Sequence[DeploymentHandle[Any]], directory: DeploymentHandle[Any] | None = None,
        board: DeploymentHandle[Any] | None = None,
    ) -> None:
        """Wait for every tier, check that their tokenizers agree, load the target's.

        `directory` is what several ingress replicas share of which pool replica knows which prefix, `board` where
        they put their metrics.
        """
        self._config = config
        tag = serve.get_replica_context().replica_tag
        logs.configure(config.watch, component="ingress", replica=tag)
        self._guard = make_guard(config.auth)  # before the models are waited for: a mistake shows at once
        require_front(config)
        if directory is not None:
            await directory.shares.remote([])  # a handle's first call takes longer than a request may wait
        infos: list[ReplicaInfo] = list(await asyncio.gather(*(pool.info.remote() for pool in pools)))
        check_tokenizers(config, infos)
        target = infos[-1]
        tokenizer = await asyncio.to_thread(load_tokenizer, target.model)
        self._codec = TextCodec(tokenizer)
        know(target.tokenizer_fingerprint, lambda: pieces_of(tokenizer))
        self._limits = RequestLimits(
            max_context_tokens=target.max_context_tokens, max_tokens=config.limits.max_tokens,
            max_prompt_tokens=config.limits.max_prompt_tokens, max_lookahead=config.speculation.max_lookahead,
            max_stop_strings=config.limits.max_stop_strings,
        )
        lossy = config.speculation.lossy
        announce_lossy(config)
        self._defaults = RequestDefaults(
            eos_ids=target.eos_ids, block_verification=config.speculation.block_verification,
            grammars=Grammars(target.eos_ids, target.tokenizer_fingerprint, target.model),
            lossy=None if lossy is None else lossy.settings(), lossy_by_default=lossy is not None and lossy.by_default,
            **config.sampling.model_dump(),
        )
        limits = config.limits
        self._admission = Admission(limits.max_concurrent_requests, limits.max_queued_requests, limits.queue_timeout_s)
        prefixes = LocalPrefixes() if directory is None else SharedPrefixes(directory)
        used = slice(None) if config.speculation.enabled else slice(-1, None)
        self._lookahead = _lookahead(config)
        self._first_pool = 0 if config.speculation.enabled else len(pools) - 1
        tiers = [
            RayTier(
                pool, limits.lease_timeout_s, full_timeout_s=limits.queue_timeout_s, prefixes=prefixes,
                silence_s=limits.silence_timeout_s, running=running(pool.app_name, pool.deployment_name),
                may_sleep=config.tiers[shared[-1]].replicas.min == 0,
                spreads=shared[-1] < len(config.tiers) - 1,  # a target's prefill costs more than a crowd
            )
            for pool, shared in zip(pools[used], config.processes[used], strict=True)
        ]
        self._tiers = tiers
        self._ladder = Ladder(
            tiers=tiers, is_asleep=lambda index: tiers[index].asleep,
            windows=[config.tiers[shared[-1]].window for shared in config.processes[used][1:-1]],
            settings=coordinator_settings(config), controller=controller(config, len(pools[used])),
            target_drafts=config.target_drafts,
            sends_features=config.speculation.enabled and config.sends_features,
            feature_window=config.feature_window,
        )
        self._status = PoolsStatus(config, pools, self._load)
        self._watch = IngressWatch(config, tag, self._admission, pools, board)
        self._watch.start()
        settle()

    async def Generate(self, request: pb.GenerateRequest, grpc_context: CallContext) -> pb.GenerateResponse:
        """A whole completion."""
        try:
            async with aclosing(self._chunks(request, grpc_context.invocation_metadata())) as stream:
                chunks = [chunk async for chunk in stream]
        except Exception as error:  # every failure becomes a status; a cancellation passes through
            _fail(grpc_context, error)
        return response_to_pb(chunks[-1].request_id, chunks)

    async def GenerateStream(
        self, request: pb.GenerateRequest, grpc_context: CallContext,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """A completion, piece by piece."""
        try:
            chunks = self._chunks(request, grpc_context.invocation_metadata())
            async with aclosing(Outflow(chunks, merged).items()) as stream:
                async for chunk in stream:
                    yield chunk
        except Exception as error:  # as above
            _fail(grpc_context, error)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, grpc_context: CallContext,
    ) -> pb.GetModelInfoResponse:
        """What is served."""
        try:
            with self._guard.admitted(authorization_of(grpc_context.invocation_metadata())):
                _check_readable(request)
                return self._model_info()
        except Exception as error:  # as above
            _fail(grpc_context, error)

    def _model_info(self) -> pb.GetModelInfoResponse:
        config, limits = self._config, self._limits
        return pb.GetModelInfoResponse(
            model=config.model_name, vocab_size=self._codec.vocab_size, version=_version(),
            lossy_policy=None if self._defaults.lossy is None else self._defaults.lossy.policy,
            lossy_by_default=self._defaults.lossy_by_default,
            tiers=[_tier_to_pb(config, index) for index in range(len(config.tiers))],
            limits=pb.Limits(
                max_context_tokens=limits.max_context_tokens, max_prompt_tokens=config.limits.max_prompt_tokens,
                max_tokens=limits.max_tokens,
                default_max_tokens=self._defaults.max_tokens,
                default_lookahead_tokens=COLD_LOOKAHEAD if self._lookahead is None else self._lookahead,
                max_lookahead_tokens=limits.max_lookahead,
            ),
        )

    def __serve_build_asgi_app__(self) -> Starlette:
        """Called by Serve after the constructor."""
        backend = Backend(
            model=self._config.model_name, version=_version(), max_context_tokens=self._limits.max_context_tokens,
            codec=self._codec, admitted=self._caller, chunks=self._admitted, load=self._load,
            watched=self._timed, status=self._status.read,
        )
        return http_app(backend, [Route("/metrics", Endpoint(backend, self._metrics), methods=["GET"])])

    async def _metrics(self, request: Request, caller: str | None) -> Response:
        """Of the whole service, as Prometheus reads them."""
        return Response(await self._watch.exposition(), media_type=CONTENT_TYPE)

    def _load(self) -> dict[str, object]:
        """How busy this replica is."""
        return {"running": self._admission.num_running, "waiting": self._admission.num_waiting}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve passes on to the pools' autoscaling policies."""
        waiting = {self._first_pool + index: tier.num_waiting for index, tier in enumerate(self._tiers)}
        return of_ingress(self._ladder.demand, waiting)

    def _caller(self, authorization: str | bytes | None) -> AbstractContextManager[str | None]:
        """As `Guard.admitted`; who is turned away is counted."""
        return self._watch.guarded(self._guard.admitted(authorization))

    async def _chunks(
        self, request: pb.GenerateRequest, metadata: Metadata
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The stream, once the caller is known, the request found good, and its turn come. Cancelling frees everything.

        `metadata`: who calls (`cluster.ingress.auth`), and the trace that this is part of.
        """
        with self._caller(authorization_of(metadata)) as caller:
            async with aclosing(self._admitted(request, caller, metadata)) as stream:
                async for chunk in stream:
                    yield chunk

    def _timed(
        self, request: pb.GenerateRequest, caller: str | None, headers: Metadata, log: CallLog
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The stream of a caller who may have it, the times of whose calls `log` gets."""
        return self._admitted(request, caller, headers, log)

    async def _admitted(
        self, request: pb.GenerateRequest, caller: str | None, metadata: Metadata = (), log: CallLog | None = None,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The stream of a caller who may have it. `metadata`, or headers in lower case, as above."""
        with self._watch.request(metadata) as watched:
            async with aclosing(self._watched(request, caller, watched, log)) as stream:
                async for chunk in stream:
                    yield chunk

    async def _watched(
        self, request: pb.GenerateRequest, caller: str | None, watched: WatchedRequest, log: CallLog | None,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The same, with whatever watches it."""
        began = time.monotonic()
        deadline = began + self._config.limits.request_timeout_s
        _check_readable(request)
        checked = from_pb(request, self._codec, self._limits, self._defaults)
        await check_grammar(checked.sampling.grammar)
        watched.taken(checked, request)
        try:
            async with (
                watched.turn(self._admission.slot()),
                aclosing(self._generated(checked, watched, deadline, log)) as stream,
            ):
                async for chunk in stream:
                    watched.shown(chunk)
                    yield chunk
        except Exception as error:
            watched.failed(error)
            raise
        finally:
            _log(checked, caller, watched, time.monotonic() - began)

    async def _generated(
        self, checked: IngressRequest, watched: WatchedRequest, deadline: float, log: CallLog | None,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """Chunks of one admitted request, the last one with its finish."""
        text = checked.text_stream(self._codec)
        generation, lossy = checked.generation(self._lookahead, deadline), checked.sampling.lossy
        ladder = watched.ladder(self._ladder)
        if log is not None:
            ladder = timed(ladder, log)
        async with aclosing(generate(generation, ladder, figures=watched.figures)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    rest = text.finish().text  # what was held back; it may complete a stop string
                    yield chunk_to_pb(checked.request_id, rest, finish=finish_to_pb(event, text.stop, lossy))
                    return
                watched.committed(len(event.token_ids))
                piece = text.push(event.token_ids.tolist())
                tokens = tokens_to_pb(event, piece.num_tokens)
                if piece.stop is None:
                    yield chunk_to_pb(checked.request_id, piece.text, tokens)
                    continue
                break  # the coordinator knows no text: it is stopped here
        found = watched.figures.snapshot()
        num_cached = found.cached_by_tier.get(len(ladder.tiers) - 1, 0)
        finish = Finish(FinishReason.STOP, Usage(len(checked.prompt_ids), text.num_tokens, num_cached), found)
        yield chunk_to_pb(checked.request_id, piece.text, tokens, finish_to_pb(finish, piece.stop, lossy))


def require_front(config: Config) -> None:
    """Raises `ConfigError` when TLS is set, but nothing in front of this node was told to do it."""
    if config.server.tls is not None and not os.environ.get(CERT):
        line = (f"server.tls: this node's HAProxy does no TLS; set {CERT}, {KEY} and {BINARY}=.../outrider-haproxy in "
                "the environment of all nodes, as deploy/kustomize/components/tls does")
        raise ConfigError([line])


def announce_lossy(config: Config) -> None:
    """Say once, at start, that text may be other than the target's."""
    lossy = config.speculation.lossy
    if lossy is not None:
        whom = "requests that do not ask for exact text" if lossy.by_default else "requests that ask for it"
        logger.warning("lossy policy %s is on for %s: their text is not exactly the target's", lossy.policy, whom)


def check_tokenizers(config: Config, infos: list[ReplicaInfo]) -> None:
    """Raises `TokenizersDiffer`: a draft in other ids than the target's would be noise."""
    for shared, info in zip(config.processes, infos, strict=True):  # inline tiers were compared when they were loaded
        tier = config.tiers[shared[-1]]
        # A drafter without a model has no fingerprint: it repeats ids of the text, whatever they mean.
        if info.tokenizer_fingerprint and info.tokenizer_fingerprint != infos[-1].tokenizer_fingerprint:
            reason = explain_mismatch(load_tokenizer(info.model), load_tokenizer(infos[-1].model))
            raise TokenizersDiffer(
                f"tier {tier.name!r} ({info.model}) and target {config.target.name!r} ({infos[-1].model}) have "
                f"different tokenizers: {reason} Choose a draft model of the target's family"
                + (", or set drafter.tokenizers to intersection or text" if shared == (0,) else "")
            )


def _check_readable(request: object) -> None:
    if isinstance(request, Unreadable):
        raise InvalidRequest(
            "the message cannot be read: send one of the package outrider.v1, with text in UTF-8 and its fields whole"
        )


def _fail(context: StatusContext, error: Exception) -> NoReturn:
    """Set the status, log what the client must not see, and end the call."""
    status = set_status(context, error)
    if status.code.name == "INTERNAL":
        logger.error("request failed", exc_info=error)
    raise RequestFailed(f"{status.code.name}: {status.details}") from None


def _log(checked: IngressRequest, caller: str | None, watched: WatchedRequest, wall_s: float) -> None:
    """One record per request; never any of its text or ids."""
    found = watched.figures.snapshot()
    logger.info("request ended: %s", watched.outcome, extra={
        "request_id": checked.sequence_id, "caller": caller, "outcome": watched.outcome, "wall_s": round(wall_s, 4),
        "num_prompt_tokens": len(checked.prompt_ids), "num_committed": found.committed,
        "rounds": found.rounds, "num_drafted": found.drafted, "num_accepted": found.accepted,
        "lease_moves": found.lease_moves,
        "num_relaxed": found.relaxed,
        "lossy": None if checked.sampling.lossy is None else checked.sampling.lossy.policy,
    })


def _tier_to_pb(config: Config, index: int) -> pb.TierInfo:
    tier, spec, drafter = config.tiers[index], config.model_specs()[index], config.drafter_spec()
    is_target = index == len(config.tiers) - 1
    kind = "target" if is_target else drafter.kind if drafter is not None and index == 0 else "model"
    has_model = index > 0 or drafter is None or drafter.has_model
    return pb.TierInfo(
        name=tier.name, kind=kind, tensor_parallel_size=spec.tensor_parallel_size, dtype=spec.dtype,
        weights=spec.weights, model=_public_name(spec.model) if has_model else "",
    )


def _lookahead(config: Config) -> int | None:
    """What a request gets that asks for nothing; None: what the controller finds best."""
    speculation = config.speculation
    if not speculation.enabled:
        return 0
    if speculation.lookahead == "auto":
        return None if len(config.processes) > 1 else COLD_LOOKAHEAD
    return speculation.lookahead


def _public_name(model: str) -> str:
    """A directory's place on the server is nobody's business."""
    if model.startswith(EMULATED):
        return EMULATED + _public_name(model.removeprefix(EMULATED))
    return Path(model).name if Path(model).is_absolute() or model.startswith(".") else model


def _version() -> str:
    try:
        return importlib.metadata.version("outrider")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
