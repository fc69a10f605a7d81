"""Words that an answer may not hold, as sequences of tokens."""

import msgspec

from stentor.protocols.sampling import SamplingParams

from ..state import ServerState


async def with_bad_words(state: ServerState, params: SamplingParams, words: list[str] | None) -> SamplingParams:
    """``params`` with each word banned as it is written at a text's beginning and behind a space, as vLLM does.

    A word that the model writes in other tokens is not found.
    """
    if not words:
        return params
    bare = [word.lstrip() or word for word in words]
    sequences = await state.pool.encode_batch([*bare, *(f" {word}" for word in bare)], add_special_tokens=False)
    found = sorted({tuple(sequence) for sequence in sequences if sequence})
    alone = {sequence[0] for sequence in found if len(sequence) == 1}
    return msgspec.structs.replace(
        params,
        banned_token_ids=tuple(sorted({*params.banned_token_ids, *alone})),
        banned_sequences=tuple(sequence for sequence in found if len(sequence) > 1),
    )
