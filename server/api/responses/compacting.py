"""``POST /v1/responses/compact``: replaces a long conversation by its user's messages and a summary by the model.

Both are encrypted in the one resulting item, with the tools and settings that items of the conversation have brought:
the SDK's type has no place for user messages in the output.
"""

import time
from contextlib import aclosing

from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.responses.objects import Compaction, ResponseUsage
from stentor.protocols.openai.responses.request import CompactRequest, ContextFields

from ...common.keys import Caller
from ...generation.chat_model import ChatModel
from ...generation.prepare import prepare_generation
from ...overload.request_context import RequestContext
from ..common.collect import collect
from .conversion import compacted_of
from .ids import random_id
from .naming import map_response_fields
from .preparing import read_conversation, seal_of, summarizing
from .services import ResponseServices


async def compact(
    services: ResponseServices, body: CompactRequest, caller: Caller, context: RequestContext
) -> Compaction:
    """User messages, tools and settings stay unchanged; the rest is in the summary, which is encrypted for the caller.

    Raises BadRequest, and GenerationFailed.
    """
    body.check(services.limits)
    asked = ContextFields(
        model=body.model,
        input=body.input,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        truncation="auto",
    )
    asked.check_context(services.limits)
    seal = await seal_of(services.store, caller)
    items = (await read_conversation(services, asked, caller, context.queue_slot.memory, seal)).items
    chat = await summarizing(services.chat, asked, items, seal)
    summary, usage = await _answer(services.chat, chat, caller, context)
    sealed = seal.seal_summary(compacted_of(items, seal.open, whole=False), summary)
    made = {"id": random_id("cmp"), "type": "compaction", "encrypted_content": sealed}
    return Compaction(random_id("resp"), int(time.time()), [made], usage)


async def _answer(
    model: ChatModel, chat: ChatRequest, caller: Caller, context: RequestContext
) -> tuple[str, ResponseUsage]:
    with map_response_fields():
        prepared = await prepare_generation(model, chat, caller, context)
    async with aclosing(prepared.batches):
        generation = await collect(prepared.batches, 1)
    text = generation.choices[0].text.strip()
    usage = ResponseUsage.of(len(prepared.prompt), generation.cached_tokens, generation.completion_tokens, 0)
    return text, usage
