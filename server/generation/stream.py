"""Runs a request and returns its deltas, for every protocol: generates, and observes."""

import logging
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from stentor.engine.client.media import Media
from stentor.protocols.common.errors import wrong
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.deltas import Delta, PromptProcessed
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.openai.beams import wanted_beams
from stentor.protocols.openai.sampling import SamplingFields

from ..common.keys import Caller
from ..media.helpers import arena_room
from ..observability.request import current_record, current_request_id
from ..observability.request_metrics import RequestTracker
from ..overload.memory_budget import TOKEN_BYTES
from ..overload.queue_slots import QueueSlot
from ..text.output.generation import Generation, GenerationRequest, Submitter
from ..text.output.stop_patterns import PatternRefused, compiled_patterns
from .admission import draw_seeds
from .chat_model import ChatModel
from .constraints import FREE, Constraints

logger = logging.getLogger(__name__)


def generation_request(
    request: SamplingFields,
    prompt: list[int],
    params: SamplingParams,
    caller: Caller,
    constraints: Constraints = FREE,
    media: Sequence[Media] = (),
    adapter: AdapterRef | None = None,
    decoder_prompt: Sequence[int] = (),
    *,
    priority: int | None = None,
) -> GenerationRequest:
    """``priority``: in place of the request's.

    Raises BadRequest for a beam search whose beams would have to obey something, and for patterns that cannot end a
    text.
    """
    beams = wanted_beams(request)
    if beams is not None and (constraints.grammar or constraints.thinking):
        raise wrong("use_beam_search", "excludes forced and strict tools, and a thinking budget", "unsupported")
    _check_patterns(request)
    return GenerationRequest(
        prompt=prompt,
        decoder_prompt=tuple(decoder_prompt),
        params=params,
        seeds=draw_seeds(request.seed, request.choices),
        stop=request.stop_strings,
        stop_patterns=request.stop_patterns,
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        parser=constraints.parser,
        visible=constraints.visible,
        grammar=constraints.grammar,
        thinking=constraints.thinking,
        priority=request.priority if priority is None else priority,
        salt=caller.cache_salt(request.cache_salt),
        session=(request.session_id or "").encode(),
        media=tuple(media),
        adapter=adapter,
        beams=beams,
        repetition=request.repetition_detection,
    )


def _check_patterns(request: SamplingFields) -> None:
    """Raises BadRequest."""
    if not request.stop_patterns:
        return
    try:
        compiled_patterns(request.stop_patterns)
    except PatternRefused as error:
        several = isinstance(request.stop_regex, list)
        raise wrong(f"stop_regex[{error.place}]" if several else "stop_regex", str(error), "invalid_value") from None


def _encoded(request: GenerationRequest, start: Sequence[int]) -> GenerationRequest:
    """The request to an encoder-decoder: its prompt for the encoder, behind a picture if it has one, and ``start`` with
    its decoder's prompt."""
    text = array("i", request.prompt).tobytes()
    named = text + b"".join(one.digest for one in request.media)
    data = text
    for picture in request.media:
        data = b"".join((array("i", [len(request.prompt)]), text, picture.data))
    media = Media(data, blake2b(named, digest_size=16, person=b"stentor text").digest())
    if request.media:
        media = media._replace(field=request.media[0].field)
    return msgspec.structs.replace(request, prompt=[*start, *request.decoder_prompt], media=(media,))


class ObservedGeneration:
    """The batches of one request, counted. It goes to the engine when iterating begins; closing it aborts it there."""

    def __init__(
        self,
        chat: ChatModel,
        request: GenerationRequest,
        arrival: float,
        queue_slot: QueueSlot,
        client: Submitter | None = None,
        *,
        field: str = "messages",
        media_bytes: int = 0,
    ) -> None:
        """``arrival`` by ``time.monotonic()``; ``field`` is where the client wrote the prompt.

        ``media_bytes`` of its media are counted in the memory of ``queue_slot``, until the engine has the request.

        Raises Overloaded where ``queue_slot`` gets no room for the prompt, and BadRequest (413) where none gets it.
        """
        beams = request.beams
        # each beam is a prompt of its own
        lists = len(request.prompt) if beams is None else (1 + beams.width) * len(request.prompt)
        self._held = TOKEN_BYTES * lists
        queue_slot.memory.add(self._held, field)
        queue_slot.take(len(request.prompt))
        self._media_bytes = media_bytes
        self._client = client or chat.client
        if beams is not None:
            from ..text.output.beam_search import BeamSubmitter  # few servers get such a request

            self._client = BeamSubmitter(self._client, beams)
        self._chat = chat
        self._request = request
        self._arrival = arrival
        self._queue_slot = queue_slot
        self._tracker: RequestTracker | None = None
        self._generation: Generation | None = None
        self._aborted = False
        self._processed = False

    def __aiter__(self) -> Generation:
        """May be called once. Raises :class:`stentor.engine.client.errors.EngineUnavailable`, and Overloaded where
        there is no room for the request's media."""
        chat, request = self._chat, self._request
        tracker = chat.requests.track(len(request.prompt), len(request.seeds), request.params.max_tokens, self._arrival)
        self._tracker = tracker
        named = msgspec.structs.replace(request, name=current_request_id())  # by now the body has had its say
        if chat.decoder_start:
            named = _encoded(named, chat.decoder_start)
        with arena_room():
            self._generation = Generation(self._client, chat.pool, named, self._observe, chat.loop_turns)
        if self._aborted:
            self._generation.abort()
        if request.beams is not None:
            return self._generation  # a search submits its media again and again
        # from now on they are in shared memory, or wait to be written there, which bounds both
        self._request = msgspec.structs.replace(request, media=())
        media_bytes, self._media_bytes = self._media_bytes, 0
        self._queue_slot.memory.add(-media_bytes)
        return self._generation

    def abort(self) -> None:
        """Has its choices end as they are, with the reason ``abort``. May be called at any time, and again."""
        self._aborted = True
        if self._generation is not None:
            self._generation.abort()

    def _observe(self, deltas: list[Delta]) -> None:
        if self._tracker is not None:
            self._tracker.batch(deltas)
        if not self._processed:
            for delta in deltas:
                if type(delta) is PromptProcessed:
                    self._processed = True
                    self._queue_slot.processed(len(self._request.prompt))

    async def aclose(self) -> None:
        """May be called at any time, and again."""
        held, self._held = self._held, 0
        self._queue_slot.memory.add(-held)
        if self._generation is not None:
            await self._generation.aclose()
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            served = tracker.close()
            if served.failure:
                logger.warning("the engine could not finish a request: %s", served.failure)
            if (record := current_record.get()) is not None:
                record.add(served)
