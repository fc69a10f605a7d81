"""The process that renders templates which requests bring; see :mod:`.template_process`."""

import resource
import socket
import sys
from typing import Final

from stentor.engine.processes.freed_memory import grown_since, resident_bytes
from stentor.engine.processes.process import become_child

from ..sandbox.child_channel import receive, send
from .chat_template import ChatTemplate
from .errors import TemplateError
from .template_process import RenderJob, RenderResult, Setup

MAX_MEMORY: Final = 1 << 30
"""Bytes of address space."""
GROWN: Final = 64 << 20
"""Bytes that a job may leave behind; a child that has grown by more is replaced."""


def main() -> int:
    inherited = become_child("stentor-template")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=inherited.fds[0]) as connection:
        try:
            setup = receive(connection, Setup)
            template = ChatTemplate(
                None, setup.special_tokens, max_seconds=setup.max_seconds, max_chars=setup.max_chars
            )
            born = resident_bytes()
            send(connection, RenderResult())
            while True:
                send(connection, _answer(template, receive(connection, RenderJob), born))
        except OSError:
            return 0  # the owner is gone, or has no more use for us


def _answer(template: ChatTemplate, job: RenderJob, born: int) -> RenderResult:
    text, error = "", None
    try:
        text = template.render(
            job.messages,
            add_generation_prompt=job.add_generation_prompt,
            continue_final_message=job.continue_final_message,
            chat_template=job.chat_template,
            template_kwargs=job.template_kwargs,
            tools=job.tools,
            documents=job.documents,
        )
    except TemplateError as refusal:
        error = str(refusal)
    return RenderResult(text, error, last=grown_since(born) > GROWN)


if __name__ == "__main__":
    sys.exit(main())
