"""Files for chat models that hear: what they are asked, and what is made of their answers."""

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import transformers as untyped_transformers
from msgspec.structs import replace
from openai.types import audio as sdk
from prometheus_client import CollectorRegistry
from safetensors.numpy import load

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.server.api.realtime.connections.serving import RealtimeServing, ServedModels
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.transcribing import ChatTurnTranscriber
from stentor.server.app.state import ServerState
from stentor.server.asr.asking import ASKING, Asking
from stentor.server.audio import quiet
from stentor.server.common.keys import ANYONE
from stentor.server.config.config import StoreConfig
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.media.chat_media import ChatMedia
from stentor.server.storage.opening import make_store
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.choose import choose_renderer
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.asr.test_http import TRANSCRIPTIONS, TRANSLATIONS, WavReader, post, wav
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.harness import CHAT, in_memory, on_loopback
from stentor.tests.server.media.opened import open_media
from stentor.tests.support import audio_models
from stentor.tests.wire.validate import TRANSCRIPT_EXTENSIONS, check_event, frames_of

transformers: Any = untyped_transformers
pytest.importorskip("mistral_common")
pytestmark = pytest.mark.anyio

FUNASR = "FunASRForConditionalGeneration"
MOSS = "MossTranscribeDiarizeForConditionalGeneration"
VIBEVOICE = "VibeVoiceAsrForConditionalGeneration"
NEMOTRON = "Nemotron3_5TranscribeForConditionalGeneration"
OMNIASR = "OmniASRForConditionalGeneration"
QWEN3_ASR, VOXTRAL = "Qwen3ASRForConditionalGeneration", "VoxtralForConditionalGeneration"
GRANITES = ("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration")
MAKERS: dict[str, tuple[Callable[[Path], None], str]] = {
    FUNASR: (audio_models.funasr, "<|AUDIO|>"),
    MOSS: (audio_models.moss, "<|audio_pad|>"),
    VIBEVOICE: (audio_models.vibevoice, "<|box_start|>"),
    NEMOTRON: (audio_models.nemotron_transcribe, "<unk>"),
    OMNIASR: (audio_models.omniasr, "<extra_id_1>"),
    QWEN3_ASR: (audio_models.qwen3_asr, "<|audio_pad|>"),
    VOXTRAL: (audio_models.voxtral, "[AUDIO]"),
    **dict.fromkeys(GRANITES, (audio_models.granite_speech, "<|audio|>")),
}
"""By architecture: what makes its files, and its placeholder."""


class Model:
    """A chat model with audio input; its engine answers :attr:`says` of the number of a prompt's audio tokens."""

    def __init__(self, folder: Path, architecture: str) -> None:
        make, self.placeholder = MAKERS[architecture]
        make(folder)
        self.folder, self.asking = folder, ASKING[architecture]
        self.tokenizer = load_tokenizer(folder)
        self.id, self.eos = (self.tokenizer.encode(text, False)[0] for text in (self.placeholder, "</s>"))
        self.says: Callable[[int], str] = lambda _count: ""
        self._spec = MediaSpec({"audio": self.id})
        self._store = make_store(StoreConfig())
        self._opened: list[ChatMedia] = []
        self.begin()

    def begin(self, asking: Asking | None = None, **fields: Any) -> None:
        """A server and an engine that have been asked nothing; what processes media stays."""
        self.engine = FakeEngine(answer=self._answer, max_model_len=2048)
        assert self.engine.ready is not None
        self.engine.ready = replace(self.engine.ready, groups=(CacheGroup("full"), CacheGroup("cross", capacity=4096)))
        pool = TokenizerPool(self.tokenizer)
        self.state: ServerState = fake_state(
            self.engine,
            pool=pool,
            renderer=choose_renderer("auto", pool, self.folder, None),
            vocab_size=self.tokenizer.vocab_size,
            media=self._media,
            spec=self._spec,
            store=self._store,
            asking=asking or self.asking,
            decoder=WavReader(),
            eos_token_ids=(self.eos,),
            **fields,
        )

    def _media(self, figures: CollectorRegistry) -> ChatMedia:
        if not self._opened:
            self._opened.append(open_media(self.folder, self._spec, self._store, figures))
        return self._opened[0]

    def _answer(self, prompt: list[int], _index: int) -> Sequence[int]:
        return [*self.tokenizer.encode(self.says(prompt.count(self.id)), False), self.eos]

    def prompts(self) -> list[str]:
        """Of all requests, with a number in place of the tokens of a sound."""
        told = []
        for stream in self.engine.streams:
            text = self.tokenizer.decode(stream.prompt, skip_special_tokens=False)
            count = stream.prompt.count(self.id)
            told.append(text.replace(self.placeholder * count, f"({count})"))
        return told

    def close(self) -> None:
        self._opened[0].close()


@pytest.fixture(scope="module")
def qwen_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("qwen3_asr"), QWEN3_ASR)
    yield model
    model.close()


@pytest.fixture(scope="module")
def voxtral_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("voxtral"), VOXTRAL)
    yield model
    model.close()


@pytest.fixture(scope="module")
def omniasr_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("omniasr"), OMNIASR)
    yield model
    model.close()


@pytest.fixture
def qwen(qwen_model: Model) -> Model:
    qwen_model.begin()
    qwen_model.says = lambda _count: "language German<asr_text>Guten Tag."
    return qwen_model


@pytest.fixture
def voxtral(voxtral_model: Model) -> Model:
    voxtral_model.begin()
    voxtral_model.says = lambda _count: " Guten Tag."
    return voxtral_model


@pytest.fixture(scope="module")
def moss_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("moss"), MOSS)
    yield model
    model.close()


@pytest.fixture
def moss(moss_model: Model) -> Model:
    moss_model.begin()
    moss_model.says = lambda _count: "[0.00][S01]Guten Tag.[0.80][0.90][S02] Hallo [lacht].[1.50]"
    return moss_model


SPOKEN = [("seg_0", "A", 0.0, 0.8, "Guten Tag."), ("seg_1", "B", 0.9, 1.5, "Hallo [lacht].")]


async def test_turns_of_speakers_are_the_sdk_s_segments(moss: Model) -> None:
    async with (
        on_loopback(moss.state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        file = ("a.wav", io.BytesIO(wav(tone(2))), "audio/wav")
        found = await client.audio.transcriptions.create(
            model="fake", file=file, response_format="diarized_json", chunking_strategy="auto"
        )
    assert isinstance(found, sdk.TranscriptionDiarized)
    assert (found.text, found.duration, found.task) == ("Guten Tag. Hallo [lacht].", 2.0, "transcribe")
    assert [(each.id, each.speaker, each.start, each.end, each.text) for each in found.segments] == SPOKEN
    assert (await post(moss.state, (), tone(2))).json()["text"] == "Guten Tag. Hallo [lacht]."


async def test_a_stream_has_each_turn_once_it_ends(moss: Model) -> None:
    answer = await post(moss.state, [("stream", "true"), ("response_format", "diarized_json")], tone(2))
    frames = [frame.data for frame in frames_of(answer.content)]
    *events, done = (check_event(sdk.TranscriptionStreamEvent, frame, TRANSCRIPT_EXTENSIONS) for frame in frames[:-1])
    turns = [each for each in events if each.type == "transcript.text.segment"]
    assert [(each.id, each.speaker, each.start, each.end, each.text) for each in turns] == SPOKEN
    deltas = [each.delta for each in events if each.type == "transcript.text.delta"]
    assert "".join(deltas) == done.text == "Guten Tag. Hallo [lacht]."
    assert events.index(turns[0]) < len(events) - 2, "the first turn comes before the second is written"


@pytest.fixture(scope="module")
def vibevoice_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("vibevoice"), VIBEVOICE)
    yield model
    model.close()


@pytest.fixture
def vibevoice(vibevoice_model: Model) -> Model:
    entries = (
        {"Start": 0, "End": 0.8, "Speaker": 3, "Content": "Guten Tag."},
        {"Start": 0.9, "End": 1.5, "Speaker": 0, "Content": "Hallo [lacht]."},
    )
    vibevoice_model.begin()
    vibevoice_model.says = lambda _count: json.dumps(entries, separators=(",", ":")) + "\n"
    return vibevoice_model


async def test_vibevoice_is_told_the_length_of_the_audio_and_its_entries_are_turns(vibevoice: Model) -> None:
    async with (
        on_loopback(vibevoice.state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        file = ("a.wav", io.BytesIO(wav(tone(2))), "audio/wav")
        found = await client.audio.transcriptions.create(
            model="fake", file=file, response_format="diarized_json", chunking_strategy="auto"
        )
    assert isinstance(found, sdk.TranscriptionDiarized)
    assert (found.text, found.duration) == ("Guten Tag. Hallo [lacht].", 2.0)
    assert [(each.id, each.speaker, each.start, each.end, each.text) for each in found.segments] == SPOKEN
    (prompt,) = vibevoice.prompts()
    assert "<|object_ref_start|>(15)<|object_ref_end|>\nThis is a 2.00 seconds audio, please" in prompt
    answer = await post(vibevoice.state, [("stream", "true"), ("response_format", "diarized_json")], tone(2))
    frames = [frame.data for frame in frames_of(answer.content)]
    *events, done = (check_event(sdk.TranscriptionStreamEvent, frame, TRANSCRIPT_EXTENSIONS) for frame in frames[:-1])
    deltas = [each.delta for each in events if each.type == "transcript.text.delta"]
    assert "".join(deltas) == done.text == "Guten Tag. Hallo [lacht]."
    assert (await post(vibevoice.state, (), tone(2))).json()["text"] == "Guten Tag. Hallo [lacht]."


async def test_parts_of_a_long_file_have_their_own_times_and_speakers(
    moss: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "_CUT_SAMPLES", 16_000)
    moss.begin(replace(moss.asking, seconds=3))
    moss.says = lambda _count: "[0.10][S01]Ja.[0.50]"
    answer = await post(moss.state, [("response_format", "diarized_json")], tone(2.25) + bytes(3200) + tone(1.5))
    segments = answer.json()["segments"]
    assert [each["speaker"] for each in segments] == ["A", "B"]
    second = segments[1]
    assert (segments[0]["start"], segments[0]["end"]) == (0.1, 0.5)
    assert second["end"] - second["start"] == pytest.approx(0.4)
    assert 2.25 <= second["start"] - 0.1 <= 2.35, "where the file was cut"


@pytest.mark.parametrize("field", [("response_format", "srt"), ("include[]", "logprobs")])
async def test_a_model_of_speakers_refuses_what_it_has_not(moss: Model, field: tuple[str, str]) -> None:
    answer = await post(moss.state, [field], tone(1))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field[0].removesuffix("[]"))


async def test_the_sdk_is_given_what_stands_behind_the_language(qwen: Model) -> None:
    async with (
        on_loopback(qwen.state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        file = ("a.wav", io.BytesIO(wav(tone(2))), "audio/wav")
        found = await client.audio.transcriptions.create(model="fake", file=file, include=["logprobs"])
        assert found.text == "Guten Tag."
        said = b"".join(bytes(map(int, one.bytes or ())) for one in found.logprobs or ())
        assert said == b"Guten Tag."
    assert qwen.prompts() == ["<|im_start|>user\n<|audio_start|>(26)<|audio_end|><|im_end|>\n<|im_start|>assistant\n"]
    (sent,) = qwen.engine.media[-1]
    assert sent.length == 26
    assert load(bytes(sent.data)).keys() == {"input_features", "input_features_mask"}
    assert qwen.engine.streams[-1].params.temperature == 0.0
    assert qwen.state.admission.memory.bytes == 0


async def test_the_prompt_is_the_one_of_transformers(qwen: Model) -> None:
    qwen.says = lambda _count: "Hallo."
    fields = [("language", "de"), ("prompt", "Names: Ada"), ("temperature", "0.5"), ("max_completion_tokens", "3")]
    answer = await post(qwen.state, fields, tone(1.5))
    assert answer.json() == {"text": "Hal", "usage": {"type": "duration", "seconds": 2}}
    processor = transformers.AutoProcessor.from_pretrained(qwen.folder)
    sound = np.frombuffer(tone(1.5), "<i2").astype(np.float32) / 32768
    expected = processor.apply_transcription_request(sound, language="de", prompt="Names: Ada", return_tensors="pt")
    stream = qwen.engine.streams[-1]
    assert stream.prompt == expected["input_ids"][0].tolist()
    assert (stream.params.temperature, stream.params.max_tokens) == (0.5, 3)


async def test_long_files_are_cut_where_they_are_quiet_and_joined(qwen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_CUT_SAMPLES", 16_000)
    qwen.begin(replace(qwen.asking, seconds=3))
    qwen.says = lambda count: f"language English<asr_text>{count} tokens."
    pcm = tone(2.25) + bytes(3200) + tone(3.0) + bytes(16_000)
    answer = await post(qwen.state, [("model", "fake/model")], pcm)
    assert answer.json()["text"] == "30 tokens. 38 tokens. 8 tokens."
    qwen.says = lambda count: f"language Chinese<asr_text>{count}"
    joined = (await post(qwen.state, [("response_format", "text")], pcm)).text
    assert joined == "30388\n", "no space parts what is written without spaces"
    qwen.says = lambda count: f"language {'Macedonian' if count == 30 else 'Thai'}<asr_text>{count}"
    assert (await post(qwen.state, [("response_format", "text")], pcm)).text == "30 38 8\n", "as of the first part"


async def test_a_stream_has_the_text_as_it_is_written_and_counts_tokens(qwen: Model) -> None:
    answer = await post(qwen.state, [("stream", "true")], tone(2))
    frames = [frame.data for frame in frames_of(answer.content)]
    assert frames[-1] == "[DONE]"
    *deltas, done = (check_event(sdk.TranscriptionStreamEvent, frame, TRANSCRIPT_EXTENSIONS) for frame in frames[:-1])
    assert len(deltas) > 3
    assert "".join(event.delta for event in deltas) == done.text == "Guten Tag."
    text = len(qwen.engine.streams[-1].prompt) - 26
    assert done.usage.output_tokens == len("Guten Tag.")
    assert (done.usage.input_token_details.audio_tokens, done.usage.input_token_details.text_tokens) == (26, text)


async def test_what_is_no_transcript_by_its_marker_is_one_as_a_whole(qwen: Model) -> None:
    qwen.says = lambda _count: "nothing but words, " * 4
    assert (await post(qwen.state, (), tone(1))).json()["text"] == ("nothing but words, " * 4).strip()
    qwen.says = lambda _count: "few"
    assert (await post(qwen.state, (), tone(1))).json()["text"] == "few"
    qwen.says = lambda _count: "language None<asr_text>"
    assert (await post(qwen.state, (), tone(1))).json()["text"] == ""
    asked = len(qwen.engine.streams)
    assert (await post(qwen.state, (), bytes(64_000))).json()["text"] == ""
    assert len(qwen.engine.streams) == asked, "nobody is asked about digital silence"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("response_format", "srt")], "response_format"),
        ([("response_format", "vtt")], "response_format"),
        ([("response_format", "verbose_json")], "response_format"),
        ([("response_format", "diarized_json")], "response_format"),
        ([("language", "xx")], "language"),
        ([("languages[]", "de"), ("languages[]", "en")], "languages[1]"),
        ([("prompt", "<|audio_pad|>")], "prompt"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_its_name(qwen: Model, fields: list[tuple[str, str]], param: str) -> None:
    answer = await post(qwen.state, fields, tone(1))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not qwen.engine.streams


async def test_it_translates_nothing(qwen: Model) -> None:
    answer = await post(qwen.state, (), tone(1), TRANSLATIONS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("fields", [[], [("stream", "true")]])
async def test_failures_have_their_own_status(qwen: Model, fields: list[tuple[str, str]]) -> None:
    qwen.engine.failure = "gone"
    answer = await post(qwen.state, fields, tone(1))
    assert answer.status_code == 503
    assert qwen.state.admission.memory.bytes == 0


async def test_a_model_for_transcription_alone_goes_first_where_none_is_named(qwen: Model) -> None:
    models = [ServedModel("chat", ("m",), also=("transcription",)), ServedModel("transcription", ("w",))]
    registry = ModelRegistry(models)
    assert registry.resolve(None, "transcription") == "w"
    assert registry.resolve("m", "transcription") == "m"
    assert ModelRegistry(models[:1]).resolve(None, "transcription") == "m"
    with pytest.raises(BadRequest):
        ModelRegistry([ServedModel("chat", ("m",))]).resolve("m", "transcription")


async def test_turns_of_a_session_are_written_down_from_where_they_are_known(qwen: Model) -> None:
    state = qwen.state
    assert ServedModels(state.for_realtime).transcription_model(None, "model") == "fake/model"
    assert ServedModels(state.for_realtime).language("German", "language") == "de"
    transcribe = RealtimeServing(state.for_realtime).transcriber(ANYONE)
    assert isinstance(transcribe, ChatTurnTranscriber)
    settings = TranscriptionSettings(logprobs=True)
    first = await transcribe(tone(1), settings, continued="", final=False)
    assert first.text == "Guten Tag."
    assert b"".join(bytes(token.bytes) for token in first.tokens) == b"Guten Tag."
    qwen.says = lambda _count: " Tag, Welt."
    second = await transcribe(tone(2), settings, continued="Guten", final=True)
    assert second.text == " Tag, Welt."
    assert qwen.prompts()[-1].endswith("assistant\nlanguage German<asr_text>Guten")
    assert state.admission.memory.bytes == 0


@pytest.fixture
def theirs(voxtral: Model, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tokenizer of its makers, who would read sounds with a library that need not be there."""
    from mistral_common.audio import Audio
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    second = object.__new__(Audio)
    second.audio_array, second.sampling_rate, second.format = np.zeros(16_000, np.float32), 16_000, "wav"
    monkeypatch.setattr(Audio, "from_raw_audio", lambda _raw: second)
    return MistralTokenizer.from_file(str(voxtral.folder / "tekken.json"))


async def test_voxtral_is_asked_in_its_own_form(voxtral: Model, theirs: Any) -> None:
    from mistral_common.protocol.instruct.chunk import RawAudio
    from mistral_common.protocol.transcription.request import TranscriptionRequest

    for fields, language in (([("language", "en")], "en"), ([], None)):
        answer = await post(voxtral.state, fields, tone(2))
        assert answer.json()["text"] == "Guten Tag.", answer.text
        audio = RawAudio.model_construct(data="x", format="wav")
        request = TranscriptionRequest.model_construct(model="m", audio=audio, language=language)
        assert voxtral.engine.streams[-1].prompt == theirs.encode_transcription(request).tokens
    assert voxtral.engine.media[-1][0].length == 375


async def test_voxtral_hears_in_chat(voxtral: Model, theirs: Any) -> None:
    from mistral_common.protocol.instruct.chunk import AudioChunk, RawAudio, TextChunk
    from mistral_common.protocol.instruct.messages import UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    data = base64.b64encode(wav(tone(1))).decode()
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    content = [{"type": "text", "text": "What the"}, sound, {"type": "text", "text": "[AUDIO] lang?"}]
    messages = [{"role": "user", "content": content}]
    async with in_memory(voxtral.state) as client:
        answer = await client.post(CHAT, json={"model": "fake", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == " Guten Tag."
    assert answer.json()["usage"]["prompt_tokens_details"]["audio_tokens"] == 375
    heard = AudioChunk.model_construct(input_audio=RawAudio.model_construct(data="x", format="wav"))
    parts: Any = [TextChunk(text="What the"), heard, TextChunk(text="[AUDIO] lang?")]
    request: Any = ChatCompletionRequest(messages=[UserMessage(content=parts)])
    assert voxtral.engine.streams[-1].prompt == theirs.encode_chat_completion(request).tokens


@pytest.mark.parametrize("architecture", GRANITES)
async def test_models_of_chat_are_asked_in_words(tmp_path: Path, architecture: str) -> None:
    model = Model(tmp_path, architecture)
    model.says = lambda _count: "Good day."
    for path, fields in ((TRANSCRIPTIONS, [("language", "fr"), ("prompt", "x")]), (TRANSLATIONS, [])):
        answer = await post(model.state, fields, tone(1), path)
        assert answer.json()["text"] == "Good day.", answer.text
    model.close()
    whole = "<|im_start|>user\n(18){}<|im_end|>\n<|im_start|>assistant\n"
    words = ("can you transcribe the speech into a written format?", "translate the speech to English")
    assert model.prompts() == [whole.format(each) for each in words]


@pytest.mark.parametrize(
    ("language", "written"),
    [(None, "auto"), ("de", "deu_latn"), ("English", "eng_latn"), ("zza_Latn", "zza_latn")],
)
async def test_omniasr_is_told_the_language_by_a_token(
    omniasr_model: Model, language: str | None, written: str
) -> None:
    omniasr_model.begin()
    omniasr_model.says = lambda _count: "guten tag"
    answer = await post(omniasr_model.state, [("language", language)] if language else [], tone(1))
    assert answer.json()["text"] == "guten tag", answer.text
    assert omniasr_model.prompts() == [f"(50)<extra_id_0><|lang:{written}|><s>"]


async def test_a_language_without_a_token_is_refused(omniasr_model: Model) -> None:
    omniasr_model.begin()
    answer = await post(omniasr_model.state, [("language", "fr")], tone(1))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")
    assert "it transcribes de, deu_latn, en, eng_latn, zza_latn" in answer.text


async def test_fun_asr_for_vllm_is_asked_as_by_its_makers_in_fewer_tokens(tmp_path: Path) -> None:
    model = Model(tmp_path, FUNASR)
    model.says = lambda _count: "Good day."
    for fields in ([("language", "en")], []):
        answer = await post(model.state, fields, tone(1))
        assert answer.json()["text"] == "Good day.", answer.text
    model.close()
    whole = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n语音转写{}：(3)<|im_end|>\n"  # noqa: RUF001
    assert model.prompts() == [f"{whole.format(named)}<|im_start|>assistant\n" for named in ("成英文", "")]


async def test_nemotron_transcribe_is_asked_without_thinking(tmp_path: Path) -> None:
    model = Model(tmp_path, NEMOTRON)
    model.says = lambda _count: "Guten Tag."
    answer = await post(model.state, [("language", "de")], tone(1))
    assert answer.json()["text"] == "Guten Tag.", answer.text
    model.close()
    (prompt,) = model.prompts()
    assert prompt.startswith("<|im_start|>user\nAudio transcription. Language: as spoken.")
    assert prompt.endswith(" Output: transcript only.(13)<|im_end|>\n<|im_start|>assistant\n")


def test_a_language_is_named_where_the_model_has_a_word_for_it() -> None:
    omni = ASKING["Qwen3OmniMoeForConditionalGeneration"]
    assert omni.naming(omni.says, omni.language("pt-BR", "language")) == "Transcribe this audio into Portuguese."
    assert omni.naming(omni.says, None) == "Transcribe this audio."


async def test_speech_alone_is_cut_out_where_a_client_asks_for_it(qwen: Model) -> None:
    answer = await post(qwen.state, [("chunking_strategy", "auto")], bytes(2 * 16_000))
    assert answer.json()["text"] == ""
    assert not qwen.engine.streams
