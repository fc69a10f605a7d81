"""One request to the engine for one window, with its complete result."""

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE, Alignment, AlignmentOutput, PromptProbe, TokenRules
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.beams import Beams

from ..common.errors import MediaFull, generation_error
from ..text.generation import EngineEventStream, ModelEngine, Submitter
from .model import OpenAccount, RequestObserver
from .options import SamplingOptions, TranscriptionOptions

logger = logging.getLogger(__name__)

_DIGEST_BYTES: Final = 16
_NEUTRAL: Final = SamplingOptions()


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

    @property
    def sum_logprob(self) -> float:
        return sum(one.logprob for one in self.logprobs)


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

    def __init__(self, client: ModelEngine, options: TranscriptionOptions, open_account: OpenAccount | None) -> None:
        self._client = client
        self._options = options
        self._open_account = open_account

    async def decode(
        self,
        window: Window,
        prompt: list[int],
        *,
        end: int,
        max_tokens: int,
        temperature: float = 0.0,
        rules: TokenRules | None = None,
        no_speech: tuple[int, int] | None = None,
        align: Alignment | None = None,
        allowed: Sequence[int] | None = None,
        sampling: SamplingOptions = _NEUTRAL,
        beams: Beams | None = None,
    ) -> EngineOutput:
        """Everything that the engine says; ``end`` is the token that ends a transcript, for which ``beams`` search.

        Raises what :func:`..common.errors.generation_error` makes, :class:`..common.errors.MediaFull` and
        ``EngineUnavailable``. A caller that is cancelled takes the request back.
        """
        options = self._options
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            eos_token_ids=(end,),
            allowed_token_ids=None if allowed is None else tuple(allowed),
            logprobs=0,
            rules=rules,
        )
        seed = int.from_bytes(os.urandom(8), "little") if sampling.seed is None else sampling.seed
        # before there is a request: it may be one too many
        account = None if self._open_account is None else self._open_account(len(prompt), max_tokens)
        answer = EngineOutput([], [], AlignmentOutput(), ended=False)
        finished: Finished | None = None
        try:
            request = EngineRequest(
                prompt,
                params,
                [seed],
                priority=options.priority,
                salt=options.salt,
                name=options.name,
                media=[Media(window.pcm, window.digest)],
                probe=None if no_speech is None and align is None else PromptProbe(no_speech, align),
                adapter=options.adapter,
            )
            client: Submitter = self._client
            if beams is not None:
                from ..text.beam_search import BeamSubmitter  # few servers get such a request

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
        if finished is not None and finished.reason == "error":
            logger.warning("the engine could not finish a request: %s", finished.message)
        if finished is None or finished.reason not in ("stop", "length"):
            raise generation_error(finished)
        if answer.tokens and answer.tokens[-1] == end:
            answer.tokens.pop()
            answer.ended = True
        return answer


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
                    answer.alignment = event.alignment or AlignmentOutput()
                    if account is not None:
                        account.prompt_done(event.cached_tokens, event.queue_seconds, event.prefill_seconds)
                case Finished():
                    finished = event
                case other:
                    assert_never(other)
    return finished
