"""Fun-ASR-Nano's files for vLLM through the real server: chats of OpenAI's SDK with a sound, beside transformers."""

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load

from stentor.loadtest.server_process import ServerProcess
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.parity.published import PUBLISHED
from stentor.tests.server.asr.test_http import wav
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.media.published import WHOLE

pytestmark = pytest.mark.proof


class Served(NamedTuple):
    client: openai.OpenAI
    model: Any
    """The same weights in transformers' modules."""
    processor: ModelProcessor

    def greedy(self, prompt: Sequence[int], sounds: Sequence[float], count: int) -> list[int]:
        """The first tokens that transformers finds likeliest behind a prompt about sounds of so many seconds."""
        heard = (np.frombuffer(tone(seconds), "<i2").astype(np.float32) / 32768 for seconds in sounds)
        media = {"sounds": [load(self.processor.audio(samples).payload) for samples in heard]} if sounds else {}
        tokens = [*prompt]
        for _ in range(count):
            with torch.inference_mode():
                found = self.model(torch.tensor([tokens]), torch.ones(1, len(tokens)), False, **media)
            tokens.append(int(found.logits[0, -1].argmax()))
        return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("funasr")
    WHOLE["funasr"](folder)
    model = PUBLISHED["funasr"].make(tmp_path_factory.mktemp("theirs"))
    arguments = ["--served-model-name", "tiny", "--dtype", "float32", "--kv-cache-memory", "64MiB"]
    with ServerProcess([str(folder), *arguments]) as running:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="unused", max_retries=0)
        yield Served(client, model, ModelProcessor(folder))


@pytest.mark.parametrize("sounds", [(0.5,), (7.3, 2.0), ()])
def test_chats_about_sounds_are_answered_as_by_transformers(served: Served, sounds: tuple[float, ...]) -> None:
    said = [base64.b64encode(wav(tone(seconds))).decode() for seconds in sounds]
    content: list[dict[str, Any]] = [{"type": "text", "text": "ab"}]
    content += [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}} for data in said]
    messages: Any = [{"role": "user", "content": content}]
    body = {"return_token_ids": True, "ignore_eos": True}
    found = served.client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0, extra_body=body
    )
    extra = found.choices[0].model_extra
    assert extra is not None
    assert found.model_extra is not None
    assert extra["token_ids"] == served.greedy(found.model_extra["prompt_token_ids"], sounds, 8)


def test_a_file_is_transcribed_in_its_makers_form(served: Served) -> None:
    file = "a.wav", io.BytesIO(wav(tone(2.0))), "audio/wav"
    found = served.client.audio.transcriptions.create(model="tiny", file=file, language="en")
    assert found.text
