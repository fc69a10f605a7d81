"""Converts files in messages to texts and pictures."""

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from stentor.protocols.common.bounds import message_chars_at_most
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.media_parts import FIELD, MEDIA_PARTS, field_of

from .decoding.documents import Page, kind_of, read_text
from .parts import Media
from .refusal import Refusal

Message = dict[str, Any]
Load = Callable[[str, str, str], Awaitable[Media]]
"""From a URL, or the id of a stored file, and their field, to the media. Raises BadRequest."""
ReadPdf = Callable[[bytes], Awaitable[Sequence[Page]]]
"""Reads the pages of a PDF in a child process."""

_BINARY: Final = "data:application/octet-stream;base64,"
_IMAGE_TYPE: Final = re.compile(r"image/[a-z0-9.+-]{1,64}")
_NAMED: Final = 8
"""Pages that an error names, at most."""
_KNOWN: Final = "PDFs, images and plain texts are read"


def has_files(messages: Sequence[Message]) -> bool:
    return any(_is_file(part) for message in messages for part in _parts(message))


async def read_files(
    messages: Sequence[Message],
    load: Load,
    read_pdf: ReadPdf,
    most_chars: int,
    where: str = "messages",
    *,
    sees: bool = True,
) -> list[Message]:
    """The messages with texts and pictures in place of each ``file``; ``where`` is their field, ``sees`` whether the
    model takes images.

    Messages without files are not copied. Raises BadRequest naming the part for a file that cannot be loaded or read,
    for pages without text with a text model, and for messages whose texts then exceed ``most_chars`` characters.
    """
    told = []
    for place, message in enumerate(messages):
        if any(map(_is_file, _parts(message))):
            parts: list[Any] = []
            for index, part in enumerate(message["content"]):
                found = f"{where}[{place}].content[{index}]"
                parts += await _read(part, found, load, read_pdf, sees) if _is_file(part) else [_placed(part, found)]
            message = {**message, "content": parts}
        told.append(message)
    message_chars_at_most(told, most_chars, where)
    return told


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_file(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "file"


def _placed(part: Any, where: str) -> Any:
    """Media under the place that they had before files became several parts."""
    return {FIELD: where, **part} if isinstance(part, dict) and part.get("type") in MEDIA_PARTS else part


async def _read(part: dict[str, Any], where: str, load: Load, read_pdf: ReadPdf, sees: bool) -> list[dict[str, Any]]:
    place, param = field_of(part, where)
    file = part["file"]
    url = file.get("file_url") or file.get("file_data") or ""
    if file.get("file_data") and url[:5].lower() != "data:":
        url = _BINARY + url
    media = await load(url, file.get("file_id") or "", param)
    try:
        match kind_of(media.data):
            case "pdf":
                pages = await read_pdf(media.data)
                if not sees and any(page.image for page in pages):
                    raise Refusal(_unseen(pages), "unsupported")
                told = _pages(pages)
            case "image":
                told = [_image(media.data, media.content_type or "image/png")]
            case "text":
                told = [_text(read_text(media.data))]
            case _:
                raise Refusal(f"files of this kind are not read; {_KNOWN}")
    except Refusal as refusal:
        raise BadRequest(f"`{param}`: {refusal}.", param, refusal.code) from None
    if file.get("filename") and told[0]["type"] == "text":
        told[0] = _text(f"{file['filename']}\n\n{told[0]['text']}")
    return [{**one, FIELD: place} if one["type"] == "image_url" else one for one in told]


def _unseen(pages: Sequence[Page]) -> str:
    """Refusal of a document with pages that must be pictures."""
    scanned = [number for number, page in enumerate(pages, 1) if page.image]
    if len(scanned) == len(pages):
        return "its pages have no text, only pictures of it, and the model cannot see; send the text"
    named = ", ".join(map(str, scanned[:_NAMED])) + (" and others" if len(scanned) > _NAMED else "")
    which = f"page {named} has" if len(scanned) == 1 else f"pages {named} have"
    return f"{which} no text, only a picture of it, and the model cannot see; send the text"


def _pages(pages: Sequence[Page]) -> list[dict[str, Any]]:
    """Neighbouring texts are one."""
    told: list[dict[str, Any]] = []
    for page in pages:
        if page.image:
            told.append(_image(page.image, "image/jpeg"))
        elif told and told[-1]["type"] == "text":
            told[-1] = _text(f"{told[-1]['text']}\n\n{page.text}")
        else:
            told.append(_text(page.text))
    return told


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(data: bytes, kind: str) -> dict[str, Any]:
    """``kind`` is the sender's type, which is not trusted."""
    kind = kind if _IMAGE_TYPE.fullmatch(kind) else "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}
