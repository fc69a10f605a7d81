"""A conversation as the one text that is pooled: as the model's chat template writes it."""

from typing import Any

from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.openai.chat import template_kwargs
from stentor.protocols.pooling.common import InputFields

from ..common.errors import Overloaded
from ..text.errors import TemplateError, TemplatesWait, TextTooLong
from .model import EmbeddingModel
from .reading import LengthLimit, Prompt, cut

_RETRY_SECONDS = 2


async def read_messages(
    model: EmbeddingModel,
    fields: InputFields,
    messages: list[dict[str, Any]],
    where: str,
    room: LengthLimit,
    *,
    trusts_templates: bool,
) -> Prompt:
    """One conversation of the request, which stands in the field ``where``.

    Raises BadRequest, and Overloaded where too many templates of requests wait.
    """
    template, known = fields.chat_template, model.pool.chat_template
    if template is None and not model.pool.tokenizer.template_source:
        raise refused(where, "the model has no chat template; send texts as `input`", "unsupported")
    kwargs = template_kwargs(fields, known.reserved, trusted=trusts_templates or known.has(template or ""))
    try:
        ids = await model.pool.render_chat(
            messages,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            chat_template=template,
            template_kwargs=kwargs,
            documents=fields.documents,
            add_special_tokens=bool(fields.add_special_tokens),
            most_tokens=None if room.cut else room.most,
        )
    except TextTooLong as error:
        raise room.too_long(f"at least {error.fewest}", where) from None
    except TemplatesWait as error:
        raise Overloaded(str(error), "templates_full", _RETRY_SECONDS) from None
    except TemplateError as error:
        raise BadRequest(str(error), where if template is None else "chat_template", "template_error") from None
    if not ids:
        raise wrong(where, "must hold at least one token")
    if len(ids) > room.most:
        if room.cut is None:
            raise room.too_long(str(len(ids)), where)
        ids = cut(ids, room.most, room.cut)
    return Prompt(ids)
