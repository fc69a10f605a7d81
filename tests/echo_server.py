"""``stentor serve`` over a worker that computes nothing, and so without torch: what is left is server and engine.

python -P -m stentor.tests.echo_server serve --port 8001

With ``--unpaced`` steps are answered at once, else every few milliseconds.
"""

import sys
from collections.abc import Mapping

import msgspec

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.server.config.config import Config
from stentor.server.options import reading as options

UNPACED = "--unpaced"


def serve_over(worker_module: str, *, max_drafts: int = 0) -> int:
    """What ``stentor`` does, with another worker in every engine, whose rows may draft so many tokens a step."""
    read = options.read_config

    def read_config(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
        config = read(flags, environment)
        speculative = SpeculativeConfig("ngram", max_drafts) if max_drafts else None
        worker = msgspec.structs.replace(config.engine.worker, speculative=speculative)
        engine = msgspec.structs.replace(config.engine, worker_module=worker_module, worker=worker)
        return msgspec.structs.replace(config, engine=engine)

    options.read_config = read_config
    from stentor.server.main import commands  # late: it takes the function by its name

    return commands.run(sys.argv[1:])


if __name__ == "__main__":
    worker = "unpaced_worker" if UNPACED in sys.argv else "echo_worker"
    sys.argv = [argument for argument in sys.argv if argument != UNPACED]
    sys.exit(serve_over(f"stentor.loadtest.{worker}"))
