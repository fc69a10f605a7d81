"""Channels: frames of bytes between two processes, through shared memory.

::

    # parent
    pair = ChannelPair.create(capacity=1 << 20)             # two rings of that many bytes
    child = spawn("stentor.engine.worker.process", pair.child_fds)  # engine.processes.process
    pair.parent.watch(child.pid, child.pidfd)               # before waiting for anything

    # child
    inherited = become_child("stentor-worker")              # engine.processes.process
    endpoint = Endpoint.attach(inherited.fds, inherited.parent_pid)

    # both, in an asyncio loop (uvloop too, under anyio)
    await endpoint.send(frame)                    # waits while the ring is full
    frames = await endpoint.receive()             # list[bytes], at least one

    # both, without a loop
    endpoint.send_blocking(frame)
    frames = endpoint.receive_blocking(timeout)   # empty after timeout seconds; None waits for ever

    # both, without waiting
    sent = endpoint.try_send(frame)               # False: no room now
    frames = endpoint.try_receive()               # may be empty

    endpoint.close()                              # idempotent; also a context manager

A frame is ``bytes``, ``bytearray`` or a ``memoryview`` of bytes, of 0 to ``MAX_FRAME`` bytes. Frames
arrive whole, once and in order. All that the peer published is received before its death raises
:class:`PeerDied`; sending raises it at once. One copy in, one copy out (two for a frame larger than
half the ring).

The memory layout is drawn in :mod:`.region`, records and the argument against lost wake-ups in
:mod:`.ring`, the memory model in :mod:`.atomics`, the errors in :mod:`.errors`. An endpoint is five
descriptors (a memfd, and for each direction an eventfd "data" that wakes the reader and an eventfd
"space" that wakes the writer) and the peer's pidfd; a waiting side sleeps on them and uses no CPU.
"""

from .atomics import Atomics
from .endpoint import DEFAULT_CAPACITY, ChannelPair, Endpoint
from .errors import ChannelClosed, ChannelError, CorruptChannel, FrameTooLarge, PeerClosed, PeerDied
from .ring import MAX_FRAME, Buffer

__all__ = [
    "DEFAULT_CAPACITY",
    "MAX_FRAME",
    "Atomics",
    "Buffer",
    "ChannelClosed",
    "ChannelError",
    "ChannelPair",
    "CorruptChannel",
    "Endpoint",
    "FrameTooLarge",
    "PeerClosed",
    "PeerDied",
]
