"""Templates that requests bring, rendered in a process of their own.

The sandbox keeps them from Python's internals and checks every step. But one step is one call into
C, which may run for hours with the interpreter's lock held, or fill the memory, and no check runs
meanwhile. So they run where that harms nobody: in a child with a bound on its memory, which is
killed when it is late.
"""

import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..sandbox.child_channel import ChildChannel, receive, send
from .errors import TemplateError

MODULE: Final = "stentor.server.text.template_child"
_GRACE_SECONDS: Final = 0.5
"""On top of the time to render: the child's own check comes first where it can, and says more."""
_START_SECONDS: Final = 30.0


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """The first message to a child."""

    special_tokens: dict[str, str]
    max_seconds: float
    max_chars: int


class RenderJob(msgspec.Struct, frozen=True, array_like=True):
    """One rendering; the fields are the arguments of :meth:`~.chat_template.ChatTemplate.render`."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str
    template_kwargs: dict[str, Any]
    tools: list[dict[str, Any]]
    documents: list[dict[str, Any]]


class RenderResult(msgspec.Struct, frozen=True, array_like=True):
    """To a setup, and to every job: the text, or why there is none."""

    text: str = ""
    error: str | None = None
    last: bool = False
    """The child has grown and wants to be replaced: what one job left behind shall not fail the next."""


class _Died(Exception):
    """The child did, after so many seconds with a job."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class TemplateProcess:
    """Owns at most one child: started for the first job, and again after one that it did not survive.

    Not safe for threads: let one thread do all the calls. It must outlive the child (see
    :mod:`stentor.engine.processes.process`).
    """

    def __init__(self, special_tokens: Mapping[str, str], max_seconds: float, max_chars: int) -> None:
        self._setup = Setup(dict(special_tokens), max_seconds, max_chars)
        self._link: ChildChannel | None = None
        self._close_link: weakref.finalize[..., TemplateProcess] | None = None

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return None if self._link is None else self._link.child.pid

    def render(self, job: RenderJob) -> str:
        """The prompt text. Blocks. Raises :class:`TemplateError`.

        Where the child dies the job is given to another one, once: what killed it may have been somebody else.
        """
        seconds = self._setup.max_seconds
        left = seconds + _GRACE_SECONDS
        try:
            try:
                answer = self._ask(job, left)
            except _Died as death:
                answer = self._ask(job, left - death.seconds)
        except TimeoutError:
            raise TemplateError(f"The chat template took longer than {seconds:g} seconds to render.") from None
        except (_Died, OSError):
            raise TemplateError("The chat template is nested too deeply, or needs too much memory.") from None
        except OverflowError:  # nothing of it was sent
            raise TemplateError("A template of your own can be given no integer beyond 64 bits.") from None
        if answer.last:
            self.close()
        if answer.error is not None:
            raise TemplateError(answer.error)
        return answer.text

    def _ask(self, job: RenderJob, seconds: float) -> RenderResult:
        """The answer of the child, which is started if there is none, within so many seconds from then on."""
        began = time.monotonic()
        try:
            link = self._link or self._start()
            began = time.monotonic()
            send(link.socket, job)
            return receive(link.socket, RenderResult, began + seconds)
        except OverflowError:
            raise
        except BaseException as error:
            self.close()  # its answer would be taken for the next job's
            if isinstance(error, ConnectionError):
                raise _Died(time.monotonic() - began) from error
            raise

    def _start(self) -> ChildChannel:
        link = self._link = ChildChannel(MODULE, "the template process")
        self._close_link = weakref.finalize(self, link.close)
        send(link.socket, self._setup)
        receive(link.socket, RenderResult, time.monotonic() + _START_SECONDS)
        return link

    def close(self) -> None:
        """Kills the child, if there is one. May be called again; done when this object goes, too."""
        self._link = None
        if self._close_link is not None:
            self._close_link()
            self._close_link = None
