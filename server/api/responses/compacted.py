"""The item of a compacted conversation: its contents, and how a conversation continues from it."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.responses.items import LOADING, Item
from stentor.protocols.openai.responses.tools import loaded_tools

SUMMARY: Final = b"summary"
"""The use of a compaction item's content, which holds checked items: no text of a model may be sealed as one."""


class Unseal(Protocol):
    def __call__(self, sealed: str, use: bytes = b"", /) -> str:
        """From ``encrypted_content`` to text. Raises BadRequest for content that this server did not encrypt for this
        use."""


class Compacted(msgspec.Struct, frozen=True):
    """Content of a compaction item."""

    said: list[str]
    """The user's messages, word for word."""
    summary: str
    """The model's summary of the conversation."""
    kept: list[Item] = []
    """Items that hold for what follows: see :func:`kept_of`."""
    unanswered: bool = False
    """Whether the conversation ended with the last of them, which then stays behind the summary."""
    whole: bool = False
    """Whether it stands for everything before it; otherwise clients choose what they leave in front of it."""


def opened(item: Item, unseal: Unseal) -> Compacted:
    """Raises BadRequest."""
    try:
        return msgspec.json.decode(unseal(item["encrypted_content"], SUMMARY), type=Compacted)
    except msgspec.DecodeError:  # of another version
        raise BadRequest(
            "`encrypted_content` of an item of compaction holds no compacted conversation; leave the item out.",
            "input",
            "invalid_encrypted_content",
        ) from None


def kept_of(items: Sequence[Item]) -> list[Item]:
    """The tools that items have brought, the latest settings of each kind, and the latest list of each tool server: a
    summary does not hold them, and the conversation needs them."""
    loading = [item for item in items if item["type"] in LOADING]
    loaded = loaded_tools([], (tool for item in loading for tool in item["tools"]))
    latest: dict[tuple[str, str], Item] = {}
    for item in items:
        if item["type"] == "configuration_update":
            for kind in ("reasoning", "text"):
                if kind in item:
                    latest["setting", kind] = {"id": item["id"], "type": item["type"], kind: item[kind]}
        elif item["type"] == "mcp_list_tools" and not item.get("error"):
            latest["list", item["server_label"]] = item
    if not loaded:
        return [*latest.values()]
    return [
        {"id": loading[0]["id"], "type": "additional_tools", "role": "developer", "tools": loaded},
        *latest.values(),
    ]


def in_force(items: list[Item], unseal: Unseal) -> list[Item]:
    """Replaces each compaction item by the items that it kept and itself, without those that it summarises. Raises
    BadRequest."""
    if not any(item["type"] == "compaction" for item in items):
        return items
    found: list[Item] = []
    for item in items:
        if item["type"] == "compaction":
            compacted = opened(item, unseal)
            found = [*(() if compacted.whole else found), *compacted.kept]
        found.append(item)
    return found
