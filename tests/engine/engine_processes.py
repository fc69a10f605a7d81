"""An engine process on its own, talked to as its client does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.engine.channel import ChannelPair, Endpoint, PeerDied
from stentor.engine.processes.process import Child, spawn
from stentor.loadtest.processes import tree
from stentor.protocols.ipc.actors import ClientInbox, EngineInbox, Progress, Stats
from stentor.protocols.ipc.codec import decode_client, encoder
from stentor.tests.e2e.processes import eventually

SOON = 60.0
PATIENT = "stentor.tests.engine.patient_engine"
WATCHING = "stentor.tests.engine.watching_engine"


@contextmanager
def engine_process(module: str = "stentor.engine.core.entry") -> Iterator[tuple[Endpoint, Child]]:
    pair = ChannelPair.create()
    with pair.parent as engine:
        child = spawn(module, pair.child_fds)
        try:
            engine.watch(child.pid, child.pidfd)
            yield engine, child
        finally:
            child.close()


def send(engine: Endpoint, *messages: EngineInbox) -> None:
    for message in messages:
        assert engine.try_send(encoder.encode(message))


def receive(engine: Endpoint, *, figures: bool = False) -> Iterator[ClientInbox]:
    """What the engine sends until it ends; without progress, and without figures unless they are asked for."""
    while True:
        try:
            frames = engine.receive_blocking(SOON)
        except PeerDied:
            return
        assert frames, "the engine is silent"
        for frame in frames:
            message = decode_client.decode(frame)
            if not isinstance(message, Progress) and (figures or not isinstance(message, Stats)):
                yield message


def worker_of(engine: Child) -> int:
    """The worker's pid, once there is one."""
    found: list[int] = []

    def started() -> bool:
        found[:] = [pid for pid in tree(engine.pid)[1:] if _name(pid).endswith("-worker")]
        return bool(found)

    eventually(started, SOON, "the engine starts its worker")
    return found[0]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""
