"""``stentor serve`` over a worker that computes nothing: what is left is the cost of server and engine.

python -P -m stentor.tests.echo_server serve --port 8001

With ``--unpaced`` steps are answered at once, else every few milliseconds.
"""

import sys

import msgspec

from stentor.engine.processes import launch
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.engine.processes.launch import EngineProcess
from stentor.protocols.ipc.config import EngineConfig
from stentor.server.main import cli

UNPACED = "--unpaced"

_launch = launch.launch_engine
_worker = "stentor.loadtest." + ("unpaced_worker" if UNPACED in sys.argv else "echo_worker")


def launch_echo(
    config: EngineConfig,
    weights_fd: int | None = None,
    fork_server: ForkServer | None = None,
    lease_fd: int | None = None,
) -> EngineProcess:
    """The fork server, which has imported what another worker needs, is not asked."""
    return _launch(msgspec.structs.replace(config, worker_module=_worker), weights_fd, None, lease_fd)


if __name__ == "__main__":
    launch.launch_engine = launch_echo
    sys.argv = [argument for argument in sys.argv if argument != UNPACED]
    sys.exit(cli.main())
