"""Compiles clients' grammars in a separate process, before the engine gets them.

Compiling is one foreign call that cannot be interrupted, may take minutes and gigabytes, and may crash its process. So
it is tried in a child with a memory limit, which is killed when late.
"""

import socket
from collections.abc import Callable
from typing import Final

import msgspec

from stentor.engine.core.grammar.vocabulary import TokenBytes

from ..sandbox.child import receive, send
from ..sandbox.killable_child import ChildDied, ChildNotStarted, KillableChild, Starved

MODULE: Final = "stentor.server.grammar.child"
TOO_COMPLEX: Final = "too complex"


class GrammarJob(msgspec.Struct, frozen=True, array_like=True):
    source: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """To a vocabulary, and to every job."""

    why: str = ""
    """Why the grammar cannot be used, in one line; "" where it can. :data:`TOO_COMPLEX`: it costs too much."""
    last: bool = False
    """The child has grown and asks to be replaced."""


class GrammarProcess(KillableChild):
    def __init__(self, vocabulary: Callable[[], TokenBytes], seconds: float) -> None:
        """``vocabulary`` is called when the first child starts; ``seconds`` are for one job."""
        made: list[TokenBytes] = []

        def greet(connection: socket.socket, deadline: float) -> None:
            if not made:
                made.append(vocabulary())
            send(connection, made[0])
            if refusal := receive(connection, Verdict, deadline).why:
                raise ChildNotStarted(refusal)

        self._seconds = seconds
        super().__init__(MODULE, "the grammar process", greet)

    def check(self, source: str) -> str:
        """Why the grammar cannot be used, or "". Blocks. Raises ChildNotStarted, Starved."""

        def exchange(connection: socket.socket, deadline: float) -> Verdict:
            send(connection, GrammarJob(source))
            return receive(connection, Verdict, deadline)

        try:
            verdict = self.ask(exchange, self._seconds)
        except Starved:
            raise
        except (ChildDied, TimeoutError):
            return TOO_COMPLEX
        if verdict.last:
            self.close()
        return verdict.why
