"""Pictures and sounds through the OpenAI SDK: a real server over a text model in a GGUF file and its projector file,
against transformers."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers as untyped_transformers

from stentor.loadtest.server_process import ServerProcess
from stentor.server.asr.asking import ASKING
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.e2e.made_up import EXACT, describe
from stentor.tests.e2e.test_media import Made, Turn, conversation, said_by_transformers
from stentor.tests.parity.seeing import CONFIGS
from stentor.tests.parity.sounding import model_of
from stentor.tests.server.audio.voices import tone
from stentor.tests.support import audio_models
from stentor.tests.support.mmproj_files import SPELLED, write_pair
from stentor.tests.support.vision_models import FAMILIES, SPECIAL, randomised, write_tokenizer
from stentor.tests.support.whole_audio import encode_whole

transformers: Any = untyped_transformers


@pytest.fixture(scope="module", params=["idefics3", "qwen3_vl"])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    model = FAMILIES[request.param](folder)
    write_pair(folder, model, request.param)
    return Made(folder, model, ModelProcessor(folder)._processor)


@pytest.fixture(scope="module")
def client(made: Made) -> Iterator[openai.OpenAI]:
    with serving(made.folder) as client:
        yield client


@contextmanager
def serving(folder: Path) -> Iterator[openai.OpenAI]:
    named = ["--served-model-name", "sees", "--kv-cache-memory", "64MiB"]
    apart = folder / "elsewhere" / "projector.gguf"  # named by the option
    apart.parent.mkdir()
    (folder / "gguf" / "mmproj-m.gguf").rename(apart)
    arguments = [str(folder / "gguf" / "m.gguf"), "--mmproj", str(apart), *EXACT, *named]
    with (
        ServerProcess(arguments) as running,
        openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


@pytest.mark.proof(each="made")
@pytest.mark.parametrize(
    "turns",
    [
        [("user", ["hello"])],
        [("user", ["small", "what is it?"])],
        [("user", ["wide", "and", "large", "?"]), ("assistant", ["yes"]), ("user", ["why?"])],
    ],
    ids=["no picture", "one", "several of mixed sizes, in the middle of history"],
)
def test_an_answer_to_pictures_is_that_of_transformers(
    client: openai.OpenAI, made: Made, turns: Sequence[Turn]
) -> None:
    prompt, wanted = said_by_transformers(made, turns, 12)
    found: Any = client.chat.completions.create(
        model="sees",
        messages=conversation(turns, sent=True),
        max_tokens=12,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    assert found.prompt_token_ids == prompt
    assert found.choices[0].token_ids == wanted


def qwen2_audio(folder: Path) -> Any:
    """Hears a second; with the processor of transformers."""
    config = CONFIGS["qwen2_audio"]()
    config.audio_config.max_source_positions = 50
    model = randomised("qwen2_audio", lambda: model_of(config))
    model.save_pretrained(folder)
    template = audio_models.CHATML.replace("AUDIO", "<|audio_bos|><|AUDIO|><|audio_eos|>")
    special = [SPELLED["qwen2_audio"].get(256 + place, text) for place, text in enumerate(SPECIAL)]
    write_tokenizer(folder, template, special=special)
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    audio_models.write_extractor(folder, "Qwen2AudioProcessor", extractor)
    return model


class Hears:
    """A model with audio input, and transformers' answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, qwen2_audio(folder)
        write_pair(folder, self.model, "qwen2_audio")
        self.processor = transformers.AutoProcessor.from_pretrained(folder)

    def answer(self, text: str, sounds: Sequence[Any]) -> tuple[list[int], list[int]]:
        """The prompt's tokens and 12 behind them, greedily."""
        inputs = self.processor(text=text, audio=sounds, sampling_rate=16_000, return_tensors="pt")
        with torch.no_grad():
            whole = self.model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].tolist()
        prompt = inputs["input_ids"][0].tolist()
        return prompt, whole[len(prompt) :]


@pytest.fixture(scope="module")
def hears(tmp_path_factory: pytest.TempPathFactory) -> Hears:
    return Hears(tmp_path_factory.mktemp("hears"))


def samples(seconds: float) -> Any:
    return np.frombuffer(tone(seconds), "<i2").astype(np.float32) / 32768


def check_transcript(hears: Hears, client: openai.OpenAI, name: str) -> None:
    asking = ASKING["Qwen2AudioForConditionalGeneration"].text
    _, written = hears.answer(asking, [samples(0.7)])
    file = "clip.wav", encode_whole(tone(0.7), "wav", 16_000)
    found = client.audio.transcriptions.create(model=name, file=file, extra_body={"max_completion_tokens": 12})
    assert found.text == load_tokenizer(hears.folder).decode(written).strip() != ""


@pytest.mark.proof
def test_answers_to_sounds_and_transcripts_are_those_of_transformers(hears: Hears) -> None:
    sounds = [samples(0.7), samples(1.0)]
    content = [{"type": "audio"}, {"type": "text", "text": "and"}, {"type": "audio"}, {"type": "text", "text": "?"}]
    text = hears.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    prompt, wanted = hears.answer(text, sounds)
    given = iter(sounds)
    sent = [part if part["type"] == "text" else input_audio(next(given)) for part in content]
    question: Any = [{"role": "user", "content": sent}]
    with serving(hears.folder) as client:
        found: Any = client.chat.completions.create(
            model="sees",
            messages=question,
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
        check_transcript(hears, client, "sees")
    assert found.prompt_token_ids == prompt
    assert found.choices[0].token_ids == wanted


@pytest.mark.proof
def test_a_pair_of_files_transcribes_beside_a_chat_model(hears: Hears, tmp_path: Path) -> None:
    file = write_pair(hears.folder, hears.model, "qwen2_audio", tmp_path / "ears")
    (tmp_path / "chat").mkdir()
    chat = describe(tmp_path / "chat")
    ears = ["--transcription-model", str(file), "--transcription-model-name", "ears"]
    with (
        ServerProcess([*chat, *EXACT, *ears]) as running,
        openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        check_transcript(hears, client, "ears")


def input_audio(samples: Any) -> dict[str, Any]:
    pcm = (samples * 32768).astype("<i2").tobytes()
    data = base64.b64encode(encode_whole(pcm, "wav", 16_000)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
