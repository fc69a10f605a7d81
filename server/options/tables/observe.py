"""What is told of requests."""

from typing import Final

from .. import kinds
from ..observe_kinds import collector
from ..option import Option

OPTIONS: Final = (
    Option(
        "access-log",
        "observe.access_log",
        kinds.switch(),
        "log a line for every request at its end, whatever the log level",
        "server",
    ),
    Option(
        "otlp-endpoint",
        "observe.otlp_endpoint",
        collector(),
        "a collector that takes OpenTelemetry traces by OTLP over HTTP; otherwise none are made",
        "server",
    ),
)
