"""``stentor serve`` over a worker that computes nothing: what is left is the cost of server and engine.

python -P -m stentor.tests.echo_server serve --port 8001
"""

import sys

import msgspec

from stentor.server import cli, options

if __name__ == "__main__":
    engine = msgspec.structs.replace(options.DEFAULTS.engine, worker_module="stentor.loadtest.echo_worker")
    options.DEFAULTS = msgspec.structs.replace(options.DEFAULTS, engine=engine)
    sys.exit(cli.main())
