"""Transcripts by a chat model with audio input: the audio is cut into pieces, each a separate request.

::

    transcription = ChatTranscription(transcriber, wish, caller, context)
    async with aclosing(transcription.pieces(pcm)) as pieces:       # as they are written, in order
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Final

import anyio
import msgspec

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE
from stentor.protocols.ipc.deltas import Finish, Text
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.sampling import SamplingFields

from ..asr.alignment import spoken_words, timed_segments
from ..asr.asking import SECONDS, Asking
from ..asr.chunks import chunks_of
from ..asr.languages import WITHOUT_SPACES
from ..asr.options import Chunking
from ..asr.segments import BYTES_A_FRAME, Segment
from ..asr.streaming import BYTES_A_SECOND, JoinedText, Piece, TextToken
from ..asr.window_decoder import is_soundless
from ..audio.encode import wav_header
from ..audio.quiet import cut_quietly
from ..common.errors import generation_error
from ..common.keys import Caller
from ..common.task_scope import TaskScope
from ..media.chat_media import ConversationMedia, PlacedMedia, check_encoder
from ..overload.request_context import RequestContext
from ..text.errors import TemplateError, TextTooLong
from .admission import Budget, most_prompt_tokens, output_room, resolve_sampling, too_long
from .aligning import MOST_SECONDS, Aligner
from .chat_model import ChatModel
from .error_fields import map_error_fields
from .prompt import render_messages
from .stream import ObservedGeneration, generation_request

_SECONDS_AT_ONCE: Final = 240
"""Seconds of a transcription's audio that the engine has at the same time, if it takes several requests."""
_TOKENS_BESIDE: Final = 64
"""Of an answer, besides those of its seconds (:attr:`..asr.asking.Asking.tokens_a_second`)."""
_DETECTIONS: Final = 2
FIELD: Final = "file"


class TranscriptionWish(msgspec.Struct, frozen=True):
    """A transcription request: the language, the context, the cuts."""

    language: str | None = None
    """Language code; None: the model detects it."""
    prompt: str = ""
    after: str = ""
    """The known beginning of the transcript; the answer continues it, in one request."""
    translate: bool = False
    """Into English."""
    sampling: SamplingFields = msgspec.field(default_factory=SamplingFields)
    logprobs: bool = False
    chunking: Chunking | None = None
    """Where to cut; None: only audio that is too long for one request is cut."""
    adapter: AdapterRef | None = None
    """The LoRA adapter."""
    timed: bool = False
    """Whether the transcriber's aligner times its words."""


class ChatTranscriber(msgspec.Struct, frozen=True):
    """A chat model that transcribes, for all requests."""

    chat: ChatModel
    asking: Asking
    detections: anyio.CapacityLimiter = msgspec.field(default_factory=lambda: anyio.CapacityLimiter(_DETECTIONS))
    """Files in which speech is looked for at the same time."""
    aligner: Aligner | None = None
    """Times the words of transcripts; None: they have no times."""

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.chat.config.served_names

    @property
    def window_bytes(self) -> int:
        """Bytes of audio in one request, at most: the model's limit, and the room of its context."""
        fitting = most_prompt_tokens(self.chat) // self.asking.positions_a_second
        return max(1, min(self.asking.seconds, fitting)) * BYTES_A_SECOND


class ChatTranscription:
    """A running transcription. Iterate :meth:`pieces` once, under ``contextlib.aclosing``; closing it aborts running
    requests."""

    def __init__(
        self,
        transcriber: ChatTranscriber,
        wish: TranscriptionWish,
        caller: Caller,
        context: RequestContext,
    ) -> None:
        self._transcriber, self._asking = transcriber, transcriber.asking
        self._chat = transcriber.chat
        self._wish, self._caller, self._context = wish, caller, context
        self._aligner = transcriber.aligner if wish.timed else None
        begun = self._asking.start_of(wish.language)
        self._begun = (begun or self._asking.marker) + wish.after if wish.after else begun
        """Beginning of each answer."""
        self.language = wish.language
        """Language code; without one in the request, what the model named in the earliest part that names one."""
        self._named_at = math.inf
        """Where that part begins, in seconds."""
        self._audio_tokens = 0
        self._text_tokens = 0

    def counted(self) -> tuple[int, int]:
        """Tokens of all prompts so far: of audio, and others."""
        return self._audio_tokens, self._text_tokens

    async def pieces(self, pcm: bytes, owner: object = None) -> AsyncGenerator[Piece, None]:
        """Texts without surrounding white space; ``owner`` is stored beside the audio. Raises BadRequest and
        ServerError."""
        windows = await self._windows(pcm)
        most = max(1, _SECONDS_AT_ONCE * BYTES_A_SECOND // self._window_bytes)
        written, speakers = JoinedText(), 0
        running: deque[_Window] = deque()
        async with TaskScope("parts of a transcription") as tasks:
            while True:
                running.extend(
                    _Window(tasks, self.transcribe_window(window, begin / BYTES_A_SECOND))
                    for begin, window in islice(windows, most - len(running))
                )
                if not running:
                    break
                first, tokens, before = running.popleft(), list[TextToken](), speakers
                while (piece := await first.pieces.get()) is not None:
                    tokens += piece.tokens
                    # a part numbers its speakers by itself
                    turns = [turn._replace(speaker=before + turn.speaker) for turn in piece.turns]
                    speakers = max((speakers, *(turn.speaker + 1 for turn in turns)))
                    if (delta := written.add(piece.text)) or turns or piece.segments:
                        yield Piece(delta, tokens, turns, piece.segments)
                        tokens = []
                await first.task
                written.begin("" if self.language in WITHOUT_SPACES else " ")

    @property
    def _window_bytes(self) -> int:
        own = self._transcriber.window_bytes
        return own if self._aligner is None else min(own, MOST_SECONDS * BYTES_A_SECOND)

    async def _windows(self, pcm: bytes) -> Iterator[tuple[int, bytes]]:
        """Parts of the audio, and where they begin."""
        chunking = self._wish.chunking
        if chunking is None or self._asking.diarizes:
            return self._cut(pcm)
        spans = await chunks_of(pcm, chunking, self._transcriber.detections)
        spoken = ((span.begin * BYTES_A_FRAME, span.end * BYTES_A_FRAME) for span in spans)
        return ((begin + at, window) for begin, end in spoken for at, window in self._cut(pcm[begin:end]))

    def _cut(self, pcm: bytes) -> Iterator[tuple[int, bytes]]:
        most, begin = self._window_bytes, 0
        while begin < len(pcm):
            window = cut_quietly(pcm[begin : begin + most], last=begin + most >= len(pcm))
            if not is_soundless(window):
                yield begin, window
            begin += len(window)

    async def transcribe_window(self, pcm: bytes, begin: float = 0.0) -> AsyncGenerator[Piece, None]:
        """The pieces of one request, as the model has written them; ``begin``: where it begins, in seconds."""
        generation = await self._ask(pcm)
        transcript = MarkedText("" if self._begun else self._asking.marker)
        turns, every = None, list[Piece]()
        if self._asking.diarizes:
            from ..asr.turns import READERS  # late: few models tell speakers apart

            turns = READERS[self._asking.diarizes](len(pcm) / BYTES_A_SECOND, begin)
        async with aclosing(generation):
            async for batch in generation:
                for delta in batch:
                    match delta:
                        case Text():
                            if (piece := transcript.add(delta.text, self._tokens(delta))) is not None:
                                self._settle(transcript.head, begin)
                                every.append(piece)
                                yield (
                                    piece
                                    if turns is None
                                    else Piece(turns.add(piece.text), piece.tokens, turns.ended())
                                )
                        case Finish() if delta.reason not in ("stop", "length"):
                            raise generation_error(delta)
        if (piece := transcript.end()) is not None:
            every.append(piece)
            yield piece
        if self._aligner is not None:
            language = self._asking.told_language(transcript.head) or self.language
            yield Piece("", [], segments=await self._timed(self._aligner, pcm, begin, every, language))
        if turns is not None:
            yield Piece(turns.end(), [], turns.ended())

    async def _timed(
        self, aligner: Aligner, pcm: bytes, begin: float, pieces: Sequence[Piece], language: str | None
    ) -> list[Segment]:
        """The segments of one request, whose audio begins at ``begin`` seconds."""
        aligner.check(language, "response_format")
        text = "".join(piece.text for piece in pieces)
        words = spoken_words(text)
        times = await aligner.times(pcm, words, self._caller, self._context, FIELD)
        tokens = [token for piece in pieces for token in piece.tokens]
        end = begin + len(pcm) / BYTES_A_SECOND
        return timed_segments(text, words, times, tokens, begin, end, "" if language in WITHOUT_SPACES else " ")

    def _tokens(self, delta: Text) -> list[TextToken]:
        """Tokens of text."""
        tokenizer = self._chat.pool.tokenizer
        scores = [None] * len(delta.tokens) if delta.logprobs is None else [each.logprob for each in delta.logprobs]
        return [
            TextToken(token, tokenizer.bytes_of(token), score)
            for token, score in zip(delta.tokens, scores, strict=True)
            if token not in tokenizer.special_ids
        ]

    def _settle(self, head: str, begin: float) -> None:
        """Parts run side by side, and a later one may name its language first."""
        if self._wish.language is None and head and begin < self._named_at:
            told = self._asking.told_language(head)
            self.language, self._named_at = (told, begin) if told else (self.language, self._named_at)

    async def _ask(self, pcm: bytes) -> ObservedGeneration:
        chat, wish, context = self._chat, self._wish, self._context
        assert chat.media is not None, "a model that hears has one"
        check_encoder(chat.client.ready, FIELD)
        least = int(self._asking.least_seconds * SAMPLE_RATE) * SAMPLE_BYTES
        sound = pcm.ljust(least, b"\0")
        wav = wav_header(SAMPLE_RATE, len(sound)) + sound
        media = await chat.media.sound(wav, FIELD, context.queue_slot.memory)
        with map_error_fields({"messages": "prompt"}):
            prompt, placed = await self._prompt(media, len(pcm) / BYTES_A_SECOND)
        audio = sum(placed.tokens.values())
        self._audio_tokens += audio
        self._text_tokens += len(prompt) - audio
        most = _TOKENS_BESIDE + self._asking.tokens_a_second * len(sound) // BYTES_A_SECOND
        # a file is several requests, so a client's share applies to each
        wanted = min(most, wish.sampling.max_tokens or most)
        room = output_room(len(prompt), Budget(None, wanted, "max_completion_tokens", FIELD), chat)
        params = resolve_sampling(
            wish.sampling,
            chat,
            room,
            logprobs=0 if wish.logprobs or wish.timed else None,
            prompt_logprobs=None,
        )
        request = generation_request(
            wish.sampling, prompt, params, self._caller, media=placed.spans, adapter=wish.adapter
        )
        return ObservedGeneration(chat, request, context.arrival, context.queue_slot, media_bytes=placed.held)

    async def _prompt(self, media: ConversationMedia, seconds: float) -> tuple[list[int], PlacedMedia]:
        """``seconds``: the length of the audio. Raises BadRequest, where it is the client's text that cannot be
        written."""
        chat, asking, text = self._chat, self._asking, media.text
        assert chat.media is not None
        assert text is not None
        if asking.text:
            asked = asking.text.replace(SECONDS, f"{seconds:.2f}")
            whole = asking.naming(asked, self._wish.language) + self._begun
            try:
                tokens = await chat.pool.encode_rendered(lambda: text.expand(whole), most_prompt_tokens(chat))
            except TextTooLong as error:
                raise too_long(error.fewest, chat, FIELD, at_least=True) from None
            except TemplateError as error:
                raise BadRequest(str(error), FIELD, "template_error") from None
        else:
            template = dict(asking.template) or None
            fields = ChatRequest(messages=self._messages(), chat_template_kwargs=template)
            tokens = await render_messages(chat, fields, fields.messages, None, most_prompt_tokens(chat), media=text)
            tokens = [*tokens, *await chat.pool.encode(self._begun, False)]
        return tokens, chat.media.place(tokens, media, text.order, chat.pool.tokenizer)

    def _messages(self) -> list[dict[str, object]]:
        asking, wish = self._asking, self._wish
        before, behind = asking.says_before, asking.says_to_translate if wish.translate else asking.says
        content: list[dict[str, object]] = [{"type": "audio"}]
        if before:
            content.insert(0, {"type": "text", "text": before})
        if behind:
            content.append({"type": "text", "text": asking.naming(behind, wish.language)})
        asked: list[dict[str, object]] = [{"role": "user", "content": content}]
        if asking.takes_prompt and wish.prompt:
            asked.insert(0, {"role": "system", "content": [{"type": "text", "text": wish.prompt}]})
        return asked


class _Window:
    """One running request, and its text so far."""

    def __init__(self, tasks: TaskScope, written: AsyncGenerator[Piece, None]) -> None:
        self.pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        """Ends with None."""
        self.task = tasks.submit(self._gather(written))

    async def _gather(self, written: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(written) as pieces:
                async for piece in pieces:
                    self.pieces.put_nowait(piece)
        finally:
            self.pieces.put_nowait(None)


_MOST_HEAD: Final = 64
"""Characters after which a model is not believed to write its marker any more."""


class MarkedText:
    """The model's text so far."""

    def __init__(self, marker: str) -> None:
        """``marker``: "" where all is transcript."""
        self._marker = marker
        self._held = ""
        self._tokens: list[TextToken] = []
        self.head = ""
        """Text before the marker."""

    def add(self, text: str, tokens: Sequence[TextToken]) -> Piece | None:
        """New text of the transcript; None until the marker."""
        if not self._marker:
            return Piece(text, list(tokens))
        self._held += text
        self._tokens += tokens
        head, marker, rest = self._held.partition(self._marker)
        if not marker:
            return self.end() if len(self._held) > _MOST_HEAD else None
        own = marker.encode()
        places = [place for place, token in enumerate(self._tokens) if token.bytes == own]
        behind = self._tokens[places[0] + 1 :] if places else []
        self.head, self._marker = head, ""
        return Piece(rest, behind)

    def end(self) -> Piece | None:
        """The rest at the end of the answer: without a marker, all of it is transcript."""
        if not self._marker or not self._held:
            return None
        self._marker = ""
        return Piece(self._held, self._tokens)
