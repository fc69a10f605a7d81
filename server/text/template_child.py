"""The process that renders templates which requests bring; see :mod:`.template_process`."""

import sys
from typing import Final

from ..sandbox.child import Growth, bounded_child, receive, send
from .chat_template import ChatTemplate
from .errors import TemplateError
from .template_process import RenderJob, RenderResult, Setup

MAX_MEMORY: Final = 1 << 30
"""Bytes of address space."""


def main() -> int:
    with bounded_child("stentor-template", MAX_MEMORY) as connection:
        setup = receive(connection, Setup)
        template = ChatTemplate(None, setup.special_tokens, max_seconds=setup.max_seconds, max_chars=setup.max_chars)
        growth = Growth()
        send(connection, RenderResult())
        while True:
            text, error = _render(template, receive(connection, RenderJob))
            send(connection, RenderResult(text, error, last=growth.too_much))
    return 0


def _render(template: ChatTemplate, job: RenderJob) -> tuple[str, str | None]:
    """The text, or why there is none."""
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
        return "", str(refusal)
    return text, None


if __name__ == "__main__":
    sys.exit(main())
