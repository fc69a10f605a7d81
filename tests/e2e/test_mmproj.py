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
from stentor.server.media.model_processor import ModelProcessor
from stentor.tests.e2e.made_up import EXACT
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


@pytest.mark.proof
def test_an_answer_to_sounds_is_that_of_transformers(tmp_path: Path) -> None:
    model = qwen2_audio(tmp_path)
    write_pair(tmp_path, model, "qwen2_audio")
    sounds = [np.frombuffer(tone(seconds), "<i2").astype(np.float32) / 32768 for seconds in (0.7, 1.0)]
    content = [{"type": "audio"}, {"type": "text", "text": "and"}, {"type": "audio"}, {"type": "text", "text": "?"}]
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=text, audio=sounds, sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        whole = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].tolist()
    prompt = inputs["input_ids"][0].tolist()
    given = iter(sounds)
    sent = [part if part["type"] == "text" else input_audio(next(given)) for part in content]
    question: Any = [{"role": "user", "content": sent}]
    with serving(tmp_path) as client:
        found: Any = client.chat.completions.create(
            model="sees",
            messages=question,
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
    assert found.prompt_token_ids == prompt
    assert found.choices[0].token_ids == whole[len(prompt) :]


def input_audio(samples: Any) -> dict[str, Any]:
    pcm = (samples * 32768).astype("<i2").tobytes()
    data = base64.b64encode(encode_whole(pcm, "wav", 16_000)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
