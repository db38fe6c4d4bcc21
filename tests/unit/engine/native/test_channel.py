"""The mailbox between rank 0 and the others: whole messages, in order, bounded waits."""

from __future__ import annotations

import mmap
import threading

import pytest
import torch

from actors.engine.broadcast import Opcode, follow, receive
from actors.engine.native.channel import CAPACITY_BYTES, ChannelClosed, SharedChannel, num_bytes


def channels(num_ranks: int, timeout_s: float = 20.0) -> list[SharedChannel]:
    memory = mmap.mmap(-1, num_bytes(num_ranks))
    return [SharedChannel(rank, num_ranks, timeout_s, memory) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_rank_reads_every_message_in_order(num_ranks: int) -> None:
    leader, *others = channels(num_ranks)
    sizes = [1, 1024, CAPACITY_BYTES // 4, CAPACITY_BYTES // 4 + 1, 3 * CAPACITY_BYTES // 4] * 20
    messages = [torch.full((size,), i, dtype=torch.int32) for i, size in enumerate(sizes)]
    found: list[list[torch.Tensor]] = [[] for _ in others]

    def read(channel: SharedChannel, into: list[torch.Tensor]) -> None:
        for size in sizes:
            values = torch.zeros(size, dtype=torch.int32)
            channel.broadcast(values)
            into.append(values)

    threads = [threading.Thread(target=read, args=pair) for pair in zip(others, found, strict=True)]
    for thread in threads:
        thread.start()
    for message in messages:
        leader.broadcast(message.clone())
    leader.acknowledge()
    for thread in threads:
        thread.join(30)
    for mine in found:
        assert all(torch.equal(a, b) for a, b in zip(mine, messages, strict=True))


def test_waits_are_bounded_on_both_sides() -> None:
    leader, follower = channels(2, timeout_s=0.1)
    with pytest.raises(ChannelClosed):
        follower.broadcast(torch.zeros(4))
    leader.broadcast(torch.zeros(4))
    with pytest.raises(ChannelClosed):  # nobody has read the first
        leader.broadcast(torch.zeros(4))
    with pytest.raises(ChannelClosed):
        leader.acknowledge()


def test_a_follower_ends_when_its_leader_is_silent() -> None:
    _, follower = channels(2, timeout_s=0.1)
    reasons: list[str] = []
    follow(None, follower, step_timeout_s=5.0, on_failure=reasons.append)  # type: ignore[arg-type]
    assert len(reasons) == 1


def test_frames_of_the_step_protocol_pass_through() -> None:
    from actors.engine.broadcast import FRAME_LEN

    leader, follower = channels(2)
    frame = torch.zeros(FRAME_LEN, dtype=torch.int32)
    frame[0], frame[1] = int(Opcode.HEARTBEAT), 0
    sender = threading.Thread(target=leader.broadcast, args=(frame,))
    sender.start()
    assert receive(follower)[0] is Opcode.HEARTBEAT
    sender.join(10)
