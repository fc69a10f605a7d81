"""Models of all kinds on one port, in real processes: what befalls one does not touch the others."""

import io
import os
import re
import signal
import threading

import httpx
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.voice.transcription import Normalizer, word_errors
from stentor.tests.e2e.processes import engine_of, eventually, worker_of

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
TEXT = "The quick brown fox jumps over the lazy dog. It was a bright cold day in April."


@pytest.fixture(scope="module")
def clip(client: openai.OpenAI) -> bytes:
    """The text, spoken by the server itself."""
    return client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="wav").content


def transcribe(client: openai.OpenAI, clip: bytes) -> str:
    return client.audio.transcriptions.create(
        model="whisper-1", file=("clip.wav", io.BytesIO(clip)), temperature=0
    ).text


class Stream(threading.Thread):
    """A long greedy answer."""

    def __init__(self, client: openai.OpenAI, tokens: int = 60) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._tokens = tokens
        self.texts: list[str] = []
        self.reason: str | None = None

    def run(self) -> None:
        stream = self._client.completions.create(
            model="demo",
            prompt="Once upon a time",
            max_tokens=self._tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            self.texts.append(chunk.choices[0].text)
            self.reason = chunk.choices[0].finish_reason or self.reason

    def whole(self) -> str:
        self.join(60)
        assert self.reason == "length"
        return "".join(self.texts)


def begun(client: openai.OpenAI) -> Stream:
    stream = Stream(client)
    stream.start()
    eventually(lambda: len(stream.texts) > 5, 60, "tokens come")
    return stream


def metrics(server: ServerProcess) -> str:
    return httpx.get(f"http://127.0.0.1:{server.port}/metrics").text


def figure(server: ServerProcess, name: str, model: str) -> float:
    found = re.search(rf'^{name}{{model_name="{model}"}} (\S+)$', metrics(server), flags=re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.fixture(scope="module")
def expected(client: openai.OpenAI, clip: bytes) -> tuple[str, str]:
    """The answer and the transcript of the clip while no process is killed."""
    return begun(client).whole(), transcribe(client, clip)


def test_all_are_listed_and_a_wrong_kind_is_refused_by_what_would_do(client: openai.OpenAI, clip: bytes) -> None:
    assert [model.id for model in client.models.list()] == [
        *("demo", "whisper-1", "ears", "text-embedding-3-small", "tts-1"),
    ]
    with pytest.raises(openai.BadRequestError, match="`ears` is a transcription model; this needs a chat model: use"):
        client.completions.create(model="ears", prompt="a")
    with pytest.raises(openai.BadRequestError, match="`demo` is a chat model; this needs a transcription model: use"):
        client.audio.transcriptions.create(model="demo", file=("clip.wav", clip))
    with pytest.raises(openai.BadRequestError, match="needs a speech model: use `tts-1`"):
        client.audio.speech.create(model="whisper-1", voice="alloy", input="a")
    with pytest.raises(openai.NotFoundError):
        client.audio.transcriptions.create(model="nose", file=("clip.wav", clip))


def test_what_one_model_says_another_hears_while_a_third_writes(
    client: openai.OpenAI, clip: bytes, expected: tuple[str, str]
) -> None:
    stream = begun(client)
    heard = transcribe(client, clip)
    normalizer = Normalizer()
    # each time it is spoken a little differently
    assert word_errors(normalizer.words(TEXT), normalizer.words(heard)).rate <= 0.2
    assert (stream.whole(), heard) == expected


@pytest.mark.proof(each="victim")
@pytest.mark.parametrize("victim", ["transcription", "chat"])
def test_a_worker_that_is_killed_is_replaced_and_the_other_model_notices_nothing(
    server: ServerProcess, client: openai.OpenAI, clip: bytes, expected: tuple[str, str], victim: str
) -> None:
    restarts = {name: figure(server, "stentor:worker_restarts_total", name) for name in ("demo", "whisper-1")}
    stream = begun(client)
    texts: list[str] = []
    hearing = threading.Thread(target=lambda: texts.append(transcribe(client, clip)))
    hearing.start()
    os.kill(worker_of(server.pid, int(victim == "transcription")), signal.SIGKILL)
    hearing.join(60)
    assert [(stream.whole(), text) for text in texts] == [expected]
    after = {name: figure(server, "stentor:worker_restarts_total", name) for name in ("demo", "whisper-1")}
    lost = "demo" if victim == "chat" else "whisper-1"
    assert {name: after[name] - restarts[name] for name in after} == {"demo": 0.0, "whisper-1": 0.0} | {lost: 1.0}
    eventually(lambda: _health(server) == 200, 60, "all models can run again")


@pytest.mark.proof  # without a transcription model: tests/server/test_engines.py
def test_an_engine_that_is_killed_is_replaced_and_the_other_model_notices_nothing(
    server: ServerProcess, client: openai.OpenAI, clip: bytes, expected: tuple[str, str]
) -> None:
    names = ("demo", "whisper-1")
    before = [figure(server, "stentor:engine_restarts_total", name) for name in names]
    stream = begun(client)
    os.kill(engine_of(server.pid, 1), signal.SIGKILL)
    heard = transcribe(client, clip)
    assert (stream.whole(), heard) == expected
    after = [figure(server, "stentor:engine_restarts_total", name) for name in names]
    assert [late - early for early, late in zip(before, after, strict=True)] == [0.0, 1.0]
    eventually(lambda: _health(server) == 200, 60, "all models can run again")


def _health(server: ServerProcess) -> int:
    return httpx.get(f"http://127.0.0.1:{server.port}/health").status_code


def test_start_up_shows_the_way_of_each_model_and_where_its_memory_went(server: ServerProcess) -> None:
    output = server.output()
    for line in ("chat: warming up: done", "transcription: warming up: done"):
        assert line in output
    for what in (
        "memory of demo: weights",
        "memory of whisper-1: weights",
        "memory of whisper-1: encoded audio",
        "memory of tts-1: ",
    ):
        assert what in output
