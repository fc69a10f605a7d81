"""Words that an answer may not hold, as sequences of tokens."""

import msgspec

from stentor.protocols.ipc.sampling import SamplingParams

from ..overload.memory_budget import TOKEN_BYTES, MemoryShare, params_bytes
from .chat_model import ChatModel


async def with_bad_words(
    chat: ChatModel, params: SamplingParams, words: list[str] | None, memory: MemoryShare
) -> SamplingParams:
    """``params`` with each word banned at the beginning of a text and behind a space, as in vLLM.

    A word that the model writes with other tokens is not found. The parameters' memory is counted in ``memory``. Call
    it once for a request, whose prompts share the result. Raises MemoryFull, and BadRequest (413).
    """
    memory.add(params_bytes(params))
    if not words:
        return params
    most = 2 * TOKEN_BYTES * sum(len(word.encode()) + 1 for word in words)
    memory.add(most, "bad_words")
    bare = [word.lstrip() or word for word in words]
    spelled = [*bare, *(f" {word}" for word in bare)]
    sequences = await chat.pool.encode_batch(spelled, add_special_tokens=False, field="bad_words")
    found = sorted({tuple(sequence) for sequence in sequences if sequence})
    alone = {sequence[0] for sequence in found if len(sequence) == 1}
    banned = msgspec.structs.replace(
        params,
        banned_token_ids=tuple(sorted({*params.banned_token_ids, *alone})),
        banned_sequences=tuple(sequence for sequence in found if len(sequence) > 1),
    )
    memory.add(params_bytes(banned) - params_bytes(params) - most)
    return banned
