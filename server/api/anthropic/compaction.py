"""``compact_20260112`` of ``context_management``: a long conversation is replaced by the model's summary of it.

The summary is the first block of the answer. The client sends it back, and what is in front of it is not read again.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from stentor.protocols.anthropic.content import CompactionBlock, InputMessage, ToolResultBlock
from stentor.protocols.anthropic.context_management import Compact
from stentor.protocols.anthropic.objects import IterationUsage
from stentor.protocols.anthropic.request import MessagesRequest, NoChoice, ThinkingDisabled

from ...common.keys import Caller
from ...generation.admission import GenerationOptions, context_length
from ...generation.chat_model import ChatModel
from ...generation.prepare import prepare_generation
from ...overload.request_context import RequestContext
from ..common.collect import collect
from .context_edits import Count
from .translate import chat_request

MAX_SUMMARY_TOKENS: Final = 4096
_WISH: Final = (
    "Summarize the conversation so far, so that it can be continued from your summary alone: the task, facts, "
    "decisions, names, numbers, files, results of tools, and what is still to be done. Write nothing but the summary."
)


class Compaction(msgspec.Struct, frozen=True):
    """A conversation's summary, and what it took to write it."""

    summary: str | None
    """None: the model wrote none, and the conversation stays as it is."""
    usage: IterationUsage
    pauses: bool
    """The client wants to see it before the conversation goes on."""

    def shorten(self, messages: Sequence[InputMessage]) -> list[InputMessage]:
        """The conversation that is answered: the summary in front of an answer that the client has begun."""
        block = CompactionBlock(self.summary)
        if messages[-1].role == "assistant":
            return [*messages[:-1], InputMessage("assistant", [block, *messages[-1].blocks])]
        return [*messages, InputMessage("assistant", [block])]


async def summarize(
    chat: ChatModel, body: MessagesRequest, asked: Compact, count: Count, caller: Caller, context: RequestContext
) -> Compaction:
    """Without the oldest messages if all of them leave no room for a summary. Raises as :func:`prepare_generation`."""
    length = context_length(chat)
    room = max(1, min(MAX_SUMMARY_TOKENS, length // 4))
    wish = InputMessage("user", asked.instructions or _WISH)
    messages = await _that_fit([*body.messages, wish], length - room, count)
    wanted = msgspec.structs.replace(
        body,
        messages=messages,
        max_tokens=room,
        thinking=ThinkingDisabled(),
        tool_choice=NoChoice(),
        output_config=None,
        output_format=None,
        stop_sequences=None,
        stream=None,
    )
    # a model that thinks nevertheless leaves half of the tokens for the summary
    request = msgspec.structs.replace(chat_request(wanted), thinking_token_budget=room // 2)
    prepared = await prepare_generation(chat, request, caller, context, GenerationOptions(fill_context=True))
    async with aclosing(prepared.batches):
        generation = await collect(prepared.batches, 1)
    usage = IterationUsage.of(
        "compaction", len(prepared.prompt), generation.cached_tokens, generation.completion_tokens
    )
    summary = generation.choices[0].text.strip() or None
    return Compaction(summary, usage, pauses=bool(asked.pause_after_compaction) and summary is not None)


async def _that_fit(messages: list[InputMessage], most: int, count: Count) -> list[InputMessage]:
    """``messages`` from the first message of the user on with which the prompt has at most ``most`` tokens; from the
    last one, if none does."""
    starts = [0, *(index for index in range(1, len(messages)) if _begins(messages[index]))]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await count(messages[starts[middle] :]) <= most:
            high = middle
        else:
            low = middle + 1
    return messages[starts[low] :]


def _begins(message: InputMessage) -> bool:
    """Whether a conversation may begin with it: it answers no call."""
    return message.role == "user" and not any(isinstance(block, ToolResultBlock) for block in message.blocks)
