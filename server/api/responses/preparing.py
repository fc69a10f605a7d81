"""From a request to the conversation that it means: its own items, those it refers to, and those that came before."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.protocols.common.errors import BadRequest, missing, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.responses.items import REFERENCE, Item, read_items, without_trigger
from stentor.protocols.openai.responses.mcp import MCP, has_secrets, without_secrets
from stentor.protocols.openai.responses.objects import ConversationName, ResponseObject
from stentor.protocols.openai.responses.request import (
    ContextFields,
    ContextManagement,
    Reasoning,
    ResponseRequest,
    TextConfig,
    TextFormat,
)
from stentor.protocols.openai.responses.tools import shown_tools

from ...common.keys import Caller
from ...generation.admission import context_length, most_prompt_tokens
from ...generation.chat_model import ChatModel
from ...generation.prepare import prompt_of
from ...overload.memory_budget import STORED_FACTOR, MemoryShare
from ...storage import conversations, responses, secrets
from ...storage.database import Database
from ...tools.servers import Server
from .approvals import check_approvals
from .compacted import Compacted, in_force
from .conversion import NO_FIELDS, chat_request, compacted_of, droppable
from .encrypted_content import EncryptedContent
from .ids import Ids, random_id
from .naming import map_response_fields
from .offering import known_lists, offer_functions, server_tools, with_loaded_tools, with_updates
from .services import ResponseServices

if TYPE_CHECKING:
    import sqlite3

_SECRET: Final = "seal"
MAX_SUMMARY_TOKENS: Final = 1024
_WISH: Final = {
    "type": "input_text",
    "text": "Summarize the conversation so far, so that it can be continued from your summary alone: facts, decisions, "
    "names, numbers, results of tools, and what is still to be done. Write nothing but the summary.",
}


class ConversationItems(msgspec.Struct, frozen=True):
    """The items of a prompt."""

    history: list[Item]
    """Items before the request."""
    given: list[Item]
    """The request's own items, with references resolved."""
    items: list[Item]
    """Those that hold: see :func:`.compacted.in_force`."""
    compacts: bool = False
    """Whether the request only asks that the conversation be compacted."""

    @property
    def fields(self) -> dict[str, str]:
        """Paths of the request's own items in the client's request, by item id."""
        return {item["id"]: f"input[{index}]" for index, item in enumerate(self.given)}


class Prepared(msgspec.Struct, frozen=True):
    """A request that is ready to run."""

    request: ResponseRequest
    response: ResponseObject
    """The response before generation."""
    conversation: ConversationItems
    chat: ChatRequest
    caller: Caller
    seal: EncryptedContent
    ids: Ids
    servers: tuple[Server, ...] = ()
    """Tool servers; only here are the request's secrets."""
    locked: tuple[str, ...] = ()
    """Labels of those that have some."""
    compacts: Compacted | None = None
    """What the first item of the response is to hold beside a summary, which ``chat`` asks for; None: there is none."""
    answers: bool = True
    """Whether an answer follows that item."""
    held: int = 0
    """Bytes of memory that it takes as long as it runs; see :mod:`...overload.memory_budget`."""


async def seal_of(store: Database, caller: Caller) -> EncryptedContent:
    return EncryptedContent(await store.once(_SECRET, partial(secrets.secret, name=_SECRET)), caller.owner)


async def read_conversation(
    services: ResponseServices,
    request: ContextFields,
    caller: Caller,
    memory: MemoryShare,
    seal: EncryptedContent,
    *,
    extra: Sequence[Item] | None = None,
) -> ConversationItems:
    """Memory of loaded items is counted in ``memory`` first. Raises BadRequest, also for items that do not exist (404)
    or belong to another caller, and MemoryFull.

    ``extra``: earlier items that are not stored.
    """
    limits = services.limits
    if request.input is None and request.previous_response_id is None and request.conversation is None:
        raise missing("input")
    given, compacts = [], False
    if request.input is not None:
        asked, compacts = without_trigger(request.input)
        given = read_items(asked, limits, random_id)
    history: list[Item] = []
    if extra is not None:
        history = list(extra)
    elif request.previous_response_id is not None:
        history = await _chain(services, caller, request.previous_response_id, memory)
    elif request.conversation_id is not None:
        size = await services.store.read(partial(_conversation_bytes, caller.owner, request.conversation_id))
        _count(services.limits, size, memory, "conversation")
        history = await services.store.read(partial(conversations.items, conversation=request.conversation_id))
    if any(item["type"] == REFERENCE for item in given):
        given = await _resolved(services, given, history, caller, memory)
    if not history and not given:
        raise wrong("input", "must hold at least one item")
    if len(history) + len(given) > limits.max_messages:
        raise BadRequest(
            f"The conversation has {len(history) + len(given)} items; this server allows at most "
            f"{limits.max_messages}.",
            "input",
            "array_above_max_length",
        )
    return ConversationItems(history, given, in_force(history + given, seal.open), compacts)


async def prepare(
    services: ResponseServices,
    request: ResponseRequest,
    caller: Caller,
    memory: MemoryShare,
    *,
    extra: Sequence[Item] | None = None,
) -> Prepared:
    """Raises BadRequest for a request that cannot be served, and MemoryFull; ``memory`` is the request's share."""
    request.check(services.limits)
    services.chat.resolve(request.model)
    response_id = random_id("resp")
    tools = request.tools or []
    servers = await services.gateway.servers(tools)
    locked = tuple(tool["server_label"] for tool in tools if tool["type"] == MCP and has_secrets(tool))
    if servers:
        request = msgspec.structs.replace(request, tools=[without_secrets(tool) for tool in tools])
    seal = await seal_of(services.store, caller)
    conversation = await read_conversation(services, request, caller, memory, seal, extra=extra)
    check_approvals(conversation, [server.label for server in servers])
    request = with_updates(request, conversation.items)
    shown = _shown(services.chat, request, response_id)
    managed, items = request.context_management, conversation.items
    compacts: Compacted | None = None
    if conversation.compacts:
        compacts = compacted_of(items, seal.open, whole=True)
        chat = await summarizing(services.chat, request, items, seal, request.max_output_tokens)
        servers = ()
    else:
        request = with_loaded_tools(request, items)
        if managed and await _is_long(services.chat, managed[0], request, conversation, seal, tools):
            compacts = compacted_of(items, seal.open, whole=True)
            chat = await summarizing(services.chat, request, items, seal)
        else:
            chat = await fitting(services.chat, request, items, seal, conversation.fields, own_tools=tools)
    answers, held = not conversation.compacts, memory.size
    return Prepared(
        request, shown, conversation, chat, caller, seal, Ids(response_id), servers, locked, compacts, answers, held
    )


async def _is_long(
    model: ChatModel,
    managed: ContextManagement,
    request: ResponseRequest,
    conversation: ConversationItems,
    seal: EncryptedContent,
    tools: Sequence[dict[str, Any]],
) -> bool:
    """Whether the prompt has more tokens than the request wants it to have."""
    most = managed.compact_threshold or context_length(model) * 3 // 4
    whole = chat_request(request, conversation.items, seal.open, conversation.fields)
    return await count_tokens(model, whole, tools) > most


async def summarizing(
    model: ChatModel, asked: ContextFields, items: list[Item], seal: EncryptedContent, most: int | None = None
) -> ChatRequest:
    """The request for a summary of a conversation, of ``most`` tokens, by the model and instructions of ``asked``.

    A model that thinks is told not to, and may use half of the tokens for it if it does: the rest is the summary's.
    """
    wish: Item = {"id": random_id("msg"), "type": "message", "role": "user", "content": [_WISH]}
    fields = ContextFields(
        model=asked.model, instructions=asked.instructions, truncation="auto", reasoning=Reasoning("none")
    )
    room = min(MAX_SUMMARY_TOKENS, (model.max_model_len or 4) // 4, most or MAX_SUMMARY_TOKENS)
    chat = await fitting(model, fields, [*items, wish], seal, max_tokens=room)
    return msgspec.structs.replace(chat, thinking_token_budget=room // 2)


async def fitting(
    model: ChatModel,
    request: ContextFields,
    items: list[Item],
    seal: EncryptedContent,
    fields_of: Mapping[str, str] = NO_FIELDS,
    max_tokens: int | None = None,
    own_tools: Sequence[dict[str, Any]] | None = None,
) -> ChatRequest:
    """The request for the answer; with ``truncation`` auto, without as many of the oldest items as do not fit.

    ``fields_of`` as :attr:`ConversationItems.fields`. ``own_tools``: those that the client knows by their places, where
    they are not the request's.
    """
    named = request.tools if own_tools is None else own_tools

    def asking(kept: list[Item]) -> ChatRequest:
        chat = chat_request(request, kept, seal.open, fields_of)
        return chat if max_tokens is None else msgspec.structs.replace(chat, max_completion_tokens=max_tokens)

    whole = asking(items)
    if request.truncation != "auto" or await _fits(model, whole, named):
        return whole
    counts = list(droppable(items))
    if not counts or not await _fits(model, asking(items[counts[-1] :]), named):
        return whole  # and it will be refused

    async def fits(count: int) -> bool:
        return await _fits(model, asking(items[count:]), named)

    return asking(items[await first_fitting(counts, fits) :])


async def first_fitting(counts: Sequence[int], fits: Callable[[int], Awaitable[bool]]) -> int:
    """The first of ascending ``counts`` that ``fits``; all behind it fit too, and the last is assumed to."""
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits(counts[middle]):
            high = middle
        else:
            low = middle + 1
    return counts[low]


async def count_tokens(model: ChatModel, chat: ChatRequest, tools: Sequence[dict[str, Any]] | None) -> int:
    """Tokens of the prompt, without a limit; ``tools`` by the client's names. Raises BadRequest as a request would."""
    with map_response_fields(tools or ()):
        return len(await prompt_of(model, chat))


async def count_context(services: ResponseServices, request: ContextFields, caller: Caller, memory: MemoryShare) -> int:
    """Tokens of the prompt that a request means; of tools on other servers, those that the conversation lists.

    Raises BadRequest.
    """
    request.check_context(services.limits)
    servers = await services.gateway.servers(request.tools or [])
    seal = await seal_of(services.store, caller)
    conversation = await read_conversation(services, request, caller, memory, seal)
    own = request.tools or []
    request = with_loaded_tools(with_updates(request, conversation.items), conversation.items)
    if servers:
        request = offer_functions(request, server_tools(request, servers, known_lists(conversation.items)))
    named = request.tools if servers else own
    chat = await fitting(services.chat, request, conversation.items, seal, conversation.fields, own_tools=named)
    return await count_tokens(services.chat, chat, named)


async def _fits(model: ChatModel, chat: ChatRequest, tools: Sequence[dict[str, Any]] | None) -> bool:
    count = await count_tokens(model, chat, tools)
    return count <= most_prompt_tokens(model) and count + (chat.wanted_tokens or 1) <= context_length(model)


def _count(limits: Limits, size: int, memory: MemoryShare, field: str) -> None:
    """Counts ``size`` bytes of stored JSON before they are loaded. Raises BadRequest if a body could not have as
    many."""
    most = limits.max_body_bytes
    if size > most:
        raise BadRequest(
            f"`{field}`: what is stored there has {size} bytes; this server takes at most {most} for a response.",
            field,
            "conversation_too_large",
            413,
        )
    memory.add(STORED_FACTOR * size, field)


async def _chain(services: ResponseServices, caller: Caller, previous: str, memory: MemoryShare) -> list[Item]:
    if (live := services.live.find(caller.owner, previous)) is not None and live.log is not None:
        raise BadRequest(
            f"The response `{previous[:80]}` has not ended yet.", "previous_response_id", "response_in_progress"
        )
    most = services.limits.max_messages
    size = await services.store.read(partial(responses.chain_bytes, owner=caller.owner, response=previous, most=most))
    if size is not None:
        _count(services.limits, size, memory, "previous_response_id")
    found = await services.store.write(partial(responses.chain, owner=caller.owner, response=previous, most=most))
    if found is None:
        raise BadRequest(
            f"The previous response `{previous[:80]}`, or one before it, is not stored here.",
            "previous_response_id",
            "previous_response_not_found",
        )
    return found


def _conversation_bytes(owner: str, conversation: str, db: "sqlite3.Connection") -> int:
    if conversations.find(db, owner, conversation) is None:
        raise BadRequest(
            f"The conversation `{conversation[:80]}` does not exist.", "conversation", "conversation_not_found", 404
        )
    return conversations.items_bytes(db, conversation)


async def _resolved(
    services: ResponseServices, given: list[Item], history: list[Item], caller: Caller, memory: MemoryShare
) -> list[Item]:
    """``given`` with references replaced by their items: each is loaded once, and counts each time."""
    known = {item["id"]: item for item in history}
    names = [item["id"] for item in given if item["type"] == REFERENCE]
    sizes = await services.store.read(partial(_item_sizes, caller.owner, set(names) - known.keys()))
    for name in known.keys() & set(names):
        sizes[name] = len(msgspec.json.encode(known[name]))
    total = sum(sizes.get(name, 0) for name in names)
    _count(services.limits, total, memory, "input")
    known |= await services.store.read(partial(_load_items, caller.owner, sizes.keys() - known.keys()))
    resolved = []
    for index, item in enumerate(given):
        if item["type"] == REFERENCE:
            name = item["id"]
            if name not in known:
                where = f"input[{index}].id"
                raise BadRequest(f"`{where}`: there is no stored item `{name[:80]}`.", where, "item_not_found", 404)
            item = known[name]
        resolved.append(item)
    return resolved


def _item_sizes(owner: str, names: Iterable[str], db: "sqlite3.Connection") -> dict[str, int]:
    sizes = ((name, responses.item_bytes(db, owner, name)) for name in names)
    return {name: size for name, size in sizes if size is not None}


def _load_items(owner: str, names: Iterable[str], db: "sqlite3.Connection") -> dict[str, Item]:
    found = ((name, responses.find_item(db, owner, name)) for name in names)
    return {name: item for name, item in found if item is not None}


def _shown(model: ChatModel, request: ResponseRequest, response_id: str) -> ResponseObject:
    """Every field as it holds for this response."""
    defaults = model.defaults
    text = request.text or TextConfig()
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        model=model.resolve(request.model),
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
