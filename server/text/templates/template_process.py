"""Compiles and renders templates of requests in a separate process.

Jinja's sandbox keeps them from Python's internals, but one step of a template may be one call into C that runs for
hours with the interpreter's lock held, or fills the memory. So they run in a child with a memory limit that cannot open
files or sockets, and that is killed when late.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...sandbox.child import receive, send
from ...sandbox.killable_child import ChildDied, KillableChild, Starved
from ..errors import TemplateError
from .chat_template import RenderOptions

MODULE: Final = "stentor.server.text.templates.template_child"
_GRACE_SECONDS: Final = 0.5
"""CPU time on top of that to render: the child's own check comes first where it can, which saves starting another one.
"""
_PATIENCE: Final = 4.0
"""The clock's limit, in limits of CPU time: a child that has had less is starved, and its template not to blame."""


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """The first message to a child."""

    special_tokens: dict[str, str]
    max_seconds: float
    max_chars: int


class RenderJob(msgspec.Struct, frozen=True, array_like=True):
    """One rendering."""

    messages: Sequence[Mapping[str, Any]]
    chat_template: str
    """The template's source."""
    options: RenderOptions = RenderOptions()
    cpu_seconds: float = 0.0
    """CPU time after which the kernel ends the child; 0: no limit. :meth:`TemplateProcess.render` sets it."""


class RenderResult(msgspec.Struct, frozen=True, array_like=True):
    """To a setup, and to every job: the text, or why there is none."""

    text: str = ""
    error: str | None = None
    last: bool = False
    """The child has grown and asks to be replaced, so that one job's memory does not fail the next."""


class TemplateProcess(KillableChild):
    def __init__(self, special_tokens: Mapping[str, str], max_seconds: float, max_chars: int) -> None:
        setup = Setup(dict(special_tokens), max_seconds, max_chars)

        def greet(connection: socket.socket, deadline: float) -> None:
            send(connection, setup)
            receive(connection, RenderResult, deadline)

        self._seconds = max_seconds
        super().__init__(MODULE, "the template process", greet)

    def render(self, job: RenderJob) -> str:
        """The prompt text. Blocks. Raises :class:`TemplateError`, and ChildNotStarted and Starved, for which the
        template is not to blame."""

        limit = self._seconds + _GRACE_SECONDS

        def exchange(connection: socket.socket, deadline: float) -> RenderResult:
            send(connection, msgspec.structs.replace(job, cpu_seconds=limit))
            return receive(connection, RenderResult, deadline)

        try:
            answer = self.ask(exchange, _PATIENCE * limit)
        except Starved:
            raise
        except TimeoutError:
            message = f"The chat template took longer than {self._seconds:g} seconds to render."
            raise TemplateError(message) from None
        except ChildDied:
            raise TemplateError("The chat template is nested too deeply, or needs too much memory.") from None
        except OverflowError:
            raise TemplateError("A template of your own can be given no integer beyond 64 bits.") from None
        if answer.last:
            self.close()
        if answer.error is not None:
            raise TemplateError(answer.error)
        return answer.text
