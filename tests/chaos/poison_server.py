"""``stentor serve`` over :mod:`.poison_worker`.

python -P -m stentor.tests.chaos.poison_server serve --port 8001
"""

import sys
from collections.abc import Mapping

import msgspec

from stentor.server.config.config import Config
from stentor.server.options import reading as options

_read = options.read_config


def read_armed(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    config = _read(flags, environment)
    engine = msgspec.structs.replace(config.engine, worker_module="stentor.tests.chaos.poison_worker")
    return msgspec.structs.replace(config, engine=engine)


if __name__ == "__main__":
    options.read_config = read_armed
    from stentor.server.main import cli  # late: it takes the function by its name

    sys.exit(cli.main())
