"""Builds the chat request of a response: items and the session's settings, truncated to the context."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.chat import ChatRequest, chat_of
from stentor.protocols.openai.media_parts import FIELD
from stentor.protocols.openai.realtime.items import FunctionCallItem, FunctionCallOutputItem, MessageItem
from stentor.protocols.openai.realtime.session import RealtimeSession, RetentionRatio
from stentor.protocols.openai.responses.tools import chat_choice, chat_tools

from ....common.keys import Caller
from ....generation.admission import GenerationOptions, context_length, most_prompt_tokens
from ....generation.chat_model import ChatModel
from ....generation.prepare import PreparedGeneration, prepare_generation, prompt_of
from ....overload.request_context import RequestContext
from ...responses.conversion import messages_of
from ...responses.naming import map_response_fields
from ...responses.preparing import first_fitting
from ..conversation.conversation import Entry, RealtimeConversation, parts_of, text_of

ANSWER_SHARE: Final = 4
"""The context is divided by this: the answer gets at least a quarter, or its own token limit if that is less."""
RETAINED: Final = 0.8
"""Fraction of the conversation's room that is kept when the server truncates: truncation changes the beginning of every
later prompt, which must then be computed anew."""


def chat_request(session: RealtimeSession, entries: Sequence[Entry]) -> ChatRequest:
    messages = messages_of([input_item(entry) for entry in whole_calls(entries)], _unsealed)
    if session.instructions:
        messages.insert(0, {"role": "system", "content": session.instructions})
    fields: dict[str, Any] = {
        "model": session.model,
        "messages": messages or [{"role": "user", "content": ""}],
        "max_completion_tokens": None if session.max_output_tokens == "inf" else session.max_output_tokens,
    }
    if session.tools:
        fields["tools"] = chat_tools(session.tools)
        fields["tool_choice"] = chat_choice(session.tool_choice, session.tools)
        if session.parallel_tool_calls is not UNSET:
            fields["parallel_tool_calls"] = session.parallel_tool_calls
    if session.reasoning:
        fields["reasoning_effort"] = session.reasoning.effort
    return chat_of(fields)


def _unsealed(_text: str, _use: bytes = b"", /) -> str:
    raise AssertionError("nothing is sealed in these conversations")


def whole_calls(entries: Sequence[Entry]) -> list[Entry]:
    """Entries for the model: no message without words, no truncated call, no output without its call."""
    kept = []
    calls: set[str] = set()
    for entry in entries:
        match entry.item:
            case MessageItem():
                if not entry.images and not text_of(entry).strip():
                    continue
            case FunctionCallItem(status="completed", call_id=call_id):
                calls.add(call_id)
            case FunctionCallOutputItem(call_id=call_id) if call_id in calls:
                pass
            case _:
                continue
        kept.append(entry)
    return kept


def input_item(entry: Entry) -> dict[str, Any]:
    """In the words of the Responses API."""
    match entry.item:
        case MessageItem(role=role):
            if entry.images:
                return {"id": entry.item.id, "type": "message", "role": role, "content": _parts(entry)}
            kind = "output_text" if role == "assistant" else "input_text"
            return {"type": "message", "role": role, "content": [{"type": kind, "text": text_of(entry)}]}
        case FunctionCallItem() as call:
            return {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments or "{}",
            }
        case FunctionCallOutputItem() as output:
            return {"type": "function_call_output", "call_id": output.call_id, "output": output.output}


def _parts(entry: Entry) -> list[dict[str, Any]]:
    return [
        {"type": "input_text", "text": part}
        if isinstance(part, str)
        else _image(part[0], part[1], f"{entry.item.id}.content[{part[2]}]")
        for part in parts_of(entry)
    ]


def _image(url: str, detail: str, field: str) -> dict[str, Any]:
    """``field`` is its name in errors: the item's id, which the client knows."""
    return {"type": "input_image", "image_url": url, "file_id": None, "detail": detail, FIELD: field}


class AnswerGenerator:
    """Generates one answer from as much of the conversation as fits the context."""

    def __init__(self, model: ChatModel, caller: Caller, session: RealtimeSession) -> None:
        self._model = model
        self._caller = caller
        self._session = session

    async def turn(
        self, entries: list[Entry], conversation: RealtimeConversation | None, context: RequestContext
    ) -> PreparedGeneration:
        """``conversation`` drops truncated items for good. Raises as :func:`prepare_generation` does."""
        session = self._session
        with map_response_fields():
            limited = isinstance(session.truncation, RetentionRatio) and session.truncation.token_limits is not None
            if not limited:
                try:
                    turn = await self._begin(entries, context)
                except BadRequest as error:
                    if error.code != "context_length_exceeded" or session.truncation == "disabled":
                        raise
                else:
                    if session.truncation == "disabled" or len(turn.prompt) <= self._room:
                        return turn
                    await turn.batches.aclose()
                    context.queue_slot.processed(len(turn.prompt))
            kept = await self._fitting(entries)
            if conversation is not None:
                conversation.drop(entries[: len(entries) - len(kept)])
            return await self._begin(kept, context)

    async def _begin(self, entries: Sequence[Entry], context: RequestContext) -> PreparedGeneration:
        chat = chat_request(self._session, entries)
        return await prepare_generation(self._model, chat, self._caller, context, GenerationOptions(fill_context=True))

    @property
    def _room(self) -> int:
        """Most prompt tokens that leave room for an answer."""
        max_len = context_length(self._model)
        wanted = self._session.max_output_tokens
        answer = max_len // ANSWER_SHARE
        if wanted != "inf":
            answer = min(answer, wanted)
        return min(most_prompt_tokens(self._model), max_len - max(1, answer))

    async def _fitting(self, entries: list[Entry]) -> list[Entry]:
        """The end of the conversation that there is room for; the last item is always part of it."""
        ratio, room = RETAINED, self._room
        if isinstance(self._session.truncation, RetentionRatio):
            ratio = self._session.truncation.retention_ratio
            limits = self._session.truncation.token_limits
            if limits is not None and limits.post_instructions is not None:
                room = min(room, await self._count([]) + limits.post_instructions)
        if len(entries) < 2 or await self._count(entries) <= room:
            return entries
        room = int(room * ratio)

        async def fits(dropped: int) -> bool:
            return await self._count(entries[dropped:]) <= room

        return entries[await first_fitting(range(1, len(entries)), fits) :]

    async def _count(self, entries: Sequence[Entry]) -> int:
        return len(await prompt_of(self._model, chat_request(self._session, entries)))
