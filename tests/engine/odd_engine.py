"""An engine process that sends what is no message."""

import contextlib

from stentor.engine.channel import Endpoint, PeerDied
from stentor.engine.processes.process import become_child


def main() -> None:
    inherited = become_child("odd-engine")
    client = Endpoint.attach(inherited.fds, inherited.parent_pid)
    client.send_blocking(b"\xc1 no message")
    with contextlib.suppress(PeerDied):
        while True:
            client.receive_blocking()


if __name__ == "__main__":
    main()
