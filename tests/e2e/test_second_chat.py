"""A real server of a text model and, for transcription, a chat model with audio input, against transformers."""

import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load
from websockets.sync.client import connect

from stentor.loadtest.server_process import ServerProcess
from stentor.server.asr.asking import ASKING
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.e2e.made_up import EXACT, describe
from stentor.tests.e2e.processes import eventually, worker_of
from stentor.tests.server.asr.test_http import wav
from stentor.tests.server.audio.voices import tone
from stentor.tests.support.whole_audio_models import FAMILIES, whole

pytest.importorskip("mistral_common")
pytestmark = pytest.mark.proof(each="served")  # over a fake engine: server/asr

SECONDS = 2
_PLACEHOLDERS = ("[AUDIO]", "<|AUDIO|>", "<|object_ref_start|>", "<|audio_pad|>")


class Served(NamedTuple):
    server: ServerProcess
    client: openai.OpenAI
    folder: Path
    model: Any
    """transformers' own."""


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    model = whole(request.param, folder)
    chat = describe(tmp_path_factory.mktemp("chat"))
    ears = ["--transcription-model", str(folder), "--transcription-model-name", "ears"]
    with ServerProcess([*chat, *EXACT, *ears, "--transcription-max-model-len", "2048"]) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            yield Served(server, client, folder, model)


def file() -> tuple[str, io.BytesIO]:
    return "clip.wav", io.BytesIO(wav(tone(SECONDS)))


def written_by_transformers(served: Served, count: int, *, translated: bool = False) -> str:
    """Greedily, of the prompt that the family is asked with."""
    processor, tokenizer = ModelProcessor(served.folder), load_tokenizer(served.folder)
    samples = np.frombuffer(tone(SECONDS), "<i2").astype(np.float32) / 32768
    heard = processor.audio(samples)
    asking = ASKING[type(served.model).__name__]
    if asking.text:
        placeholder = next(each for each in _PLACEHOLDERS if each in asking.text)
        prompt = asking.naming(asking.text, None).replace(placeholder, heard.replacement)
    else:
        marked = tokenizer.backend.token_to_id("<|audio_start|>") is not None
        sound = f"<|audio_start|>{heard.replacement}<|audio_end|>" if marked else heard.replacement
        words = asking.says_to_translate if translated else asking.says
        prompt = f"<|im_start|>user\n{sound}{words}<|im_end|>\n<|im_start|>assistant\n"
    tokens = torch.tensor([tokenizer.encode(prompt, False)])
    with torch.no_grad():
        found = served.model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            **load(bytes(heard.payload)),
            max_new_tokens=count,
            do_sample=False,
        )[0].tolist()
    return tokenizer.decode(found[tokens.shape[1] :])


def test_the_sdk_gets_what_transformers_writes_whole_and_in_pieces(served: Served) -> None:
    wanted = written_by_transformers(served, 12).strip()
    limits = {"max_completion_tokens": 12}
    found = served.client.audio.transcriptions.create(model="ears", file=file(), extra_body=limits)
    assert found.text == wanted
    with served.client.audio.transcriptions.create(model="ears", file=file(), stream=True, extra_body=limits) as events:
        pieces = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(pieces) == wanted


def test_the_text_model_chats_beside_it_and_each_has_metrics_of_its_own(served: Served) -> None:
    said = served.client.completions.create(model="made-up", prompt=[5, 6], max_tokens=3)
    assert said.usage is not None
    assert said.usage.completion_tokens == 3
    for model, name in (("made-up", "generation_tokens_total"), ("ears", "mm_cache_queries_total")):
        page = httpx.get(f"http://127.0.0.1:{served.server.port}/metrics").text
        (line,) = (line for line in page.splitlines() if line.startswith(f'stentor:{name}{{model_name="{model}"}}'))
        assert float(line.split()[-1]) > 0
    with pytest.raises(openai.BadRequestError, match="`ears` is a transcription model") as refused:
        served.client.chat.completions.create(model="ears", messages=[{"role": "user", "content": "hello"}])
    assert refused.value.param == "model"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # a part of the SDK says so of itself
def test_translations_are_refused_by_those_that_do_not_translate(served: Served) -> None:
    if ASKING[type(served.model).__name__].says_to_translate:
        limits = {"max_completion_tokens": 12}
        found = served.client.audio.translations.create(model="ears", file=file(), extra_body=limits).text
        assert found == written_by_transformers(served, 12, translated=True).strip()
        return
    with pytest.raises(openai.BadRequestError, match="translates nothing") as refused:
        served.client.audio.translations.create(model="ears", file=file())
    assert refused.value.param == "model"


def test_a_realtime_session_is_written_down_by_it(served: Served) -> None:
    update = {"type": "transcription", "audio": {"input": {"turn_detection": None, "transcription": {"model": "ears"}}}}
    kind, deltas = "conversation.item.input_audio_transcription", []
    with connect(f"ws://127.0.0.1:{served.server.port}/v1/realtime?intent=transcription") as socket:
        audio = base64.b64encode(tone(3)).decode()  # at 24 kHz it lasts two seconds
        for event in (
            {"type": "session.update", "session": update},
            {"type": "input_audio_buffer.append", "audio": audio},
            {"type": "input_audio_buffer.commit"},
        ):
            socket.send(json.dumps(event))
        while (event := json.loads(socket.recv(60)))["type"] != f"{kind}.completed":
            assert event["type"] != "error", event
            if event["type"] == f"{kind}.delta":
                deltas.append(event["delta"])
    assert "".join(deltas) == event["transcript"] != ""


def test_a_transcript_goes_on_after_its_worker_was_killed(served: Served) -> None:
    undisturbed = served.client.audio.transcriptions.create(model="ears", file=file()).text
    server = served.server.pid
    killed = False
    pieces: list[str] = []
    with served.client.audio.transcriptions.create(model="ears", file=file(), stream=True) as events:
        for event in events:
            if event.type == "transcript.text.delta":
                pieces.append(event.delta)
                if not killed:
                    os.kill(worker_of(server, 1), signal.SIGKILL)
                    killed = True
    assert "".join(pieces) == undisturbed
    lost = "the worker process was lost: killed by SIGKILL"
    eventually(lambda: lost in served.server.output(), 60, "the server says that the worker was killed")
    health = f"http://127.0.0.1:{served.server.port}/health"
    eventually(lambda: httpx.get(health).status_code == 200, 60, "all models run again")
