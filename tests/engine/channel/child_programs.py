"""The other side of the channel tests: a real process, told by its first argument what to do."""

import importlib.machinery
import importlib.util
import os
import signal
import sys
import time

import anyio

from stentor.engine.channel import ChannelPair, Endpoint, PeerDied
from stentor.engine.processes.process import Inherited, become_child, spawn

MODULE = "stentor.tests.engine.channel.child_programs"


def echo_blocking(endpoint: Endpoint, _: Inherited) -> None:
    while True:
        for frame in endpoint.receive_blocking():
            endpoint.send_blocking(frame)


async def _echo(endpoint: Endpoint) -> None:
    while True:
        for frame in await endpoint.receive():
            await endpoint.send(frame)


def echo_asyncio(endpoint: Endpoint, _: Inherited) -> None:
    anyio.run(_echo, endpoint)


def echo_uvloop(endpoint: Endpoint, _: Inherited) -> None:
    anyio.run(_echo, endpoint, backend_options={"use_uvloop": True})


def read_nothing(endpoint: Endpoint, _: Inherited) -> None:
    endpoint.send_blocking(b"here")
    time.sleep(60)


def ignore_sigterm(endpoint: Endpoint, _: Inherited) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    endpoint.send_blocking(b"here")
    time.sleep(60)


def three_then_sigkill(endpoint: Endpoint, _: Inherited) -> None:
    for number in range(3):
        endpoint.send_blocking(b"%d" % number)
    os.kill(os.getpid(), signal.SIGKILL)


def last_words_then_close(endpoint: Endpoint, _: Inherited) -> None:
    endpoint.send_blocking(b"last words")
    endpoint.close()
    time.sleep(60)


def count_sleeps(endpoint: Endpoint, _: Inherited) -> None:
    """Wait, blocked, for a frame; answer how often the waiting asked the kernel."""
    sleep, sleeps = endpoint._sleep, 0

    def counted(bell: int, timeout: float | None) -> bool:
        nonlocal sleeps
        sleeps += 1
        return sleep(bell, timeout)

    endpoint._sleep = counted  # type: ignore[method-assign]
    endpoint.send_blocking(b"waiting")
    endpoint.receive_blocking()
    endpoint.send_blocking(b"%d" % sleeps)


def exit_with_seven(endpoint: Endpoint, _: Inherited) -> None:
    sys.exit(7)


def describe(endpoint: Endpoint, inherited: Inherited) -> None:
    """Send what this process looks like from the inside, one frame a fact."""
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    inheritable = [fd for fd in range(3, 64) if _is_inheritable(fd)]
    facts = {
        "comm": comm,
        "own session": str(os.getsid(0) == os.getpid()),
        "stdin": os.readlink("/proc/self/fd/0"),
        "extra": os.environ.get("CHANNEL_TEST_EXTRA", ""),
        "arguments": " ".join(inherited.arguments),
        "inheritable": str(inheritable),
        "parent": str(inherited.parent_pid),
        "package": sys.modules["stentor.engine"].__path__[0],
        "sees the folder kernels": str(_is_ours(importlib.util.find_spec("kernels"))),
        "torch": str("torch" in sys.modules),
    }
    endpoint.send_blocking("\n".join(f"{key}={value}" for key, value in facts.items()).encode())
    endpoint.receive_blocking()


def own_a_worker(endpoint: Endpoint, _: Inherited) -> None:
    """Start an idle child of our own and report its pid, as an engine does with its worker."""
    pair = ChannelPair.create()
    child = spawn(MODULE, pair.child_fds, arguments=["echo_blocking"])
    pair.parent.watch(child.pid, child.pidfd)
    pair.parent.send_blocking(b"up?")
    assert pair.parent.receive_blocking() == [b"up?"]
    endpoint.send_blocking(str(child.pid).encode())
    endpoint.receive_blocking()


def own_a_tree(endpoint: Endpoint, _: Inherited) -> None:
    """Start a child that starts a grandchild, and report their pids, as a server does."""
    pair = ChannelPair.create()
    child = spawn(MODULE, pair.child_fds, arguments=["own_a_worker"])
    pair.parent.watch(child.pid, child.pidfd)
    [grandchild] = pair.parent.receive_blocking()
    endpoint.send_blocking(f"{child.pid} {grandchild.decode()}".encode())
    endpoint.receive_blocking()


def _is_ours(spec: importlib.machinery.ModuleSpec | None) -> bool:
    """Whether the top-level name is a folder of this repository, which it must not be."""
    root = os.path.realpath(sys.modules["stentor"].__path__[0])
    return spec is not None and os.path.realpath(spec.origin or "").startswith(root + "/kernels")


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def main() -> None:
    inherited = become_child("stentor-test")
    endpoint = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        globals()[inherited.arguments[0]](endpoint, inherited)
    except PeerDied:
        sys.exit(3)


if __name__ == "__main__":
    main()
