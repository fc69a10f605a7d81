"""Grammars of clients, compiled in a process of their own before the engine is given them.

Compiling is one call into another language, which nothing interrupts, may last for minutes and take gigabytes, and may
end the process that does it. So it is tried where that harms nobody: in a child with a bound on its memory, which is
killed when it is late.
"""

import time
import weakref
from collections.abc import Callable
from typing import Final

import msgspec

from stentor.engine.core.grammar.vocabulary import TokenBytes

from ..sandbox.child_channel import ChildChannel, receive, send

MODULE: Final = "stentor.server.grammar.child"
TOO_COMPLEX: Final = "too complex"
_START_SECONDS: Final = 60.0
"""For a child to import what it needs and to sort the vocabulary."""


class GrammarJob(msgspec.Struct, frozen=True, array_like=True):
    source: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """To a vocabulary, and to every job."""

    why: str = ""
    """Why the grammar cannot be used, in one line; "" where it can. :data:`TOO_COMPLEX`: it costs too much."""
    last: bool = False
    """The child has grown and wants to be replaced."""


class ChildNotStarted(Exception):
    """No child can be started, or it cannot use the model's vocabulary; the text says why."""


class _Died(Exception):
    """The child did."""


class GrammarProcess:
    """Owns at most one child: started for the first job, and again after one that it did not survive.

    Not safe for threads: let one thread do all the calls. It must outlive the child (see
    :mod:`stentor.engine.processes.process`).
    """

    def __init__(self, vocabulary: Callable[[], TokenBytes], seconds: float) -> None:
        """``vocabulary`` is asked for when the first child starts; ``seconds`` are for one job."""
        self._make_vocabulary = vocabulary
        self._vocabulary: TokenBytes | None = None
        self._seconds = seconds
        self._link: ChildChannel | None = None
        self._close_link: weakref.finalize[..., GrammarProcess] | None = None

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return None if self._link is None else self._link.child.pid

    def check(self, source: str) -> str:
        """Why the grammar cannot be used, or "". Blocks. Raises :class:`ChildNotStarted`.

        Where the child dies the job is given to another one, once: what killed it may have been somebody else.
        """
        deadline = time.monotonic() + self._seconds
        try:
            try:
                verdict = self._ask(source, deadline)
            except _Died:
                began = time.monotonic()
                self.start()
                verdict = self._ask(source, deadline + time.monotonic() - began)
        except (_Died, TimeoutError):
            return TOO_COMPLEX
        if verdict.last:
            self.close()
        return verdict.why

    def start(self) -> None:
        """Starts the child if there is none, so that the next job need not wait for that.

        Raises :class:`ChildNotStarted`.
        """
        if self._link is not None:
            return
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        try:
            link = self._link = ChildChannel(MODULE, "the grammar process")
        except OSError as error:
            raise ChildNotStarted(f"no process can be started: {error.strerror}") from error
        self._close_link = weakref.finalize(self, link.close)
        try:
            send(link.socket, self._vocabulary)
            refusal = receive(link.socket, Verdict, time.monotonic() + _START_SECONDS).why
        except OSError as error:
            self.close()
            raise ChildNotStarted("it ended at once, or was not ready in time") from error
        if refusal:
            self.close()
            raise ChildNotStarted(refusal)

    def _ask(self, source: str, deadline: float) -> Verdict:
        """The child's answer. It is killed where none comes in time."""
        if self._link is None:
            began = time.monotonic()
            self.start()
            deadline += time.monotonic() - began
        assert self._link is not None
        try:
            send(self._link.socket, GrammarJob(source))
            return receive(self._link.socket, Verdict, deadline)
        except BaseException as error:
            self.close()  # its answer would be taken for the next job's
            if isinstance(error, ConnectionError):
                raise _Died from error
            raise

    def close(self) -> None:
        """Kills the child, if there is one. May be called again; done when this object goes, too."""
        self._link = None
        if self._close_link is not None:
            self._close_link()
            self._close_link = None
