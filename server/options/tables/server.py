"""Where the server listens, and what it says of itself."""

from typing import Final, get_args

from stentor.protocols.ipc.config import LogFormat, LogLevel

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option("host", "http.host", kinds.text(), "address to listen on; 0.0.0.0 for all", "server"),
    Option("port", "http.port", kinds.integer(1, 65535), "port to listen on", "server"),
    Option(
        "shutdown-timeout",
        "http.shutdown_timeout",
        kinds.seconds(),
        "how long running requests may go on once the server is told to end",
        "server",
    ),
    Option(
        "log-level",
        "engine.worker.log_level",
        kinds.choice(get_args(LogLevel)),
        "least severity that is logged",
        "server",
    ),
    Option(
        "log-format",
        "engine.worker.log_format",
        kinds.choice(get_args(LogFormat)),
        "one line of text or of JSON",
        "server",
    ),
)
