"""Logs of every process, on stderr: one line of text or of JSON an event.

Nothing here knows of requests. Prompts and outputs are kept out by those who log.
"""

import json
import logging
import sys
import time
from typing import Literal


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 INFO engine loop: message``, with the process's own name."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(short)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.short = record.name.rpartition(".")[2]
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC), ``level``, ``process``, ``pid``, ``logger``, ``message``, ``exception``."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)


def setup_logs(level: str, form: Literal["text", "json"], process: str) -> None:
    """Send this process's logs to stderr; ``level`` is a name such as ``info``. Replaces what was set up before.

    Libraries log from ``warning`` on, or from ``level`` where that is more severe.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    own = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(own, logging.WARNING))
    logging.getLogger("stentor").setLevel(own)
    logging.captureWarnings(True)
