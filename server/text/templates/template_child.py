"""The process that renders templates of requests; see :mod:`.template_process`."""

import resource
import signal
import sys
from functools import lru_cache
from typing import Final

from ...sandbox.child import Growth, bounded_child, receive, send
from ..errors import TemplateError
from .chat_template import ChatTemplate
from .template_process import RenderJob, RenderResult, Setup

MAX_MEMORY: Final = 1 << 30
"""Bytes of address space."""
MAX_COMPILED: Final = 32
"""Compiled templates in the cache, the latest ones."""
_REHEARSAL: Final = "{% set late = [messages | pprint, lipsum(), strftime_now('%Z')] %}{{ 1 // 0 }}"
"""Makes jinja import its lazy modules, also those for errors, and libc read the time zone."""


def main() -> int:
    with bounded_child("stentor-template", MAX_MEMORY) as connection:
        renderer = Renderer(receive(connection, Setup))
        renderer.render(RenderJob([{}], _REHEARSAL))
        growth = Growth()
        # no further descriptor can be opened: the only number that is left is taken; 0 would forbid to wait for the
        # socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
        send(connection, RenderResult())
        while True:
            job = receive(connection, RenderJob)
            signal.setitimer(signal.ITIMER_PROF, job.cpu_seconds)
            text, error = renderer.render(job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(connection, RenderResult(text, error, last=growth.too_much))
    return 0


class Renderer:
    """Renders jobs, each with its own template."""

    def __init__(self, setup: Setup) -> None:
        def make(source: str) -> ChatTemplate:
            return ChatTemplate(source, setup.special_tokens, max_seconds=setup.max_seconds, max_chars=setup.max_chars)

        self.template_of: Final = lru_cache(MAX_COMPILED)(make)

    def render(self, job: RenderJob) -> tuple[str, str | None]:
        """The text, or why there is none."""
        try:
            return self.template_of(job.chat_template).render(job.messages, **job.options), None
        except TemplateError as refusal:
            return "", str(refusal)


if __name__ == "__main__":
    sys.exit(main())
