"""The one path from a request to its deltas, whatever the protocol: generate, and observe."""

from stentor.protocols.openai.sampling import SamplingFields
from stentor.protocols.sampling import SamplingParams

from ..metrics import RequestTracker
from ..state import ServerState
from ..text.generation import Generation, GenerationRequest, generate
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


class Observed:
    """The batches of one request, counted. It goes to the engine when iterating begins; closing it aborts it there."""

    def __init__(self, state: ServerState, request: GenerationRequest, arrival: float) -> None:
        """``arrival`` by ``time.monotonic()``."""
        self._state = state
        self._request = request
        self._arrival = arrival
        self._tracker: RequestTracker | None = None
        self._generation: Generation | None = None

    def __aiter__(self) -> Generation:
        """May be called once. Raises :class:`stentor.engine.client.EngineUnavailable`."""
        state, request = self._state, self._request
        tracker = state.metrics.track(len(request.prompt), len(request.seeds), request.params.max_tokens, self._arrival)
        self._tracker = tracker
        self._generation = generate(state.client, state.pool, request, tracker.batch)
        return self._generation

    async def aclose(self) -> None:
        """May be called at any time, and again."""
        if self._generation is not None:
            await self._generation.aclose()
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()
