"""The blocks of messages, as clients send them.

Unlisted fields are ignored, such as ``cache_control``: equal prefixes are found in the cache without it.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]


class TextBlock(msgspec.Struct, tag="text", tag_field="type", frozen=True):
    text: str


class Base64Source(msgspec.Struct, tag="base64", tag_field="type", frozen=True):
    """The content itself."""

    media_type: str
    data: Annotated[str, Meta(min_length=1)]


class UrlSource(msgspec.Struct, tag="url", tag_field="type", frozen=True):
    url: Annotated[str, Meta(min_length=1)]


class FileSource(msgspec.Struct, tag="file", tag_field="type", frozen=True):
    """A file that the caller has uploaded."""

    file_id: Identifier


ImageSource = Base64Source | UrlSource | FileSource


class Transformations(msgspec.Struct, frozen=True):
    oversized_image: Literal["downsize", "error"] = "downsize"


class ImageBlock(msgspec.Struct, tag="image", tag_field="type", frozen=True):
    source: Any = None
    """An :data:`ImageSource`, checked where the block's place is known."""
    transformations: Transformations | None = None


class ServerToolUseBlock(msgspec.Struct, tag="server_tool_use", tag_field="type", frozen=True):
    """Decoded so that it can be refused by name."""

    ONLY_REFUSED: ClassVar[bool] = True


class PlainTextSource(msgspec.Struct, tag="text", tag_field="type", frozen=True):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(msgspec.Struct, tag="content", tag_field="type", frozen=True):
    content: "str | list[TextBlock | ImageBlock]"


class Citations(msgspec.Struct, frozen=True):
    enabled: bool | None = None


class SearchResultBlock(msgspec.Struct, tag="search_result", tag_field="type", frozen=True):
    source: str
    """Where it was found."""
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ToolReferenceBlock(msgspec.Struct, tag="tool_reference", tag_field="type", frozen=True):
    """A tool that a search of the client's has found among the request's ``tools``."""

    tool_name: Identifier


DocumentSource = PlainTextSource | ContentSource | Base64Source | UrlSource | FileSource


class DocumentBlock(msgspec.Struct, tag="document", tag_field="type", frozen=True):
    source: Any = None
    """A :data:`DocumentSource`, checked where the block's place is known."""
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class ThinkingBlock(msgspec.Struct, tag="thinking", tag_field="type", frozen=True):
    """Its signature is not checked: a client may change thinking as it may change answers."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking", tag_field="type", frozen=True):
    """Encrypted for Anthropic's own models: it cannot be read here."""


class ToolUseBlock(msgspec.Struct, tag="tool_use", tag_field="type", frozen=True):
    id: Identifier
    name: Identifier
    input: dict[str, Any]


class CompactionBlock(msgspec.Struct, tag="compaction", tag_field="type", frozen=True):
    """Stands for all that is in front of it; see ``context_management``."""

    content: Annotated[str, Meta(min_length=1)] | None = None
    """A summary; without one the block has no effect."""


ResultBlock = TextBlock | DocumentBlock | ImageBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(msgspec.Struct, tag="tool_result", tag_field="type", frozen=True):
    tool_use_id: Identifier
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


InputBlock = (
    TextBlock
    | DocumentBlock
    | ImageBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | CompactionBlock
    | ServerToolUseBlock
)


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]
    clear_at: Literal["next_user_message", "never"] | None = None
    """Of a system message: whether the model reads it behind a later message of the user."""
    output_config: dict[str, Any] | None = None

    @property
    def blocks(self) -> list[InputBlock]:
        return [TextBlock(self.content)] if isinstance(self.content, str) else self.content
