"""Runs prompts through the engine: a large job enters in parts, and the rest is dropped when it ends."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.engine.model_config.encoders.pooling import PoolingConfig, looks_at_all
from stentor.protocols.common.bounds import ANSWER_TOO_LARGE
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.actors import Finished, PromptDone
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams

from ..common.errors import generation_error
from ..http.whole_answer import AnswerBudget, without_bound
from ..media.helpers import arena_room
from ..observability.request import EngineUsage, RequestRecord
from ..overload.memory_budget import TOKEN_BYTES, MemoryShare
from ..overload.queue_slots import QueueSlot
from ..text.output.generation import EngineEventStream
from .model import EmbeddingModel
from .reading import Prompt

logger = logging.getLogger(__name__)

WINDOW_TOKENS: Final = 1 << 14
"""Tokens of one job in the engine: enough that the next part arrives before it runs dry, on any device."""
WINDOW_TEXTS: Final = 512
FIRST_TEXTS: Final = 8
"""The first texts of a job have normal priority, the rest a lower one, so that small requests wait for few."""
MAX_BYTES: Final = 64 << 20
"""Bytes of numbers of one request: they are held until the last has come, and are several times as large as text."""
_NO_TOKENS: Final = SamplingParams(max_tokens=0)


class PoolingJob:
    """All that one request of a client has pooled, under its name and on its account."""

    def __init__(
        self,
        model: EmbeddingModel,
        queue_slot: QueueSlot,
        record: RequestRecord | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        budget: AnswerBudget | None = None,
        adapter: AdapterRef | None = None,
    ) -> None:
        """``budget`` counts the numbers; None: not counted. ``adapter`` is the LoRA adapter."""
        self._budget = budget or without_bound()
        self._model = model
        self._queue_slot = queue_slot
        self._record = record
        self._priority = priority
        self._salt = salt
        self._adapter = adapter
        self.prompt_tokens: list[int] = []
        """Tokens of each prompt so far."""
        self._sent = 0

    @property
    def tokens(self) -> int:
        """Of all prompts so far."""
        return sum(self.prompt_tokens)

    @property
    def memory(self) -> MemoryShare:
        """The request's memory share."""
        return self._queue_slot.memory

    async def run(
        self, prompts: Sequence[Prompt], wanted: Pooling, field: str = "input", number_bytes: int = 4
    ) -> list[Pooled]:
        """The engine's output for each prompt, in order. May be called again for more texts of the same request, in
        ``field``. Each number takes ``number_bytes`` of the response. Media of prompts are released once they have been
        pooled.

        Raises BadRequest if a text lacks what the model scores, or the response would be too large, before computing if
        that is known by then; the result of
        :func:`..common.errors.generation_error`; :class:`..common.errors.Overloaded` and
        :class:`stentor.engine.client.errors.EngineUnavailable`. Cancelling aborts running requests.
        """
        _check_scored(self._model.config, prompts, wanted, field)
        most = min(MAX_BYTES // 4, self._budget.most // number_bytes)
        if sum(_numbers(self._model.config, prompt, wanted) for prompt in prompts) > most:
            raise _too_large(field, most)
        lengths = [len(prompt.ids) for prompt in prompts]
        total = sum(lengths)
        self._queue_slot.memory.add(TOKEN_BYTES * total, field)
        self._queue_slot.take(total)
        self.prompt_tokens += lengths
        wanted = msgspec.structs.replace(wanted, last=not looks_at_all(self._model.config, wanted))
        served = EngineUsage(total, 0, len(prompts), time.monotonic())
        done: list[Pooled] = []
        running: deque[tuple[EngineEventStream, int]] = deque()
        held = sent = made = 0
        try:
            while len(done) < len(prompts):
                while sent < len(prompts) and len(running) < WINDOW_TEXTS:
                    length = len(prompts[sent].ids)
                    if running and held + length > WINDOW_TOKENS:
                        break
                    stream = self._submit(prompts[sent], wanted, behind=self._sent >= FIRST_TEXTS)
                    running.append((stream, length))
                    held += length
                    sent += 1
                    self._sent += 1
                stream, length = running[0]
                done.append(await self._read(stream, served))
                running.popleft()
                made += len(done[-1].data)
                if made > 4 * most:
                    raise _too_large(field, most)
                self._budget.add(len(done[-1].data))
                held -= length
                self._queue_slot.processed(length)
                if self._model.metrics is not None:
                    self._model.metrics.pooled(1, length)
        finally:
            for stream, _ in running:
                stream.abort()
            self._queue_slot.memory.add(-sum(prompt.media.held for prompt in prompts))
            served.ended = time.monotonic()
            if len(served.reasons) < len(prompts):
                served.reasons.append("abort")
            if self._record is not None:
                self._record.add(served)
        return done

    def _submit(self, prompt: Prompt, wanted: Pooling, *, behind: bool) -> EngineEventStream:
        """Raises Overloaded if there is no room for the prompt's media."""
        if prompt.skip or prompt.second or prompt.parts:
            wanted = msgspec.structs.replace(wanted, skip=prompt.skip, second=prompt.second, parts=prompt.parts)
        if prompt.picture is not None and wanted.task == "embed":
            start, end = prompt.picture
            wanted = msgspec.structs.replace(wanted, skip=start, parts=(end,))
        request = EngineRequest(
            prompt.ids,
            _NO_TOKENS,
            [0],
            priority=self._priority + behind,
            salt=self._salt,
            name="" if self._record is None else self._record.request_id,
            media=prompt.media.spans,
            pooling=wanted,
            adapter=self._adapter,
        )
        with arena_room():
            return self._model.client.submit(request)

    async def _read(self, stream: EngineEventStream, served: EngineUsage) -> Pooled:
        pooled: Pooled | None = None
        finished: Finished | None = None
        async for events in stream:
            for event in events:
                match event:
                    case PromptDone():
                        pooled = event.pooled
                        served.prompt_done = True
                        served.cached_tokens += event.cached_tokens
                        served.queue_seconds = max(served.queue_seconds, event.queue_seconds)
                        served.prefill_seconds += event.prefill_seconds
                    case Finished():
                        finished = event
                        served.reasons.append(event.reason)
        if finished is not None and finished.reason == "error":
            served.failure = finished.message or ""
            logger.warning("the engine could not finish a request: %s", finished.message)
        if pooled is None or finished is None or finished.reason not in ("stop", "length"):
            raise generation_error(finished)
        return pooled


def _check_scored(config: PoolingConfig, prompts: Sequence[Prompt], wanted: Pooling, field: str) -> None:
    token = None if config.score is None or "classify" not in wanted.task else config.score.scored_token
    if token is not None and any(token not in prompt.ids for prompt in prompts):
        how = "the tokenizer puts it at the end unless `add_special_tokens` is false, and token ids must have it"
        if wanted.task == "token_classify":
            how = "put it twice behind each word, for its beginning and its end"
        raise BadRequest(
            f"`{field}` holds a text without token {token}, which the model scores; {how}.", field, "invalid_value"
        )


def _numbers(config: PoolingConfig, prompt: Prompt, wanted: Pooling) -> int:
    """Number of values of one prompt, if that does not depend on its text."""
    tokens = len(prompt.ids) - prompt.skip
    match wanted.task:
        case "embed":
            return (wanted.dimensions or config.dimensions) * (len(prompt.parts) or 1)
        case "token_embed":
            if (marks := config.marked) is not None:
                return sum(token in (marks.document, marks.query) for token in prompt.ids) * marks.outputs
            if config.vectors is None:
                return tokens * config.token_size
            own = config.vectors.outputs
            return (tokens - config.vectors.skip_first) * min(wanted.dimensions or own, own)
        case "token_classify":
            if config.score is None:
                return 0
            marked = config.score.scored_token
            scored = tokens if marked is None else prompt.ids.count(marked)
            return scored * len(config.score.labels)
        case _:
            return 0


def _too_large(field: str, most: int) -> BadRequest:
    return BadRequest(
        f"The answer to `{field}` would have more than {most} numbers, as many as one may have; send fewer texts at "
        "a time.",
        field,
        ANSWER_TOO_LARGE,
    )
