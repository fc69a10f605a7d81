"""A transcription model what a script says: every request is answered by a function of its prompt and its audio."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineReady, Finished, FinishReason, PromptDone, SequenceTokens
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.audio import AlignmentOutput, PromptProbe
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.untimed_vocabulary import UntimedVocabulary
from stentor.server.asr.vocabulary import Vocabulary
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.server.text.tokenizers.tokenizer import Tokenizer

LANGUAGES = ("en", "de", "ja")


def whisper_tokenizer(languages: Sequence[str] = LANGUAGES) -> Tokenizer:
    """256 bytes, then what Whisper has in Whisper's order; timestamps follow without names."""
    vocab = {spelled: byte for byte, spelled in byte_alphabet().items()}
    backend = Backend(BPE(vocab, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    names = ["endoftext", "startoftranscript", *languages, "translate", "transcribe", "startoflm", "startofprev"]
    names += ["nospeech", "notimestamps"]
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    return Tokenizer(backend, {})


VOCABULARY = Vocabulary(whisper_tokenizer(), {"is_multilingual": True})
ENGLISH = Vocabulary(whisper_tokenizer(), {"is_multilingual": False})
UNTIMED = UntimedVocabulary(whisper_tokenizer(), (VOCABULARY.sot,), VOCABULARY.eot, 16_000 / 384)
"""A vocabulary without timestamps, like Moonshine's."""


def at(seconds: float) -> int:
    """The token of a moment within a window."""
    return VOCABULARY.timestamp_begin + round(seconds / 0.02)


def says(*parts: str | float) -> list[int]:
    """Texts and moments, as tokens."""
    tokens: list[int] = []
    for part in parts:
        tokens += VOCABULARY.encode(part) if isinstance(part, str) else [at(part)]
    return tokens


@dataclass
class Said:
    """What comes of one request; the end of the transcript is added."""

    tokens: list[int]
    logprob: float = -0.25
    """Of every token."""
    no_speech: float = 0.01
    times: list[float] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    ended: bool = True
    reason: FinishReason = "stop"
    pooled: Pooled | None = None
    """A whole transcript, in place of tokens."""


@dataclass
class Asked:
    """One request, as it reached the engine."""

    prompt: list[int]
    params: SamplingParams
    seed: int
    audio: Media
    probe: PromptProbe
    salt: str
    name: str
    adapter: AdapterRef | None = None
    known: int = 0
    """Tokens of the transcript that came with the request."""
    pooling: Pooling | None = None
    aborted: bool = False

    @property
    def seconds(self) -> float:
        return len(self.audio.data) / 32_000

    @property
    def after_start(self) -> list[int]:
        """What follows the start of the transcript."""
        return self.prompt[self.prompt.index(VOCABULARY.sot) + 1 :]

    @property
    def before_start(self) -> list[int]:
        return self.prompt[: self.prompt.index(VOCABULARY.sot)]


Script = Callable[[Asked], Said]


class _Stream:
    def __init__(self, asked: Asked, said: Said, gate: Callable[[], Awaitable[None]] | None) -> None:
        self._asked = asked
        self._said = said
        self._gate = gate
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Any]:
        if self._gate is not None:
            await self._gate()
        if self._ended:
            raise StopAsyncIteration
        self._ended = True
        said = self._said
        if said.pooled is not None:
            return [PromptDone(0, 0, 0.0, 0.0, None, pooled=said.pooled), Finished(0, 0, said.reason, None, None)]
        heard = AlignmentOutput(said.no_speech, said.times, said.probabilities)
        tokens = [*said.tokens, VOCABULARY.eot] if said.ended else said.tokens
        params = self._asked.params
        tokens = tokens[self._asked.known : params.max_tokens]
        logprobs = [
            TokenLogprobs(token, said.logprob, 1, [(token, said.logprob)][: params.logprobs]) for token in tokens
        ]
        return [
            PromptDone(0, 0, 0.0, 0.0, None, heard),
            SequenceTokens(0, 0, tokens, logprobs),
            Finished(0, 0, said.reason, None, "0xdead in worker.py" if said.reason == "error" else None),
        ]

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def append(self, pcm: bytes, *, last: bool = False) -> None:
        raise ValueError("nobody streams audio to it")

    def abort(self, index: int = -1) -> None:
        self._asked.aborted = True


class ScriptedEngine:
    """Takes the place of the engine client of a transcription model."""

    def __init__(self, script: Script, *, max_model_len: int = 448) -> None:
        self.ready: EngineReady | None = EngineReady(64, 16, max_model_len, [], [])
        self.stalled: str | None = None
        self.failure: str | None = None
        self.script = script
        self.asked: list[Asked] = []
        self.gate: Callable[[], Awaitable[None]] | None = None
        """Awaited before anything is said."""
        self.arena_full = False
        """Whether there is no room for media."""

    def submit(self, request: EngineRequest) -> _Stream:
        if self.failure is not None:
            raise EngineUnavailable(self.failure)
        if self.arena_full:
            raise ArenaFull
        (window,) = request.media
        (seed,) = request.seeds
        probe = request.probe or PromptProbe()
        asked = Asked(request.prompt, request.params, seed, window, probe, request.salt, request.name, request.adapter)
        asked.known = len(request.resumed[0]) if request.resumed else 0
        asked.pooling = request.pooling
        self.asked.append(asked)
        return _Stream(asked, self.script(asked), self.gate)


def model_of(script: Script, vocabulary: Vocabulary | UntimedVocabulary = VOCABULARY) -> TranscriptionModel:
    return TranscriptionModel(("whisper",), ScriptedEngine(script), vocabulary)


def engine_of(model: TranscriptionModel) -> ScriptedEngine:
    assert isinstance(model.client, ScriptedEngine)
    return model.client


def in_turn(*said: Said) -> Script:
    """One after the other, whatever is asked."""
    left = list(said)

    def script(_asked: Asked) -> Said:
        return left.pop(0)

    return script


def sound(seconds: float) -> bytes:
    """Of whatever: the script says what is heard in it."""
    return b"\x01\x00" * round(seconds * 16_000)
