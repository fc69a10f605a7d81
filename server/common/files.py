"""Files of the operator that are read again on SIGHUP while the server runs."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import anyio

logger = logging.getLogger(__name__)


class FileRefused(Exception):
    """A file cannot be used; the message is one line that names it."""


def read_text(path: Path) -> str:
    """Raises FileRefused."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise FileRefused(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileRefused(f"{path}: cannot be read: it is not UTF-8") from error


class Reloadable(Protocol):
    @property
    def name(self) -> str:
        """Its name in the log."""

    async def reload(self) -> str:
        """Reads its files again and describes the result. Raises FileRefused, and then keeps the old."""


async def reload_on_hangup(parts: Sequence[Reloadable]) -> None:
    """Runs for ever. A hang-up that comes because the terminal is gone ends the server, as without us."""
    had_terminal = _has_terminal()
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if had_terminal and not _has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                await reload(parts)


async def reload(parts: Sequence[Reloadable]) -> None:
    """Reloads each part separately: a refused one does not prevent the others."""
    for part in parts:
        try:
            logger.info("reloaded %s: %s", part.name, await part.reload())
        except FileRefused as error:
            logger.error("kept the old %s: %s", part.name, error)
        except Exception:  # nothing that is read here is worth the server's end
            logger.exception("kept the old %s", part.name)


def _has_terminal() -> bool:
    return any(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__))
