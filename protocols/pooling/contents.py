"""Inputs of vectors and scores: a text, Jina's object, or vLLM's content parts."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ..common.bounds import items_at_most, prompt_chars_at_most
from ..common.errors import missing, wrong
from ..common.limits import Limits
from ..openai.media_parts import FIELD, MEDIA_PARTS, check_url
from ..openai.messages import check_part
from ..openai.sampling import not_served

MAX_TEXTS: Final = 2048
"""Texts of one request, as OpenAI's limit."""
Text = str | list[int]
"""Or its token ids."""
Content = str | list[dict[str, Any]]
"""A text, or the parts of one message, in the form of chat completions."""
_SCHEMES: Final = ("data:", "http:", "https:", "file:")


class ContentObject(msgspec.Struct):
    """A text or a picture or both, in Jina's words, or ``content`` in vLLM's, or a text in llama.cpp's."""

    text: str | None = None
    image: Any = None
    content: str | list[Any] | None = None
    prompt_string: str | None = None
    multimodal_data: Any = None


def content_of(item: str | ContentObject, field: str) -> Content:
    """Raises BadRequest with the fault in ``field``."""
    if isinstance(item, str):
        return item
    if item.multimodal_data:
        raise not_served(f"{field}.multimodal_data")
    if item.prompt_string is not None and item.text is None:
        item.text = item.prompt_string
    if item.content is not None:
        if item.text is not None or item.image is not None:
            raise wrong(f"{field}.content", "stands alone: give either it, or `text` and `image`")
        return item.content if isinstance(item.content, str) else _parts(item.content, f"{field}.content")
    parts: list[dict[str, Any]] = []
    if item.image is not None:
        parts.append(picture(item.image, f"{field}.image"))
    if item.text is not None:
        parts.append({"type": "text", "text": item.text})
    if not parts:
        raise missing(f"{field}.text")
    return parts


def picture(given: Any, field: str) -> dict[str, Any]:
    """A picture by URL, or as base64. Raises BadRequest."""
    if isinstance(given, str) and given and not given.lower().startswith(_SCHEMES):
        given = f"data:image/png;base64,{given}"
    check_url(given, field)
    return {"type": "image_url", "image_url": {"url": given}, FIELD: field}


def _parts(given: list[Any], field: str) -> list[dict[str, Any]]:
    if not given:
        raise wrong(field, "must hold at least one part")
    parts = []
    for index, part in enumerate(given):
        where = f"{field}[{index}]"
        check_part(part, where)
        parts.append({**part, FIELD: where} if part["type"] in MEDIA_PARTS else part)
    return parts


def plain_text(content: Content) -> str | None:
    """The text of plain content; None for other content."""
    if isinstance(content, str):
        return content
    if any(part["type"] in MEDIA_PARTS for part in content):
        return None
    return "\n".join(texts_in(content))


def content_as_text(content: Content) -> Content:
    """Joins parts that are all text into one text."""
    text = plain_text(content)
    return content if text is None else text


def texts_in(content: Content) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part[part["type"]] for part in content if part["type"] not in MEDIA_PARTS]


def check_texts(texts: Sequence[Text], limits: Limits, field: str) -> None:
    """Raises BadRequest for too many of them, and for too many characters."""
    items_at_most(texts, MAX_TEXTS, field)
    prompt_chars_at_most(texts, limits.max_prompt_chars, field)


def check_contents(contents: Sequence[Content], limits: Limits, field: str) -> None:
    """Raises BadRequest for too many contents, and for too many characters in all of their texts."""
    items_at_most(contents, MAX_TEXTS, field)
    prompt_chars_at_most(list(_every(contents)), limits.max_prompt_chars, field)


def _every(contents: Iterable[Content]) -> Iterable[str]:
    for content in contents:
        yield from texts_in(content)
