"""Words of a chat model's transcript with the times of a forced aligner, beside transformers' own."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers as untyped_transformers
from openai.types import audio as sdk
from transformers.models.qwen3_asr.processing_qwen3_asr import Qwen3ASRProcessor, _fix_timestamps

from stentor.server.asr.alignment import in_order, spoken_words
from stentor.tests.server.asr.test_chat_http import QWEN3_ASR, Model
from stentor.tests.server.asr.test_http import post, wav
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.harness import on_loopback
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support import audio_models
from stentor.tests.support.vision_models import randomised
from stentor.tests.support.whole_audio_models import qwen3_asr_config

transformers: Any = untyped_transformers
pytestmark = pytest.mark.anyio

MARK = "<timestamp>"
TEXT = "Guten Tag, Welt. Es ist 3.5 Uhr!"
WORDS = ["Guten", "Tag", "Welt", "Es", "ist", "35", "Uhr"]
TEMPLATE = (
    "{% for part in messages[0]['content'] %}{% if part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% else %}{{ part['text'] }}<timestamp><timestamp>{% endif %}{% endfor %}"
)


class Aligned(Served):
    """A tiny aligner, and its like in transformers."""

    def __init__(self, folder: Path) -> None:
        audio_models.qwen3_asr(folder, MARK)
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        config = qwen3_asr_config(folder)
        config.num_labels = 20
        config.timestamp_token_id = self.processor.tokenizer.convert_tokens_to_ids(MARK)
        config.timestamp_segment_time = 80
        self.theirs = randomised("a", lambda: transformers.Qwen3ASRForTokenClassification(config))
        with torch.no_grad():
            self.theirs.score.weight.normal_(0, 1)  # it tells the words of these tests apart
        self.theirs.save_pretrained(folder)
        super().__init__(folder)

    @torch.inference_mode()
    def times(self, pcm: bytes, text: str, language: str) -> Any:
        sound = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        inputs, words = self.processor.prepare_forced_aligner_inputs(sound, text, language, chat_template=TEMPLATE)
        mark, step = self.theirs.config.timestamp_token_id, self.theirs.config.timestamp_segment_time
        (found,) = self.processor.decode_forced_alignment(
            self.theirs(**inputs).logits, inputs["input_ids"], words, mark, step
        )
        return found


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Aligned]:
    made = Aligned(tmp_path_factory.mktemp("aligner"))
    yield made
    made.close()


@pytest.fixture(scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Model]:
    model = Model(tmp_path_factory.mktemp("qwen3_asr"), QWEN3_ASR)
    yield model
    model.close()


@pytest.fixture
def model(opened: Model, served: Aligned) -> Model:
    opened.begin(embedding=served.model)
    opened.says = lambda _count: f"language German<asr_text>{TEXT}"
    return opened


async def test_the_words_of_a_transcript_have_the_times_of_transformers(model: Model, served: Aligned) -> None:
    async with (
        on_loopback(model.state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        found = await client.audio.transcriptions.create(
            model="fake",
            file=("a.wav", wav(tone(2)), "audio/wav"),
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert isinstance(found, sdk.TranscriptionVerbose)
    expected = served.times(tone(2), TEXT, "German")
    told = [(each.word, each.start, each.end) for each in found.words or ()]
    assert told == [(each["text"], each["start_time"], each["end_time"]) for each in expected]
    assert [word for word, _, _ in told] == WORDS
    assert len({start for _, start, _ in told}) > 1, "the tiny model tells words apart"
    assert (found.text, found.language, found.duration) == (TEXT, "german", 2.0)
    assert found.segments is not None
    first, second = found.segments
    assert (first.id, first.text, second.id, second.text) == (0, " Guten Tag, Welt.", 1, " Es ist 3.5 Uhr!")
    assert (first.start, first.end) == (told[0][1], told[2][2])
    assert bytes(model.tokenizer.encode(TEXT, False)) == bytes([*first.tokens, *second.tokens])
    assert first.avg_logprob < 0
    assert model.state.admission.memory.bytes == 0


async def test_subtitles_are_the_sentences(model: Model) -> None:
    answer = await post(model.state, [("response_format", "srt")], tone(2))
    assert answer.text.split("\n")[2::4] == ["Guten Tag, Welt.", "Es ist 3.5 Uhr!"]
    assert answer.text.count(" --> ") == 2


@pytest.mark.parametrize("text", ["♪♪", "...", " ♪"])
async def test_a_text_without_words_is_a_segment_all_the_same(model: Model, text: str) -> None:
    model.says = lambda _count: f"language German<asr_text>{text}"
    answer = await post(model.state, [("response_format", "verbose_json")], tone(2))
    (segment,) = answer.json()["segments"]
    assert answer.json()["text"] == text.strip()
    assert (segment["start"], segment["end"], segment["text"]) == (0.0, 2.0, f" {text.strip()}")
    assert bytes(segment["tokens"]) == text.encode()


async def test_a_stream_and_plain_text_ask_no_times(model: Model, served: Aligned) -> None:
    before = len(served.pooler.prompts)
    assert (await post(model.state, [("response_format", "text")], tone(1))).text == f"{TEXT}\n"
    assert (await post(model.state, [("stream", "true")], tone(1))).status_code == 200
    assert len(served.pooler.prompts) == before


@pytest.mark.parametrize(("named", "param"), [("ja", "language"), (None, "response_format")])
async def test_a_language_whose_words_are_not_timed_is_refused(model: Model, named: str | None, param: str) -> None:
    model.says = lambda _count: "language Japanese<asr_text>今日は" if named is None else "今日は"
    fields = [("response_format", "verbose_json"), *([("language", named)] if named else [])]
    answer = await post(model.state, fields, tone(1))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert "times no words of japanese, but of de, en" in answer.text


async def test_pooling_scores_the_marked_tokens_alone(served: Aligned) -> None:
    sound = "data:audio/wav;base64," + base64.b64encode(wav(tone(1))).decode()
    text = f"<|audio_start|>Hi{MARK}{MARK}"
    parts = [{"type": "text", "text": text}, {"type": "audio_url", "audio_url": {"url": sound}}]
    body = {"messages": [{"role": "user", "content": parts}], "task": "token_classify"}
    (found,) = (await served.post("/pooling", body))["data"]
    assert (len(found["data"]), len(found["data"][0])) == (2, 20)
    async with served.client() as client:
        bare = {"messages": [{"role": "user", "content": "Hi"}], "task": "token_classify"}
        answer = await client.post("/pooling", content=json.dumps(bare))
    assert answer.status_code == 400
    assert "put it twice behind each word" in answer.text


def test_times_are_put_in_order_as_by_transformers() -> None:
    random = Random(1)
    for _ in range(300):
        times = [80.0 * random.randrange(9) for _ in range(random.randrange(1, 24))]
        assert in_order(times) == _fix_timestamps(np.array(times)), times


WRITTEN = (
    "Hello, world! It's 3.5% of well-known—naïve",
    "你好。世界 abc你def ok",
    " ' b",
    "안녕 하세요.",
    "",
    "テスト",
)


@pytest.mark.parametrize("text", WRITTEN)
def test_words_are_those_of_transformers(text: str) -> None:
    theirs = object.__new__(Qwen3ASRProcessor).split_words_for_alignment(text)
    assert [word.text for word in spoken_words(text)] == theirs
