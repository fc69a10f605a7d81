"""Language models that speak, over a real engine and a real speech process, against transformers."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import msgspec
import numpy as np
import pytest
import torch
import transformers as untyped_transformers

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.tts import process
from stentor.engine.tts.backend import CodecDecoder, Stop
from stentor.engine.tts.codecs import Codec, read_codec
from stentor.engine.tts.phonemes import phonemes_of
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.server.config.config import Config
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.server.options.reading import read_config
from stentor.server.text.pool import TokenizationBudget
from stentor.server.tts import opening
from stentor.server.tts.families import DEFAULT_VOICE, FAMILIES, SpeechFamily
from stentor.server.tts.language_model import longest_seconds
from stentor.server.tts.model import SpeechFailed, SpeechModel, Spoken
from stentor.server.tts.opening import open_language_model
from stentor.tests.engine.forked import client_of, told_of_losses, worker_of
from stentor.tests.engine.local import model_config
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.tts.tiny_speakers import CODES, write_llasa, write_neutts, write_orpheus, write_voice

transformers: Any = untyped_transformers
pytestmark = pytest.mark.anyio

TEXT = "Good day. It is a fine one, is it not?"
REFERENCE: Final[tuple[str, list[int]]] = ("As it was said.", [3, 1, 4, 1, 5, 9, 2, 6])
FAMILY = {family.name: family for family in FAMILIES}


class Speaker(NamedTuple):
    """A model that draws the likeliest codes, and what it is made of."""

    model: SpeechModel
    engine: EngineClient
    family: SpeechFamily
    codec: Codec
    folder: Path
    codec_folder: Path


def config_of(folder: Path, codec: Path, **flags: Any) -> Config:
    named = {"speech-model": str(folder), "speech-model-name": ["voice"], "speech-threads": "1", **flags}
    return read_config(named, {}).located(Path("/chat"), speech=folder, codec=codec)


@asynccontextmanager
async def opened(
    folder: Path, codec: Path, name: str, monkeypatch: pytest.MonkeyPatch, **flags: Any
) -> AsyncIterator[Speaker]:
    sampling = msgspec.structs.replace(FAMILY[name].sampling, temperature=0.0)
    family = msgspec.structs.replace(FAMILY[name], sampling=sampling)
    monkeypatch.setattr(opening, "family_of", lambda _tokenizer: family)
    engine = client_of(EngineConfig(model_config(folder, max_num_seqs=4)))
    model = open_language_model(config_of(folder, codec, **flags), engine, TokenizationBudget())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        tasks.start_soon(model.run)
        with anyio.fail_after(90):
            await engine.wait_started()
            await model.wait_started()
        yield Speaker(model, engine, family, read_codec(codec), folder, codec)
        tasks.cancel_scope.cancel()
    model.close()


@pytest.fixture(scope="module")
async def orpheus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speaker]:
    folder, codec = write_orpheus(tmp_path_factory.mktemp("models") / "orpheus")
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with opened(folder, codec, "Orpheus", monkeypatch) as speaker:
            yield speaker


@pytest.fixture(scope="module")
async def llasa(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speaker]:
    folder, codec = write_llasa(tmp_path_factory.mktemp("models") / "llasa")
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with opened(folder, codec, "Llasa", monkeypatch) as speaker:
            yield speaker


async def spoken_by(speaker: Speaker, text: str, voice: str | None = None) -> list[Spoken]:
    with anyio.fail_after(200):
        async with aclosing(speaker.model.speak(text, voice=voice)) as speaking:
            return [each async for each in speaking]


def generated(speaker: Speaker, prompt: list[int], text: str) -> list[int]:
    """Codes that transformers generates, each among those of its place or, between frames, the end."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(speaker.folder)
    family, codec = speaker.family, speaker.codec
    first = tokenizer.convert_tokens_to_ids(family.code_word.format(family.first_number))
    end = tokenizer.convert_tokens_to_ids(family.end)
    per = codec.frame_codes

    def allowed(_batch: int, tokens: torch.Tensor) -> list[int]:
        place = (len(tokens) - len(prompt)) % per
        words = range(first + place * CODES, first + (place + 1) * CODES)
        return [*words, *([end] if place == 0 else [])]

    model = transformers.AutoModelForCausalLM.from_pretrained(speaker.folder, dtype=torch.float32).eval()
    most = per * int(np.ceil(codec.frames_a_second * longest_seconds(text)))
    made = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=most,
        min_new_tokens=family.sampling.min_frames * per or None,
        repetition_penalty=family.sampling.repetition_penalty,
        prefix_allowed_tokens_fn=allowed,
        eos_token_id=end,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    return [token - first - at % per * CODES for at, token in enumerate(made) if token != end]


def decoded(speaker: Speaker, codes: Sequence[int]) -> Any:
    """The samples of a whole sentence."""
    start = StartSpeech(speaker.codec.backend, (VoicePlace("voice", str(speaker.codec_folder)),), 1, "error")
    decoder = process.load(start)
    assert isinstance(decoder, CodecDecoder)
    frames = len(codes) // speaker.codec.frame_codes
    return samples(decoder.decode(codes, 0, 0, frames, Stop()))


def sound(spoken: Sequence[Spoken]) -> Any:
    return samples(b"".join(each.pcm for each in spoken))


def alike(one: Any, other: Any) -> bool:
    """Whether they are equal but for the last bit: where a sentence is cut depends on when its codes came, and samples
    are rounded."""
    return one.shape == other.shape and bool(np.abs(one - other).max(initial=0) <= 1)


def samples(pcm: bytes) -> Any:
    return np.frombuffer(pcm, "<i2").astype(np.int64)


def orpheus_prompt(tokenizer: Any, voice: str, text: str) -> list[int]:
    """The prompt of Orpheus' own engine."""
    start, *end = (tokenizer.convert_tokens_to_ids(f"<custom_token_{number}>") for number in (3, 4, 5, 1))
    return [start, *tokenizer(f"{voice}: {text}").input_ids, tokenizer.convert_tokens_to_ids("<|eot_id|>"), *end]


def llasa_prompt(tokenizer: Any, _voice: str, text: str) -> list[int]:
    """The prompt of Llasa's model card."""
    asked = f"Convert the text to speech:<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
    chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": "<|SPEECH_GENERATION_START|>"}]
    made: list[int] = tokenizer.apply_chat_template(chat, continue_final_message=True, return_dict=True)["input_ids"]
    return made


def neutts_prompt(tokenizer: Any, _voice: str, text: str) -> list[int]:
    """The prompt of NeuTTS' own library."""
    token = tokenizer.convert_tokens_to_ids
    said = f"{phonemes_of(REFERENCE[0], 'en-us')} {phonemes_of(text, 'en-us')}"
    chat = "user: Convert the text to speech:<|TEXT_REPLACE|>\nassistant:<|SPEECH_REPLACE|>"
    ids: list[int] = tokenizer.encode(chat)
    place = ids.index(token("<|TEXT_REPLACE|>"))
    inner = tokenizer.encode(said, add_special_tokens=False)
    ids[place : place + 1] = [token("<|TEXT_PROMPT_START|>"), *inner, token("<|TEXT_PROMPT_END|>")]
    codes = [token(f"<|speech_{code}|>") for code in REFERENCE[1]]
    return [*ids[: ids.index(token("<|SPEECH_REPLACE|>"))], token("<|SPEECH_GENERATION_START|>"), *codes]


Prompt = Callable[[Any, str, str], list[int]]


async def check_against_transformers(speaker: Speaker, voice: str | None, prompt: Prompt) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(speaker.folder)
    spoken = await spoken_by(speaker, TEXT, voice)
    assert "".join(each.text for each in spoken) == TEXT
    assert [each.last for each in spoken] == [False] * (len(spoken) - 1) + [True]
    sentences = [each.text.strip() for each in spoken if each.text]
    assert len(sentences) > 1
    wanted = [generated(speaker, prompt(tokenizer, voice or "", said), said) for said in sentences]
    made = samples(b"".join(each.pcm for each in spoken))
    whole = np.concatenate([decoded(speaker, codes) for codes in wanted])
    assert made.shape == whole.shape
    assert np.abs(whole).max() > 100
    assert np.abs(made - whole).max() <= 1


async def test_orpheus_sounds_as_transformers_codes_of_each_sentence_decoded_whole(orpheus: Speaker) -> None:
    await check_against_transformers(orpheus, "leo", orpheus_prompt)


@pytest.mark.proof
async def test_llasa_sounds_as_transformers_codes_of_each_sentence_decoded_whole(llasa: Speaker) -> None:
    assert llasa.model.voices == (DEFAULT_VOICE,)
    await check_against_transformers(llasa, None, llasa_prompt)


@pytest.mark.proof
async def test_neutts_sounds_as_transformers_codes_of_each_sentence_decoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("piper")
    folder, codec = write_neutts(tmp_path / "neutts")
    write_voice(tmp_path / "voices", "ann", *REFERENCE)
    write_voice(tmp_path / "voices", "bob", "Another.", [0, 1])
    with anyio.fail_after(120):
        async with opened(
            folder, codec, "NeuTTS", monkeypatch, **{"speech-voices": str(tmp_path / "voices")}
        ) as speaker:
            assert speaker.model.voices == ("ann", "bob")
            await check_against_transformers(speaker, "ann", neutts_prompt)


async def test_sound_of_a_sentence_comes_before_the_sentence_is_made(orpheus: Speaker) -> None:
    spoken = await spoken_by(orpheus, TEXT, "leo")
    begins = [at for at, each in enumerate(spoken) if each.text]
    frames = [len(each.pcm) // 2 // orpheus.codec.frame_samples for each in spoken]
    assert begins[1] > 2
    assert [frames[at] for at in begins] == [1] * len(begins)
    assert max(frames) > 2


async def test_texts_at_the_same_time_sound_as_alone(orpheus: Speaker) -> None:
    texts = [f"Number {number} speaks." for number in range(4)]
    alone = [await spoken_by(orpheus, text, "zoe") for text in texts]
    together: list[list[Spoken]] = [[] for _ in texts]

    async def speak(number: int) -> None:
        together[number] = await spoken_by(orpheus, texts[number], "zoe")

    async with anyio.create_task_group() as tasks:
        for number in range(len(texts)):
            tasks.start_soon(speak, number)
    assert all(alike(sound(one), sound(other)) for one, other in zip(together, alone, strict=True))
    assert not alike(sound(alone[0]), sound(alone[1]))


@pytest.mark.parametrize("victim", ["worker", "speech"])
async def test_a_text_goes_on_as_it_would_have_after_a_process_was_killed(orpheus: Speaker, victim: str) -> None:
    wanted = sound(await spoken_by(orpheus, TEXT))
    lost = orpheus.engine.stats.worker_restarts
    restarts = orpheus.model.restarts
    with anyio.fail_after(60):
        async with aclosing(orpheus.model.speak(TEXT)) as speaking:
            made = [await anext(speaking)]
            pid = worker_of(orpheus.engine) if victim == "worker" else orpheus.model.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            made += [each async for each in speaking]
    assert alike(sound(made), wanted)
    if victim == "worker":
        await told_of_losses(orpheus.engine, workers=lost + 1)
    else:
        with anyio.fail_after(60):
            while orpheus.model.restarts <= restarts or orpheus.model.stalled:
                await anyio.sleep(0.01)


async def test_a_reader_that_leaves_ends_the_sequence(orpheus: Speaker) -> None:
    async with aclosing(orpheus.model.speak(TEXT)) as speaking:
        await anext(speaking)
    with anyio.fail_after(30):
        while orpheus.engine.live_requests:
            await anyio.sleep(0.01)
    assert orpheus.model.callers == 0


async def test_special_tokens_of_a_text_are_not_read_as_such_but_sounds_are(orpheus: Speaker) -> None:
    plain = await spoken_by(orpheus, "Stop here.")
    marked = await spoken_by(orpheus, "Stop<|eot_id|> <custom_token_2>here.")
    laughing = await spoken_by(orpheus, "Stop <laugh> here.")
    assert alike(sound(marked), sound(plain))
    assert not alike(sound(laughing), sound(plain))


async def test_voices_are_the_model_s_own_and_it_has_one_speed(orpheus: Speaker) -> None:
    assert orpheus.model.voices == ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
    assert orpheus.model.voice("alloy") == "tara"
    orpheus.model.check_speed(1.0)
    for call in (lambda: orpheus.model.check_speed(1.5), lambda: orpheus.model.speak(TEXT, speed=0.5)):
        with pytest.raises(BadRequest, match="speed of 1 only") as refused:
            call()
        assert refused.value.param == "speed"


async def test_the_engine_is_told_whose_text_it_is_and_what_may_be_drawn(
    orpheus: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[EngineRequest] = []
    submit = orpheus.engine.submit

    def noted(request: EngineRequest) -> RequestStream:
        submitted.append(request)
        return submit(request)

    monkeypatch.setattr(orpheus.engine, "submit", noted)
    async with aclosing(orpheus.model.speak("Good day.", salt="ann's")) as speaking:
        async for _ in speaking:
            pass
    (request,) = submitted
    assert request.salt == "ann's"
    assert request.grammar.count("<[") == 7
    frames = int(np.ceil(orpheus.codec.frames_a_second * longest_seconds("Good day.")))
    assert request.params.max_tokens == 7 * frames
    assert longest_seconds("a" * 10_000) == 40


async def test_a_request_for_another_speed_is_refused_by_its_field(orpheus: Speaker) -> None:
    registry = ModelRegistry([ServedModel("chat", ("chat",)), ServedModel("speech", ("voice",))])
    state = fake_state(registry=registry, speech=orpheus.model, runners={"speech": orpheus.model})
    async with in_memory(state) as client:
        body = {"input": "Good day.", "voice": "zoe", "response_format": "pcm"}
        answer = await client.post("/v1/audio/speech", json={**body, "speed": 1.25})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speed")
        assert (await client.post("/v1/audio/speech", json={**body, "speed": 1.0})).content


async def test_a_sentence_that_has_no_room_fails_and_names_the_option(
    orpheus: Speaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert orpheus.engine.ready is not None
    monkeypatch.setattr(orpheus.engine, "ready", msgspec.structs.replace(orpheus.engine.ready, max_model_len=20))
    with pytest.raises(SpeechFailed):
        await spoken_by(orpheus, TEXT)
    assert "--speech-max-model-len" in caplog.text
