"""``stentor serve`` over a worker that computes nothing: what is left is the cost of server and engine.

python -P -m stentor.tests.echo_server serve --port 8001
"""

import sys

import msgspec

from stentor.server import cli, lifecycle
from stentor.server.config import Config

_serve = lifecycle.serve


def serve_echo(config: Config) -> int:
    engine = msgspec.structs.replace(config.engine, worker_module="stentor.loadtest.echo_worker")
    return _serve(msgspec.structs.replace(config, engine=engine))


if __name__ == "__main__":
    lifecycle.serve = serve_echo
    sys.exit(cli.main())
