"""The owner's side of a child that reads PDFs.

PDFium reads clients' files in C++, and some pages keep it busy for ever. So it runs in a child with limits on memory
and time that cannot open anything, and that is replaced when it dies or is late.
"""

import socket
from typing import Final

import msgspec

from ...sandbox.child import receive, send, wait_until_ready
from ...sandbox.killable_child import ChildDied, KillableChild, Starved
from ..refusal import REFUSED, TIMEOUT, Refusal
from .decoded import DecodedLimits
from .documents import Page

MODULE: Final = "stentor.server.media.decoding.document_child"
SECONDS: Final = 60.0
"""For one document, once it has its turn; the child ends itself sooner where it is the one that is slow."""


class DocumentJob(msgspec.Struct, frozen=True, array_like=True):
    data: bytes
    limits: DecodedLimits


class DocumentPages(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a job."""

    pages: list[Page] = []
    why: str = ""
    """Why the document cannot be used."""
    code: str = REFUSED
    worn: bool = False
    """The child has grown and asks to be replaced."""


class DocumentProcess(KillableChild):
    def __init__(self, limits: DecodedLimits) -> None:
        self._limits = limits
        super().__init__(MODULE, "a process that reads documents", wait_until_ready)

    def read(self, data: bytes) -> list[Page]:
        """The pages of a PDF. Blocks. Raises :class:`..refusal.Refusal`, and as :meth:`ask` Abandoned, Starved and
        ChildNotStarted."""

        def exchange(connection: socket.socket, deadline: float) -> DocumentPages:
            send(connection, DocumentJob(data, self._limits))
            return receive(connection, DocumentPages, deadline)

        try:
            answer = self.ask(exchange, SECONDS)
        except ChildDied:
            raise Refusal("the document: its reader does not survive it") from None
        except Starved:
            raise
        except TimeoutError:
            raise Refusal("the document takes too long to read", TIMEOUT) from None
        if answer.worn:
            self.close()
        if answer.why:
            raise Refusal(answer.why, answer.code)
        return answer.pages
