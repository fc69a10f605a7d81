"""One request to the engine for one window, with its complete result."""

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import msgspec

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import Finished, PromptDone, PromptPart, SequenceTokens
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE, AlignmentOutput, PromptProbe, TokenRules
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.beams import Beams

from ..common.errors import MediaFull, generation_error
from ..text.output.generation import EngineEventStream, ModelEngine, Submitter
from .observers import OpenAccount, RequestObserver
from .options import SamplingOptions, TranscriptionOptions

logger = logging.getLogger(__name__)

_DIGEST_BYTES: Final = 16
_NEUTRAL: Final = SamplingOptions()
_NO_TOKENS: Final = SamplingParams(max_tokens=0)
_WHOLE: Final = Pooling("transcribe")


class Window(msgspec.Struct, frozen=True):
    """The samples that a request is about, under a name that equal ones share."""

    pcm: bytes
    digest: bytes

    @property
    def seconds(self) -> float:
        return len(self.pcm) / (SAMPLE_RATE * SAMPLE_BYTES)


class EngineOutput(msgspec.Struct):
    """Result of one request."""

    tokens: list[int]
    """Without the one that ends a transcript."""
    logprobs: list[TokenLogprobs]
    """Of every token, the end included."""
    alignment: AlignmentOutput
    ended: bool
    """Whether the transcript came to its end, rather than to ``max_tokens``."""
    spans: list[tuple[int, int]] = []
    """Encoder positions [first, end) of each token, from a model that decodes frame by frame."""

    @property
    def sum_logprob(self) -> float:
        return sum(one.logprob for one in self.logprobs)


class DecodingOptions(msgspec.Struct, frozen=True):
    """Limits and sampling of the tokens of a window."""

    end: int
    """The token that ends a transcript."""
    max_tokens: int
    temperature: float = 0.0
    rules: TokenRules | None = None
    allowed: Sequence[int] | None = None
    """The only tokens that may be sampled; None: all."""
    sampling: SamplingOptions = _NEUTRAL
    beams: Beams | None = None
    """A search for the likeliest transcript, in place of sampling."""

    def params(self) -> SamplingParams:
        sampling = self.sampling
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            eos_token_ids=(self.end,),
            allowed_token_ids=None if self.allowed is None else tuple(self.allowed),
            logprobs=0,
            rules=self.rules,
        )

    def seed(self) -> int:
        """The client's seed, or a new one."""
        return int.from_bytes(os.urandom(8), "little") if self.sampling.seed is None else self.sampling.seed


def window_of(pcm: bytes, salt: str) -> Window:
    """``pcm`` as in :class:`stentor.protocols.ipc.audio`. Windows of other salts never share anything."""
    digest = hashlib.blake2b(salt.encode(), digest_size=_DIGEST_BYTES)
    digest.update(b"\0")
    digest.update(pcm)
    return Window(pcm, digest.digest())


def is_soundless(pcm: bytes) -> bool:
    """Whether every sample is 0, as in a muted recording, for which models invent words."""
    return pcm.count(0) == len(pcm)


class WindowDecoder:
    """The way to the engine for one request of a client: all windows of it go under its name, and on its account."""

    def __init__(
        self,
        client: ModelEngine,
        options: TranscriptionOptions,
        open_account: OpenAccount | None,
        *,
        settle: Callable[[EngineOutput, int], None] | None = None,
    ) -> None:
        """``settle``: what is done to the engine's answers, given the first token of the prompt, if they are whole
        transcripts; ``decode`` then only reads the window."""
        self._client = client
        self._settle = settle
        self._options = options
        self._open_account = open_account

    async def decode(
        self, window: Window, prompt: list[int], wanted: DecodingOptions, probe: PromptProbe | None = None
    ) -> EngineOutput:
        """The engine's whole answer for a window; ``probe``: what else is asked about the prompt.

        Raises what :func:`..common.errors.generation_error` makes, :class:`..common.errors.MediaFull` and
        ``EngineUnavailable``. A caller that is cancelled takes the request back.
        """
        options = self._options
        request = EngineRequest(
            prompt,
            wanted.params(),
            [wanted.seed()],
            priority=options.priority,
            salt=options.salt,
            name=options.name,
            media=[Media(window.pcm, self._digest(window, prompt))],
            probe=probe,
            adapter=options.adapter,
        )
        answer = EngineOutput([], [], AlignmentOutput(), ended=False)
        finished = await self._collect(request, wanted.beams, answer)
        if finished is not None and finished.reason == "error":
            logger.warning("the engine could not finish a request: %s", finished.message)
        if finished is None or finished.reason not in ("stop", "length"):
            raise generation_error(finished)
        if self._settle is not None:
            answer.ended = True
            self._settle(answer, prompt[0])
        if answer.tokens and answer.tokens[-1] == wanted.end:
            answer.tokens.pop()
            answer.ended = True
        return answer

    def _digest(self, window: Window, prompt: Sequence[int]) -> bytes:
        """Names what the engine keeps of the window; a whole transcript depends on the language of the prompt."""
        if self._settle is None:
            return window.digest
        named = window.digest + prompt[0].to_bytes(4, "little")
        return hashlib.blake2b(named, digest_size=_DIGEST_BYTES).digest()

    async def _collect(self, request: EngineRequest, beams: Beams | None, answer: EngineOutput) -> Finished | None:
        """Send the request on the client's account and read its results into ``answer``; None if it breaks off."""
        # before there is a request: it may be one too many
        account = None
        if self._open_account is not None:
            account = self._open_account(len(request.prompt), request.params.max_tokens)
        finished: Finished | None = None
        try:
            if self._settle is not None:
                given = {"params": _NO_TOKENS, "pooling": _WHOLE, "probe": None}
                request = msgspec.structs.replace(request, **given)
            client: Submitter = self._client
            if beams is not None:
                from ..text.output.beam_search import BeamSubmitter  # few servers get such a request

                client = BeamSubmitter(client, beams)
            stream = client.submit(request)
            try:
                finished = await _read(stream, answer, account)
            finally:
                if finished is None:
                    stream.abort()
        except ArenaFull:
            raise MediaFull from None
        finally:
            if account is not None:
                if finished is None:
                    account.close("abort", "")
                else:
                    account.close(finished.reason, finished.message or "")
        return finished


def _take(answer: EngineOutput, transcript: Pooled) -> None:
    """Fills ``answer`` with the rows of :data:`stentor.engine.models.speech.framewise.COLUMNS`."""
    for token, first, end, logprob in struct.iter_unpack("<4f", transcript.data):
        answer.tokens.append(int(token))
        answer.logprobs.append(TokenLogprobs(int(token), logprob, 1, []))
        answer.spans.append((int(first), int(end)))


async def _read(stream: EngineEventStream, answer: EngineOutput, account: RequestObserver | None) -> Finished | None:
    """Collects the result; None if the request breaks off."""
    finished: Finished | None = None
    async for events in stream:
        for event in events:
            match event:
                case SequenceTokens():
                    answer.tokens += event.tokens
                    answer.logprobs += event.logprobs or ()
                    if account is not None:
                        account.tokens(event.tokens)
                case PromptDone():
                    if event.pooled is not None:
                        _take(answer, event.pooled)
                        if account is not None:
                            account.tokens(answer.tokens)
                    answer.alignment = event.alignment or AlignmentOutput()
                    if account is not None:
                        account.prompt_done(event.cached_tokens, event.queue_seconds, event.prefill_seconds)
                case Finished():
                    finished = event
                case PromptPart():
                    pass  # only requests with streamed audio get any
                case other:
                    assert_never(other)
    return finished
