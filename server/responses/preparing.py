"""From a request to the conversation that it means: its own items, those it refers to, and those that came before."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.errors import BadRequest
from stentor.protocols.openai.responses.items import REFERENCE, Item, read_items
from stentor.protocols.openai.responses.mcp import MCP, has_secrets, without_secrets
from stentor.protocols.openai.responses.objects import ConversationName, ResponseObject
from stentor.protocols.openai.responses.request import (
    ContextFields,
    Reasoning,
    ResponseRequest,
    TextConfig,
    TextFormat,
)
from stentor.protocols.openai.responses.tools import shown_tools

from ..conversation.admission import context_length, most_prompt_tokens
from ..conversation.turn import prompt_of
from ..door.keys import Caller
from ..mcp.servers import Server
from ..state import ServerState
from ..store import conversations, responses, secrets
from .approvals import check_approvals
from .conversion import chat_request, droppable
from .ids import Ids, random_id
from .naming import in_our_words
from .offering import asking, known_lists, offered_beside
from .seal import Seal

if TYPE_CHECKING:
    import sqlite3

_SECRET: Final = "seal"


@dataclass(frozen=True)
class Conversation:
    """What a prompt is made of."""

    history: list[Item]
    """What was there before the request."""
    given: list[Item]
    """The request's own items; what it referred to is in their places."""

    @property
    def items(self) -> list[Item]:
        return self.history + self.given


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be run."""

    request: ResponseRequest
    response: ResponseObject
    """As it is before anything has been generated."""
    conversation: Conversation
    chat: ChatRequest
    caller: Caller
    seal: Seal
    ids: Ids
    servers: tuple[Server, ...] = ()
    """Of tools; with them the request's secrets, which are nowhere else."""
    locked: tuple[str, ...] = ()
    """Labels of those that have some."""


async def seal_of(state: ServerState, caller: Caller) -> Seal:
    return Seal(await state.store.once(_SECRET, partial(secrets.secret, name=_SECRET)), caller.owner)


async def read_conversation(
    state: ServerState, request: ContextFields, caller: Caller, *, extra: Sequence[Item] | None = None
) -> Conversation:
    """Raises BadRequest, also for what is not there (404) or is another caller's.

    ``extra`` is what came before, where that is not stored.
    """
    limits = state.limits
    if request.input is None and request.previous_response_id is None and request.conversation is None:
        raise BadRequest("`input` is required.", "input", "missing_required_parameter")
    given = [] if request.input is None else read_items(request.input, limits, random_id)
    history: list[Item] = []
    if extra is not None:
        history = list(extra)
    elif request.previous_response_id is not None:
        history = await _chain(state, caller, request.previous_response_id)
    elif request.conversation_id is not None:
        history = await state.store.read(partial(_conversation, caller.owner, request.conversation_id))
    if any(item["type"] == REFERENCE for item in given):
        given = await _resolved(state, given, history, caller)
    if not history and not given:
        raise BadRequest("`input` must hold at least one item.", "input")
    if len(history) + len(given) > limits.max_messages:
        raise BadRequest(
            f"The conversation has {len(history) + len(given)} items; this server allows at most "
            f"{limits.max_messages}.",
            "input",
            "array_above_max_length",
        )
    return Conversation(history, given)


async def prepare(
    state: ServerState, request: ResponseRequest, caller: Caller, *, extra: Sequence[Item] | None = None
) -> Prepared:
    """Raises BadRequest for whatever cannot be served."""
    request.check(state.limits)
    state.resolve_model(request.model)
    response_id = random_id("resp")
    tools = request.tools or []
    servers = await state.mcp.servers(tools)
    locked = tuple(tool["server_label"] for tool in tools if tool["type"] == MCP and has_secrets(tool))
    if servers:
        request = msgspec.structs.replace(request, tools=[without_secrets(tool) for tool in tools])
    conversation = await read_conversation(state, request, caller, extra=extra)
    check_approvals(conversation, [server.label for server in servers])
    seal = await seal_of(state, caller)
    chat = await fitting(state, request, conversation.items, seal)
    shown = _shown(state, request, response_id)
    return Prepared(request, shown, conversation, chat, caller, seal, Ids(response_id), servers, locked)


async def fitting(
    state: ServerState, request: ContextFields, items: list[Item], seal: Seal, max_tokens: int | None = None
) -> ChatRequest:
    """The request for the answer; with ``truncation`` auto, without as many of the oldest items as do not fit."""

    def asking(kept: list[Item]) -> ChatRequest:
        chat = chat_request(request, kept, seal.open)
        return chat if max_tokens is None else msgspec.structs.replace(chat, max_completion_tokens=max_tokens)

    whole = asking(items)
    if request.truncation != "auto" or await _fits(state, whole):
        return whole
    counts = list(droppable(items))
    low, high = 0, len(counts) - 1
    if not counts or not await _fits(state, asking(items[counts[high] :])):
        return whole  # and it will be refused
    while low < high:
        middle = (low + high) // 2
        if await _fits(state, asking(items[counts[middle] :])):
            high = middle
        else:
            low = middle + 1
    return asking(items[counts[low] :])


async def count_tokens(state: ServerState, chat: ChatRequest) -> int:
    """Of the prompt, however long. Raises BadRequest as a request for the answer would."""
    with in_our_words():
        return len(await prompt_of(state, chat))


async def count_context(state: ServerState, request: ContextFields, caller: Caller) -> int:
    """Tokens of the prompt that a request means; of tools on other servers, those that the conversation lists.

    Raises BadRequest.
    """
    request.check_context(state.limits)
    servers = await state.mcp.servers(request.tools or [])
    conversation = await read_conversation(state, request, caller)
    seal = await seal_of(state, caller)
    if servers:
        request = asking(request, offered_beside(request, servers, known_lists(conversation.items)))
    return await count_tokens(state, await fitting(state, request, conversation.items, seal))


async def _fits(state: ServerState, chat: ChatRequest) -> bool:
    count = await count_tokens(state, chat)
    return count <= most_prompt_tokens(state) and count + (chat.wanted_tokens or 1) <= context_length(state)


async def _chain(state: ServerState, caller: Caller, previous: str) -> list[Item]:
    if (live := state.responses.find(caller.owner, previous)) is not None and live.log is not None:
        raise BadRequest(
            f"The response `{previous[:80]}` has not ended yet.", "previous_response_id", "response_in_progress"
        )
    most = state.limits.max_messages
    found = await state.store.write(partial(_read_chain, caller.owner, previous, most))
    if found is None:
        raise BadRequest(
            f"The previous response `{previous[:80]}`, or one before it, is not stored here.",
            "previous_response_id",
            "previous_response_not_found",
            404,
        )
    return found


def _read_chain(owner: str, previous: str, most: int, db: "sqlite3.Connection") -> list[Item] | None:
    return responses.chain(db, owner, previous, most)


def _conversation(owner: str, conversation: str, db: "sqlite3.Connection") -> list[Item]:
    if conversations.find(db, owner, conversation) is None:
        raise BadRequest(
            f"The conversation `{conversation[:80]}` does not exist.", "conversation", "conversation_not_found", 404
        )
    return conversations.items(db, conversation)


async def _resolved(state: ServerState, given: list[Item], history: list[Item], caller: Caller) -> list[Item]:
    known = {item["id"]: item for item in history}
    resolved = []
    for index, item in enumerate(given):
        if item["type"] == REFERENCE:
            name = item["id"]
            found = known.get(name) or await state.store.read(partial(_find_item, caller.owner, name))
            if found is None:
                where = f"input[{index}].id"
                raise BadRequest(f"`{where}`: there is no stored item `{name[:80]}`.", where, "item_not_found", 404)
            item = found
        resolved.append(item)
    return resolved


def _find_item(owner: str, item: str, db: "sqlite3.Connection") -> Item | None:
    return responses.find_item(db, owner, item)


def _shown(state: ServerState, request: ResponseRequest, response_id: str) -> ResponseObject:
    """Every field as it holds for this response."""
    defaults = state.defaults
    text = request.text or TextConfig()
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        model=state.resolve_model(request.model),
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        conversation=None if request.conversation_id is None else ConversationName(request.conversation_id),
        tools=shown_tools(request.tools or []),
        tool_choice="auto" if request.tool_choice is None else request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        max_output_tokens=request.max_output_tokens,
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        reasoning=request.reasoning or Reasoning(),
        text=TextConfig(text.format or TextFormat("text"), text.verbosity or "medium"),
        truncation=request.truncation or "disabled",
        store=request.stored,
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        user=request.user,
    )
