"""Blocks of text, pictures and documents as the content of a message of chat."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from stentor.protocols.anthropic.content import (
    Base64Source,
    Citations,
    ContentSource,
    DocumentBlock,
    DocumentSource,
    FileSource,
    ImageBlock,
    ImageSource,
    InputBlock,
    PlainTextSource,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    ToolReferenceBlock,
    UrlSource,
)
from stentor.protocols.common.decoding import converted
from stentor.protocols.common.errors import BadRequest, missing, wrong
from stentor.protocols.openai.media_parts import FIELD, check_file_id, check_url
from stentor.protocols.openai.sampling import not_served

Part = str | dict[str, Any]
"""A text, or a part of chat that is none."""

BLOCKS_JOIN: Final = "\n"
"""Separates texts that the client sent as separate blocks. Blocks of a model are pieces of one text."""
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF: Final = "application/pdf"


def joined(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Joins parts into one content: a text, or a list if there is more than text. Neighbouring texts become one."""
    content: list[dict[str, Any]] = []
    texts: list[str] = []
    for part in (*parts, None):
        if isinstance(part, str):
            texts.append(part)
            continue
        if text := BLOCKS_JOIN.join(text for text in texts if text):
            content.append({"type": "text", "text": text})
        texts = []
        if part is not None:
            content.append(part)
    if not content:
        return ""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content


def as_parts(content: str | list[dict[str, Any]]) -> list[Part]:
    """The parts of a result of :func:`joined`, to be joined with more."""
    if isinstance(content, str):
        return [content]
    return [part["text"] if part["type"] == "text" else part for part in content]


def block_parts(block: ResultBlock, place: str) -> list[Part]:
    """Raises BadRequest naming a part below ``place`` that is unreadable or cannot be served."""
    match block:
        case TextBlock():
            return [block.text]
        case ImageBlock():
            return [_image(block, place)]
        case DocumentBlock():
            return _document(block, place)
        case SearchResultBlock():
            _check_citations(block.citations, place)
            return [text for text in (block.title, block.source, *(part.text for part in block.content)) if text]
        case ToolReferenceBlock():
            return [f"The tool `{block.tool_name}` can be called."]
        case other:
            assert_never(other)


def refused_block(block: InputBlock, place: str) -> BadRequest:
    kind = type(block).__struct_config__.tag
    return not_served(place, f"`{place}`: a block of type `{kind}`")


def _image(block: ImageBlock, place: str) -> dict[str, Any]:
    where = f"{place}.source"
    if block.transformations is not None and block.transformations.oversized_image == "error":
        field = f"{place}.transformations.oversized_image"
        raise not_served(field, f"`{field}` other than `downsize`")
    named: dict[str, str]
    source: ImageSource = _source(block.source, ImageSource, where)
    match source:
        case Base64Source(media_type=kind, data=data):
            if kind not in _IMAGES:
                raise wrong(f"{where}.media_type", f"must be one of {', '.join(_IMAGES)}", "invalid_value")
            named = {"url": f"data:{kind};base64,{data}"}
        case UrlSource(url=url):
            check_url(url, f"{where}.url")
            named = {"url": url}
        case FileSource(file_id=file):
            named = {"file_id": file}
    return {"type": "image_url", "image_url": named, FIELD: place}


def _document(block: DocumentBlock, place: str) -> list[Part]:
    """A document under its title."""
    _check_citations(block.citations, place)
    where = f"{place}.source"
    heading: list[Part] = [text for text in (block.title, block.context) if text]
    named: dict[str, str]
    source: DocumentSource = _source(block.source, DocumentSource, where)
    match source:
        case PlainTextSource(data=text):
            return [*heading, text]
        case ContentSource(content=parts):
            if isinstance(parts, str):
                return [*heading, parts]
            found = enumerate(parts)
            return heading + [part for index, each in found for part in block_parts(each, f"{where}.content[{index}]")]
        case Base64Source(media_type=kind, data=data):
            if kind != _PDF:
                raise wrong(f"{where}.media_type", f"must be {_PDF}", "invalid_value")
            named = {"file_data": f"data:{kind};base64,{data}"}
        case UrlSource(url=url):
            check_url(url, f"{where}.url")
            named = {"file_url": url}
        case FileSource(file_id=file):
            check_file_id(file, f"{where}.file_id")
            named = {"file_id": file}
    return [*heading, {"type": "file", "file": named, FIELD: place}]


def _check_citations(citations: Citations | None, place: str) -> None:
    if citations is not None and citations.enabled:
        raise not_served(f"{place}.citations", f"`{place}.citations`")


def _source(given: Any, kinds: Any, where: str) -> Any:
    if given is None:
        raise missing(where)
    return converted(given, kinds, where)
