"""Logging of all of a server's processes: to stderr, as text or as one JSON object a line.

Attributes of a record, given as ``extra``: ``request_id`` names the request, where the process does not know it by
itself; ``fields`` adds members to a JSON line; ``trace`` replaces a traceback whose error message must not be shown.

Messages may contain text of clients. Characters that could begin a line, move a cursor or change text direction are
escaped, and the lines of a traceback are indented, so that no log line can be forged.

Lines are dropped, and counted, while the reader of stderr has stopped (a pager, a log driver whose collector is away):
otherwise all streams would wait for it.
"""

import contextlib
import logging
import os
import re
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

import msgspec

from stentor.protocols.ipc.config import LogFormat, LogLevel

logger = logging.getLogger(__name__)

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_CAUSES: Final = 8
"""Most errors of a chain that a trace shows."""
_PATIENCE_MS: Final = 50
"""For a reader that is behind, once until it has caught up."""


class _Line(msgspec.Struct, omit_defaults=True):
    time: str
    level: str
    process: str
    pid: int
    logger: str
    message: str
    request_id: str = ""
    exception: str = ""


class _Format(logging.Formatter):
    def __init__(self, process: str, current_request: Callable[[], str]) -> None:
        super().__init__()
        self._process = process
        self._current_request = current_request

    def request_of(self, record: logging.LogRecord) -> str:
        return getattr(record, "request_id", None) or self._current_request()

    def trace_of(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return self.formatException(record.exc_info)
        return getattr(record, "trace", "")


class _TextFormat(_Format):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname:7} {self._process}: {escaped(record.getMessage())}"
        if request := self.request_of(record):
            line += f" (request {escaped(request)})"
        if trace := self.trace_of(record):
            line += "".join(f"\n    {escaped(part)}" for part in trace.split("\n"))
        return line


class _JsonFormat(_Format):
    def format(self, record: logging.LogRecord) -> str:
        line = _Line(
            time=f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            level=record.levelname.lower(),
            process=self._process,
            pid=os.getpid(),
            logger=record.name,
            message=_encodable(record.getMessage()),
            request_id=_encodable(self.request_of(record)),
            exception=_encodable(self.trace_of(record)),
        )
        fields: dict[str, Any] = getattr(record, "fields", {})
        entries = {**msgspec.to_builtins(line), **fields} if fields else line
        # in JSON these characters occur in strings only, where an escape means the same
        return _UNSAFE.sub(_escape, msgspec.json.encode(entries).decode())


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._fd = -1
        self._poll = select.poll()
        with contextlib.suppress(OSError):  # a stream that is no file
            self._fd = stream.fileno()
            self._poll.register(self._fd, select.POLLOUT)
        self._dropped = 0
        self._cut = False
        """Whether the last line has no end."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._fd < 0:
            super().emit(record)
            return
        if self.stream.closed:  # its number may be another file's by now: a loop took lines for pointers
            return
        try:
            if not self._is_read():
                self._dropped += 1
                return
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                logger.warning("%d log lines were dropped: they were not read", dropped)
            begin, self._cut = "\n" if self._cut else "", False
            self._write(f"{begin}{self.format(record)}\n".encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)

    def _write(self, line: bytes) -> None:
        # of a pipe that can be written to, so much can be written without waiting
        for at in range(0, len(line), select.PIPE_BUF):
            if not self._is_read():
                self._dropped += 1
                self._cut = at > 0
                return
            os.write(self._fd, line[at : at + select.PIPE_BUF])

    def _is_read(self) -> bool:
        return bool(self._poll.poll(0 if self._dropped else _PATIENCE_MS))


def escaped(text: str) -> str:
    """``text`` on one line, with line feeds, control characters and direction marks escaped."""
    return _UNSAFE.sub(_escape, text)


def trace_without_messages(error: BaseException) -> str:
    """The traceback of an error and its causes with types but without messages, which may quote a prompt."""
    return "\n".join(_trace_lines(error))


def set_up_logging(
    level: LogLevel, style: LogFormat, process: str, current_request: Callable[[], str] = lambda: ""
) -> None:
    """Send Stentor's logs at ``level`` and above, and other libraries' warnings, to stderr.

    ``current_request`` returns the id of the running task's request, or "".
    """
    handler = _Handler(sys.stderr)
    handler.setFormatter((_JsonFormat if style == "json" else _TextFormat)(process, current_request))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)  # torch's warnings would break lines of JSON
    logging.getLogger("stentor").setLevel(level.upper())
    # it logs every aborted connection, and quotes what the client sent
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return short or f"\\u{ord(character):04x}"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _trace_lines(error: BaseException) -> Iterator[str]:
    shown: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in shown and len(shown) < _CAUSES:
        shown.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for place, each in enumerate(reversed(shown)):
        if place:
            yield "which led to:"
        yield from "".join(traceback.format_tb(each.__traceback__)).rstrip("\n").split("\n")
        kind = type(each)
        yield f"{kind.__module__}.{kind.__qualname__} (its message is left out: it may quote the request)"
        if isinstance(each, BaseExceptionGroup):
            for number, member in enumerate(each.exceptions[:_CAUSES], 1):
                yield f"  {number}:"
                yield from (f"  {line}" for line in _trace_lines(member))
