"""The owner's side of a child that processes clients' media.

It runs image libraries in C, and transformers' own processor, on files of clients. So it has limits on memory and time,
cannot open anything, and is replaced when it dies or is late.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from stentor.engine.model_config.towers.media_spec import Modality

from ...sandbox.child import receive, receive_bytes, send, send_bytes
from ...sandbox.killable_child import ChildDied, ChildNotStarted, KillableChild, Starved
from ..decoding.decoded import DecodedLimits
from ..refusal import REFUSED
from .model_files import GivenFiles, Source
from .processor_options import NO_OPTIONS

MODULE: Final = "stentor.server.media.processors.processor_child"
MAX_PAYLOAD: Final = 320 << 20
"""Bytes of tensors of one piece of media. The largest pictures of Qwen's models have 308 million."""
_START_SECONDS: Final = 300.0
"""To import transformers: 2 seconds of the processor, and a minute on a machine that has too much to do."""


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """The first message to a child."""

    folder: str
    """The model's folder; empty if it has no processor files."""
    limits: DecodedLimits
    given: GivenFiles | None = None
    """Replacement of the folder."""
    defaults: Mapping[str, object] = {}
    """Options that hold where a job has none."""

    @property
    def source(self) -> Source:
        return self.given or Path(self.folder)


class Described(msgspec.Struct, frozen=True, array_like=True):
    """The processor's media; answers the setup."""

    written: dict[Modality, str]
    """The chat template's placeholder of each modality."""
    missing: dict[Modality, str]
    """Why one cannot be taken, to go on after "video:"."""
    by_company: bool
    """Whether a picture is cut up otherwise where it is not the only one of its conversation."""
    resident_bytes: int
    error: str = ""
    """Why there is no processor at all, for the operator; the child has ended."""


class ProcessorJob(msgspec.Struct, frozen=True, array_like=True):
    """One piece of media; its bytes follow."""

    modality: Modality
    length: int
    options: dict[str, object]
    """The processor's own arguments, checked by name and kind: see :mod:`.processor_options`."""
    alone: bool = True
    """Whether it is the only one of its modality in the conversation."""


class Processed(msgspec.Struct, frozen=True, array_like=True):
    """Answers a job; the payload follows, unless there is a ``why``."""

    length: int = 0
    replacement: str = ""
    """Replacement of the placeholder in the prompt's text."""
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of its embeddings, where positions follow them."""
    interval: float = 1.0
    """Distance of the positions of two frames."""
    worn: bool = False
    """The child has grown and asks to be replaced."""
    why: str = ""
    """Why it cannot be used, to go on after the field's name."""
    code: str = REFUSED


class MediaRefused(Exception):
    """``str(refused)`` describes the fault of the media, for the client."""

    def __init__(self, why: str, code: str = REFUSED) -> None:
        super().__init__(why)
        self.code = code


class NoProcessor(ChildNotStarted):
    """The model's processor cannot be loaded, and another child could not either; the text is for the operator."""


class ProcessorProcess(KillableChild):
    def __init__(
        self, source: Source, limits: DecodedLimits, timeout: float, defaults: Mapping[str, object] = NO_OPTIONS
    ) -> None:
        """``timeout`` in seconds for each. ``defaults``: options that hold where a job has none."""
        folder, given = ("", source) if isinstance(source, GivenFiles) else (str(source), None)
        setup = Setup(folder, limits, given, dict(defaults))
        self.described: Described | None = None
        """Once a child has been ready."""

        def greet(connection: socket.socket, deadline: float) -> None:
            send(connection, setup)
            described = receive(connection, Described, deadline)
            if described.error:
                raise NoProcessor(described.error)
            self.described = described

        self._timeout = timeout
        super().__init__(MODULE, "a media process", greet, _START_SECONDS)

    def process(self, job: ProcessorJob, data: bytes) -> tuple[Processed, bytearray]:
        """The answer and the payload: tensors by the names that the model takes, in the format of safetensors.

        Blocks. Raises :class:`MediaRefused`, and Abandoned, Starved and ChildNotStarted as :meth:`ask` does."""

        def exchange(connection: socket.socket, deadline: float) -> tuple[Processed, bytearray]:
            send(connection, job)
            send_bytes(connection, data)
            answer = receive(connection, Processed, deadline)
            return answer, receive_bytes(connection, answer.length, deadline, most=MAX_PAYLOAD)

        try:
            answer, payload = self.ask(exchange, self._timeout)
        except ChildDied:
            raise MediaRefused("the decoder does not survive it") from None
        except Starved:
            raise
        except TimeoutError:
            raise MediaRefused("it takes too long to decode") from None
        if answer.worn:
            self.close()
        if answer.why:
            raise MediaRefused(answer.why, answer.code)
        return answer, payload
