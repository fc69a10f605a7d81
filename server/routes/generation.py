"""The one path from a request to its deltas, whatever the protocol: generate, and observe."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from stentor.protocols.deltas import Delta
from stentor.protocols.openai.sampling import SamplingFields
from stentor.protocols.sampling import SamplingParams

from ..state import ServerState
from ..text.generation import GenerationRequest, generate
from .admission import draw_seeds


def generation_request(request: SamplingFields, prompt: list[int], params: SamplingParams) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        params=params,
        seeds=draw_seeds(request.seed, request.choices),
        stop=request.stop_strings,
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        priority=request.priority,
        salt=request.cache_salt or "",
    )


async def observed(state: ServerState, request: GenerationRequest, arrival: float) -> AsyncGenerator[list[Delta], None]:
    """The batches of ``request``, counted; closing it aborts the request in the engine."""
    tracker = state.metrics.track(len(request.prompt), len(request.seeds), request.params.max_tokens, arrival)
    try:
        async with aclosing(generate(state.client, state.pool, request)) as batches:
            async for batch in batches:
                tracker.batch(batch)
                yield batch
    finally:
        tracker.close()
