"""What happens when a process dies."""

from typing import Final

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "max-worker-deaths",
        "engine.recovery.max_worker_deaths",
        kinds.integer(1, 1_000_000),
        "deaths of the worker process in a row, without a completed step between them, after which the server ends; 1 "
        "ends it at the first",
        "recovery",
    ),
    Option(
        "step-timeout",
        "engine.recovery.watchdog_seconds",
        kinds.seconds(),
        "how long a step may take, besides 20 times what is expected of it, before its worker is replaced; 0 is no "
        "limit",
        "recovery",
    ),
    Option(
        "max-engine-deaths",
        "engine.recovery.max_engine_deaths",
        kinds.integer(1, 1_000_000),
        "deaths of the engine process in a row, without progress between them, after which the server ends; 1 ends it "
        "at the first",
        "recovery",
    ),
)
