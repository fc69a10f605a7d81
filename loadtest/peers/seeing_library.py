"""transformers with images as a side: ``generate`` with its own processor, in a process with no server around it."""

import base64
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from .prompts import Prompt
from .running import Server, ServerError
from .sides import OFFLINE, Launch, Room, Side, cores

_SECONDS: Final = 600.0
"""Within which it answers."""


class Seen(msgspec.Struct, frozen=True):
    """What came of pictures that were given as one batch; times in seconds from when they were."""

    ttft: float
    seconds: float
    prompt_tokens: int
    """Of each."""
    tokens: int
    """Put out of each."""


def _launch(weights: Path, port: int, room: Room) -> Launch:
    del port, room
    child = ["-m", "stentor.loadtest.peers.seeing_child"]  # by its name: records show the command
    return Launch([sys.executable, "-P", *child, str(weights), "--threads", str(len(cores()))], OFFLINE)


def _no_body(weights: Path, prompt: Prompt, tokens: int) -> dict[str, Any]:
    raise NotImplementedError("it is asked by Library.ask")


TRANSFORMERS: Final = Side("transformers", "transformers", "hf", "bf16", _launch, _no_body)


class Library(Server):
    """Asked over a pair of sockets in place of HTTP."""

    def __init__(self, weights: Path) -> None:
        super().__init__(TRANSFORMERS, weights, 0, Room(1))
        self._socket: socket.socket | None = None

    def begin(self, picture: bytes, said: str) -> None:
        """Waits for the first token of an answer. Raises :class:`ServerError`."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SECONDS)
        with theirs:
            command = [*self._start.command, "--socket", str(theirs.fileno())]
            environment = {**os.environ, **self._start.environment}
            self.launch(command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True)
        self.ask([picture], said, 1)

    def ask(self, pictures: Sequence[bytes], said: str, tokens: int) -> Seen:
        """Raises :class:`ServerError`."""
        assert self._socket is not None
        shown = [base64.b64encode(picture).decode() for picture in pictures]
        try:
            self._socket.sendall(json.dumps({"pictures": shown, "said": said, "tokens": tokens}).encode() + b"\n")
            with self._socket.makefile("rb") as lines:
                line = lines.readline()
        except OSError as error:
            raise ServerError(f"{self.side.name}: {error}; it said last: {self._last()}") from None
        if not line:
            raise ServerError(f"{self.side.name} ended; it said last: {self._last()}")
        return msgspec.json.decode(line, type=Seen)

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        super().stop()
