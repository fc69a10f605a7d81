"""Logging of every process of a server: to stderr, as text or as one JSON object a line."""

import logging
import sys
import time

import msgspec

from stentor.protocols.config import LogFormat, LogLevel


class _Record(msgspec.Struct, omit_defaults=True):
    time: str
    level: str
    process: str
    logger: str
    message: str
    error: str = ""


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = _Record(
            time=f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            level=record.levelname.lower(),
            process=self._process,
            logger=record.name,
            message=record.getMessage(),
            error=self.formatException(record.exc_info) if record.exc_info else "",
        )
        return msgspec.json.encode(line).decode()


def set_up_logging(level: LogLevel, style: LogFormat, process: str) -> None:
    """Sends what Stentor logs at ``level`` and above, and other libraries' warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(_JsonFormatter(process))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s %(levelname)-7s {process}: %(message)s", datefmt="%H:%M:%S")
        )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("stentor").setLevel(level.upper())
    # each names every connection that a client broke off
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL if level != "debug" else logging.INFO)
