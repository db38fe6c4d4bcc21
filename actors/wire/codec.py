"""Messages as bytes: msgpack of their fields in order, arrays as typed binary. Nothing in it can run code.

Both ends must have the same classes and kinds of messages; `SCHEMA` names them, and is compared when they connect.

A grammar may be long, and every call names it: it travels whole with calls that tell a sequence from its beginning,
with others by its digest. An actor that has forgotten it is told the whole sequence again, as when it lacks a prefix.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import msgpack
import numpy as np

from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.known import UnknownGrammar, known_grammar, learn_grammar
from actors.messages import (
    AheadPlan,
    Branch,
    Context,
    Draft,
    DraftShape,
    Enumeration,
    Features,
    Ids,
    Laws,
    Origin,
    TokenLogprobs,
    Verdict,
)
from actors.sampling.params import SamplingParams
from actors.sampling.policies import POLICIES, LossyPolicy
from actors.wire.checked import Unreadable, check_draft, check_enumeration
from actors.wire.frames import Kind

Message = TypeVar("Message")

_DTYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "<f4", "<f8"))
_HALF = np.dtype("<f2")
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_WIRE_CLASSES: tuple[type[Any], ...] = (
    Context, SamplingParams, Grammar, Draft, DraftShape, AheadPlan, Branch, Enumeration, Laws, Verdict, TokenLogprobs,
    Features, *POLICIES.values(),
)


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


_LOSSY = _names(SamplingParams).index("lossy")
_GRAMMAR = _names(SamplingParams).index("grammar")
_SAMPLING = _names(Context).index("sampling")
_FIELDS = {cls: attrgetter(*_names(cls)) for cls in _WIRE_CLASSES}


def schema(classes: Sequence[type[Any]], kinds: Sequence[Kind]) -> bytes:
    """Digest of what travels: the fields of `classes`, and the `kinds` of messages."""
    parts = (
        [(cls.__name__, _names(cls)) for cls in classes], [str(dtype) for dtype in _DTYPES],
        [(kind.name, kind.value) for kind in kinds],
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


SCHEMA = schema(_WIRE_CLASSES, tuple(Kind))


def encode_propose(context: Context, shape: DraftShape) -> bytes:
    """The payload of a proposal."""
    return _pack((context, shape), context.features)


def decode_propose(payload: bytes) -> tuple[Context, DraftShape]:
    """(context, shape). Raises `UnknownGrammar`, as do all that decode a context."""
    context, shape = _unpack(payload)
    return _context(context), DraftShape(*shape)


def encode_ahead(context: Context, draft: bytes, verify_round: int, plan: AheadPlan) -> bytes:
    """The payload of a call for an enumeration; the draft as the actor sent it."""
    return _pack((context, draft, verify_round, plan), context.features)


def decode_ahead(payload: bytes) -> tuple[Context, Draft, int, AheadPlan]:
    """(context, draft, verify_round, plan). Raises `Unreadable` for the draft."""
    context, draft, verify_round, plan = _unpack(payload)
    return _context(context), decode_draft(draft), verify_round, _plan(plan)


def encode_verify_ahead(sequence_id: str, round: int, enumeration: bytes) -> bytes:
    """The payload of a verify pass over whichever branch turns out to fit; the enumeration as the actor sent it."""
    return _pack((sequence_id, round, enumeration))


def decode_verify_ahead(payload: bytes) -> tuple[str, int, Enumeration]:
    """(sequence_id, round, enumeration). Raises `Unreadable` for the enumeration."""
    sequence_id, round, enumeration = _unpack(payload)
    return sequence_id, round, decode_enumeration(enumeration)


def encode_verify(context: Context, drafts: Sequence[bytes] | None, want_laws: bool) -> bytes:
    """The payload of a verify pass; drafts as `encode` made them, here or in the actor that drafted them.

    None: there will be one, which is under way and follows as a message of its own.
    """
    return _pack((context, want_laws, drafts))


def decode_verify(payload: bytes) -> tuple[Context, list[Draft] | None, bool]:
    """(context, drafts, want_laws); of the drafts, those that can be read (`readable`); None: one follows."""
    context, want_laws, drafts = _unpack(payload)
    return _context(context), None if drafts is None else readable(drafts), want_laws


def encode_step(context: Context, shape: DraftShape, drafts: Sequence[bytes] = ()) -> bytes:
    """The payload of a draft by inline tiers after `drafts`, and its verify pass."""
    return _pack((context, shape, tuple(drafts)))


def decode_step(payload: bytes) -> tuple[Context, DraftShape, list[Draft]]:
    """(context, shape, drafts); of the drafts, those that can be read (`readable`)."""
    context, shape, drafts = _unpack(payload)
    return _context(context), DraftShape(*shape), readable(drafts)


def readable(payloads: Sequence[bytes]) -> list[Draft]:
    """The drafts up to the first that cannot be read, in whose place an empty one says so: no other follows it."""
    drafts: list[Draft] = []
    for payload in payloads:
        try:
            drafts.append(decode_draft(payload))
        except Unreadable as error:
            return [*drafts, Draft(np.empty(0, np.int32), error=f"{error}")]
    return drafts


def encode_close(sequence_id: str, held: Ids | None) -> bytes:
    """The payload of a close; `held`: the committed tokens, if they are known."""
    return _pack((sequence_id, held))


def decode_close(payload: bytes) -> tuple[str, Ids | None]:
    """(sequence_id, held)."""
    sequence_id, held = _unpack(payload)
    return sequence_id, held


def encode(message: Draft | Verdict | Enumeration) -> bytes:
    """One message. Raises TypeError for an array that is not one-dimensional or of another type than tokens have."""
    return _pack(message, message.features if isinstance(message, Verdict) else None)


def decode_draft(payload: bytes) -> Draft:
    """What `encode` made of a draft; its arrays are read-only. Raises `Unreadable`."""
    return check_draft(_decoded(_draft, payload))


def decode_enumeration(payload: bytes) -> Enumeration:
    """What `encode` made of an enumeration; its arrays are read-only. Raises `Unreadable`."""
    return check_enumeration(_decoded(_enumeration, payload))


def decode_verdict(payload: bytes) -> Verdict:
    """What `encode` made of a verdict; its arrays are read-only. Raises `Unreadable`."""
    return _decoded(_verdict, payload)


def _decoded(decode: Callable[[Any], Message], payload: bytes) -> Message:
    try:
        return decode(_unpack(payload))
    except Exception as error:  # whichever of the many that wrong bytes may lead to
        raise Unreadable(f"{len(payload)} bytes are no message ({type(error).__name__})") from error


def _pack(value: object, features: Features | None = None) -> bytes:
    """`features`: those in `value`, if any, which are so large that the packer would keep their room for good."""
    packed: bytes = _packers.packer.pack(value) if features is None else msgpack.packb(value, default=_default)
    return packed


def _unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, use_list=False, ext_hook=_array, strict_map_key=False)


def _default(value: object) -> object:
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype not in _CODES:
            raise TypeError(f"an array of shape {value.shape} and type {value.dtype} does not travel")
        return msgpack.ExtType(_CODES[value.dtype], value.tobytes())
    if isinstance(value, Features):
        return _features_parts(value)
    if isinstance(value, Context):
        parts = list(_FIELDS[Context](value))
        parts[_SAMPLING] = _sampling_bytes(value.sampling, value.start == 0 or value.sampling.grammar is None)
        return parts
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, LossyPolicy):
        return value.policy, *_FIELDS[type(value)](value)
    if (values := _FIELDS.get(type(value))) is None:
        raise TypeError(f"a {type(value).__name__} does not travel")
    return values(value)


class _Packers(threading.local):
    """One for each thread: to make one takes as long as to pack a message. Not to be used while it packs."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(default=_default)


_packers = _Packers()


def _features_parts(features: Features) -> tuple[int, int, memoryview]:
    """First position, width, and the rows' own bytes: they are by far the largest of what travels."""
    rows = features.rows
    if rows.ndim != 2 or rows.dtype != np.float16:
        raise TypeError(f"features of shape {rows.shape} and type {rows.dtype} do not travel")
    rows = np.ascontiguousarray(rows, _HALF)
    return int(features.start), rows.shape[1], rows.reshape(-1).view(np.uint8).data


def _features(parts: tuple[int, int, bytes]) -> Features:
    start, width, data = parts
    return Features(start, np.frombuffer(data, _HALF).reshape(-1, width) if width else np.empty((0, 0), np.float16))


def _array(code: int, data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, _DTYPES[code])


# Every call of a sequence carries the same settings: they are encoded, and decoded, once.
@functools.lru_cache(maxsize=1024)
def _sampling_bytes(params: SamplingParams, is_whole: bool) -> bytes:
    values = list(_FIELDS[SamplingParams](params))
    if params.grammar is not None:
        values[_GRAMMAR] = _FIELDS[Grammar](params.grammar) if is_whole else params.grammar.digest
    packed: bytes = msgpack.packb(values, default=_default)  # `_pack` is under way
    return packed


@functools.lru_cache(maxsize=1024)
def _sampling(packed: bytes) -> SamplingParams:
    values = list(_unpack(packed))
    if values[_LOSSY] is not None:
        name, *settings = values[_LOSSY]
        values[_LOSSY] = POLICIES[name](*settings)
    if isinstance(values[_GRAMMAR], bytes):
        values[_GRAMMAR] = known_grammar(values[_GRAMMAR])
    elif values[_GRAMMAR] is not None:
        kind, *others = values[_GRAMMAR]
        values[_GRAMMAR] = learn_grammar(Grammar(GrammarKind(kind), *others))
    return SamplingParams(*values)


def _context(values: Sequence[Any]) -> Context:
    try:
        return _whole_context(values)
    except UnknownGrammar as error:
        raise UnknownGrammar(values[0]) from error


def _decoder(cls: type[Message], **parts: Callable[[Any], Any]) -> Callable[[Sequence[Any]], Message]:
    """Makes a `cls` of its field values; `parts` decode the fields that are no plain value, unless they are None."""
    nested = [(index, parts[name]) for index, name in enumerate(_names(cls)) if name in parts]

    def decode(values: Sequence[Any]) -> Message:
        arguments = list(values)
        for index, part in nested:
            if arguments[index] is not None:
                arguments[index] = part(arguments[index])
        return cls(*arguments)

    return decode


_laws = _decoder(Laws)
_logprobs = _decoder(TokenLogprobs)
_whole_context = _decoder(Context, sampling=_sampling, features=_features)
_draft = _decoder(Draft, laws=_laws)
_plan = _decoder(AheadPlan, shape=lambda values: DraftShape(*values))
_branch = _decoder(Branch, draft=_draft)
_enumeration = _decoder(Enumeration, branches=lambda branches: tuple(_branch(branch) for branch in branches))
_verdict = _decoder(
    Verdict, last=Origin, laws=_laws, features=_features,
    logprobs=lambda tokens: tuple(_logprobs(token) for token in tokens),
)
