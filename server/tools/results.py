"""What a tool answered, as the text that the model reads."""

from typing import Any, Final

import msgspec

_MARK: Final = "\n[… cut here: the result has {total} characters, of which these are the first {kept}]"


def text_of_result(result: Any, most: int) -> str:
    """``result``: a ``CallToolResult``; ``most`` characters of it are kept."""
    parts = [_text(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return cut("\n".join(parts), most)


def cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[:most] + _MARK.format(total=len(text), kept=most)


def _text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case "resource":
            return f"[a file, {block.resource.uri}, that is not shown]"
        case "resource_link":
            return f"[a link to {block.uri}]"
        case kind:
            return f"[{kind}, {block.mime_type}, that is not shown]"
