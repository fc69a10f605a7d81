"""Calls of tools that wait for the client's word, and get it with a later request."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from stentor.protocols.common.errors import refused, wrong
from stentor.protocols.openai.responses.items import Item

if TYPE_CHECKING:
    from .preparing import ConversationItems


def approved(conversation: "ConversationItems") -> list[Item]:
    """Approval requests whose calls are to run now: approved by the client, and not run yet."""
    asked = _asked(conversation)
    made = {item.get("approval_request_id") for item in conversation.items if item["type"] == "mcp_call"}
    names = [
        item["approval_request_id"]
        for item in conversation.given
        if item["type"] == "mcp_approval_response" and item["approve"]
    ]
    return [asked[name] for name in dict.fromkeys(names) if name not in made]


def check_approvals(conversation: "ConversationItems", labels: Collection[str]) -> None:
    """``labels`` of the servers that the request names. Raises BadRequest naming the field."""
    asked = _asked(conversation)
    answers: dict[str, bool] = {}
    for index, item in enumerate(conversation.given):
        if item["type"] != "mcp_approval_response":
            continue
        name, where = item["approval_request_id"], f"input[{index}].approval_request_id"
        if name not in asked:
            raise refused(where, "the conversation has no such request", "approval_request_not_found")
        if answers.setdefault(name, item["approve"]) != item["approve"]:
            raise refused(where, "it has been answered otherwise", "invalid_value")
    for call in approved(conversation):
        if call["server_label"] not in labels:
            raise wrong("tools", f"must name the server `{call['server_label'][:64]}`, a call to which is approved")


def _asked(conversation: "ConversationItems") -> dict[str, Item]:
    return {item["id"]: item for item in conversation.items if item["type"] == "mcp_approval_request"}
