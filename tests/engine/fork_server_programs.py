"""Workers for tests of the fork server: what they are is told by frames. Run as a module, an owner of a fork server."""

import json
import os
import threading
from pathlib import Path

import anyio

from stentor.engine.channel import ChannelPair, Endpoint, PeerDied
from stentor.engine.core.worker_source import WorkerSource
from stentor.engine.processes.process import become_child

MODULE = "stentor.tests.engine.fork_server_programs"
UNPREPARED = "stentor.tests.engine.fork_server_unprepared"
THREADED = "stentor.tests.engine.fork_server_threaded"
MULTIPLYING = "stentor.tests.engine.fork_server_multiplying"

_preloaded_in = 0


def preload() -> None:
    global _preloaded_in
    _preloaded_in = os.getpid()


def main() -> int:
    inherited = become_child("test-worker")
    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        while True:
            for frame in engine.receive_blocking():
                match frame:
                    case b"describe":
                        engine.send_blocking(json.dumps(_facts(inherited.parent_pid, inherited.arguments)).encode())
                    case b"exit":
                        return 7
    except PeerDied:
        return 0


def _facts(parent: int, arguments: tuple[str, ...]) -> dict[str, object]:
    kept = int(arguments[-1]) if arguments else None
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "told parent": parent,
        "comm": Path("/proc/self/comm").read_text().strip(),
        "own session": os.getsid(0) == os.getpid(),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "option": arguments[0] if arguments else None,
        "kept": None if kept is None else os.pread(kept, 5, 0).decode(),
        "descriptors": sorted(str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()),
        "preloaded in": _preloaded_in,
        "environment": os.environ["GOMP_SPINCOUNT"],
        "threads": threading.active_count(),
    }


async def _own_a_worker(owner: Endpoint) -> None:
    source = WorkerSource(MODULE)
    pair = ChannelPair.create()
    child = await source.start(pair.child_fds)
    pair.parent.watch(child.pid, child.pidfd)
    await pair.parent.send(b"describe")
    await pair.parent.receive()  # it is tied to this process by now
    owner.send_blocking(f"{source.own_fork_server} {child.pid}".encode())
    owner.receive_blocking()


def own() -> None:
    """Starts a fork server and a worker, reports their pids, and waits."""
    inherited = become_child("test-engine")
    anyio.run(_own_a_worker, Endpoint.attach(inherited.fds, inherited.parent_pid))


if __name__ == "__main__":
    own()
