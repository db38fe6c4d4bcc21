"""The faults that the bench knows, and what the service promises for each (`ARCHITECTURE.md`, pure data)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Promise(StrEnum):
    """What a stream under way may expect."""

    KEPT = "kept"  # it goes on, with the ids that the target alone would give
    # It may end with one of `Fault.endings`, after a beginning of these ids. Asked again it gives all of them, as the
    # project's own client does by itself, whose streams are kept.
    CUT = "cut"


class Need(StrEnum):
    """What a service must have for a fault to make sense."""

    DRAFTS = "a draft pool"
    COPIES = "two replicas of each pool"
    RANKS = "a target of several ranks"
    NODE = "a second node"
    COORDINATORS = "two ingress replicas"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    what: str
    promise: Promise = Promise.KEPT
    needs: frozenset[Need] = frozenset({Need.DRAFTS, Need.COPIES})
    lasts_s: tuple[float, float] = (0.0, 0.0)  # between; what is done at the end undoes it
    costs_draft: bool = False  # a replica of the draft pool is gone for a while
    costs_target: bool = False
    endings: tuple[str, ...] = ("UNAVAILABLE",)  # statuses of streams that are cut


_TWO = frozenset({Need.DRAFTS, Need.COPIES})
_RANKS = _TWO | {Need.RANKS}

FAULTS: tuple[Fault, ...] = (
    # Processes that end.
    Fault("kill_draft_actor", "SIGKILL to a draft actor", costs_draft=True),
    Fault("kill_draft_replica", "SIGKILL to a replica of the draft pool", costs_draft=True),
    Fault("kill_target_leader", "SIGKILL to rank 0 of a target replica", costs_target=True),
    Fault("kill_target_rank", "SIGKILL to another rank", needs=_RANKS, costs_target=True),
    Fault("kill_target_replica", "SIGKILL to a replica of the target pool", costs_target=True),
    Fault("kill_node", "SIGKILL to a node's raylet, and a new node", needs=_TWO | {Need.NODE}, costs_draft=True,
          costs_target=True),
    # An HAProxy whose server dies under an answer resets the stream (RST_STREAM, CANCEL), for which gRPC has this word.
    Fault("kill_ingress", "SIGKILL to an ingress replica, its coordinator within", Promise.CUT,
          needs=frozenset({Need.COORDINATORS}), endings=("UNAVAILABLE", "CANCELLED")),
    Fault("kill_directory", "SIGKILL to the memory of prefixes", needs=frozenset({Need.COORDINATORS})),
    Fault("kill_controller", "SIGKILL to Serve's controller", needs=frozenset()),
    Fault("kill_proxy", "SIGKILL to HAProxy", Promise.CUT, needs=frozenset()),
    Fault("kill_proxy_manager", "SIGKILL to the actor that manages HAProxy", Promise.CUT, needs=frozenset()),
    # Processes that stand still.
    Fault("stall_draft", "SIGSTOP to a draft actor, SIGCONT later", lasts_s=(1.0, 3.0)),
    Fault("stall_target", "SIGSTOP to rank 0 of a target replica, SIGCONT later", lasts_s=(0.5, 1.5)),
    Fault("hang_target", "SIGSTOP to rank 0 of a target replica, for good", costs_target=True),
    Fault("hang_rank", "SIGSTOP to another rank, for good", needs=_RANKS, costs_target=True),
    # The connections between the coordinator and the actors.
    Fault("lose", "messages of the draft pool are lost", lasts_s=(1.0, 2.0)),
    Fault("delay", "messages of a pool come late", lasts_s=(1.0, 2.0)),
    Fault("reorder", "messages of a pool overtake each other", lasts_s=(1.0, 2.0)),
    Fault("duplicate", "messages of a pool come twice", lasts_s=(1.0, 2.0)),
    Fault("truncate", "connections of a pool end in the middle of a message", lasts_s=(0.5, 1.0)),
    Fault("corrupt_draft", "drafts come with wrong bytes", lasts_s=(1.0, 2.0)),
    Fault("corrupt_frame", "connections of a pool bring bytes that are no message", lasts_s=(0.5, 1.0)),
    Fault("silence", "connections of a target replica stay open, and nothing comes", lasts_s=(60.0, 60.0)),
    # Memory.
    Fault("fill_object_store", "objects of twice the store's size", lasts_s=(1.0, 2.0), needs=frozenset()),
    Fault("fill_kv", "long prompts of twice the target's KV memory", needs=frozenset()),
    # Clients.
    Fault("cancel", "clients cancel", needs=frozenset()),
    Fault("stop_reading", "clients read no more, and later the rest", needs=frozenset(), lasts_s=(1.0, 2.0)),
    Fault("disconnect", "a client's process is killed", needs=frozenset()),
    # Operations.
    Fault("drain_draft", "a draft replica is emptied, and replaced", costs_draft=True),
    Fault("drain_target", "a target replica is emptied, and replaced", costs_target=True),
    Fault("scale_draft", "the draft pool has one replica less for a while", lasts_s=(2.0, 4.0), costs_draft=True),
    Fault("scale_target", "the target pool has one replica less for a while", lasts_s=(2.0, 4.0), costs_target=True),
    Fault("update_draft", "the draft pool gets another draft, one replica after the other", costs_draft=True),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
