"""Messages to prompt tokens, as chat and ``/tokenize`` both do it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.chat import TemplateFields

from ..app.state import ServerState
from ..http.errors import Overloaded
from ..rendering.interface import Conversation
from ..text.errors import TemplateError, TemplatesWait, TextTooLong
from .admission import too_long

_RETRY_SECONDS: Final = 2


async def render_messages(
    state: ServerState,
    fields: TemplateFields,
    messages: list[dict[str, Any]],
    add_special_tokens: bool,
    most_tokens: int | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Raises BadRequest for arguments that the template may not be given, where the template fails, and for
    messages that cannot have as few as ``most_tokens``; and Overloaded where too many templates wait."""
    template = fields.chat_template
    if template is not None and not state.trusts_templates and not state.pool.chat_template.has(template):
        raise BadRequest(
            "`chat_template` is not taken from requests here (--trust-request-chat-template); leave it out.",
            "chat_template",
            "untrusted_template",
        )
    kwargs = fields.chat_template_kwargs or {}
    taken = sorted(kwargs.keys() & state.pool.chat_template.reserved)
    if taken:
        raise BadRequest(f"`chat_template_kwargs` must not set `{taken[0]}`.", "chat_template_kwargs")
    try:
        return await state.renderer.render(
            Conversation(
                messages=messages,
                tools=tools,
                documents=fields.documents or (),
                add_generation_prompt=fields.add_generation_prompt,
                continue_final_message=fields.continue_final_message,
                chat_template=fields.chat_template,
                template_kwargs=kwargs,
                add_special_tokens=add_special_tokens,
                most_tokens=most_tokens,
            )
        )
    except TextTooLong as error:
        raise too_long(f"at least {error.fewest}", state, "messages") from None
    except TemplatesWait as error:
        raise Overloaded(str(error), "templates_full", _RETRY_SECONDS) from None
    except TemplateError as error:
        param = "messages" if fields.chat_template is None else "chat_template"
        raise BadRequest(str(error), param, "template_error") from None
