"""Models that write about a picture through the real server: chats of OpenAI's SDK, beside transformers."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import torch

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.processes import below
from stentor.tests.parity.pictured import DONUT, TROCR, captions, florence, logits_of, parse, patches
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.media.test_server import image
from stentor.tests.support.pictured_files import END, SHAPED, SPECIAL, START, TASK, images_of, write_files

pytestmark = pytest.mark.proof(each="made")


class Made(NamedTuple):
    kind: str
    model: Any
    folder: Path
    processor: str

    def greedy(self, size: tuple[int, int], text: str, first: list[int], count: int) -> list[int]:
        """The first tokens that transformers finds likeliest."""
        pixels = images_of(self.processor)(picture(*size), return_tensors="pt")["pixel_values"]
        tokens = [*first]
        read = [START, *text.encode(), END] if self.kind == "florence" else []
        for _ in range(count):
            logits = logits_of(self.model, self.kind, torch.as_tensor(pixels), read, tokens)[-1].clone()
            logits[END] = -torch.inf  # min_tokens
            tokens.append(int(logits.argmax()))
        return tokens[len(first) :]


_MAKERS: dict[str, tuple[Any, str]] = {
    "captions": (partial(captions, sep_token_id=END), "BlipProcessor"),
    "donut": (DONUT, "DonutProcessor"),
    "florence": (florence, "Florence2Processor"),
    "parse": (parse, "NemotronParseProcessor"),
    "patches": (patches, SHAPED),
    "trocr": (TROCR, "TrOCRProcessor"),
}


@pytest.fixture(scope="module", params=_MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    make, processor = _MAKERS[request.param]
    model = make(**SPECIAL)
    folder = tmp_path_factory.mktemp(request.param)
    model.config.decoder_start_token_id, model.config.eos_token_id = START, END
    model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id = START, END
    model.save_pretrained(folder)
    write_files(folder, processor)
    return Made(request.param, model, folder, processor)


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[ServerProcess]:
    arguments = ["--served-model-name", "tiny", "--dtype", "float32", "--kv-cache-memory", "64MiB"]
    with ServerProcess([str(made.folder), *arguments]) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, size: tuple[int, int], text: str, count: int, **fields: Any) -> Any:
    content = [image(png(*size)), *([{"type": "text", "text": text}] if text else [])]
    body = {"min_tokens": count, "return_token_ids": True}
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=count, temperature=0, extra_body=body, **fields
    )


def test_chats_about_pictures_are_answered_as_by_transformers(made: Made, client: openai.OpenAI) -> None:
    asked = {
        "captions": [("a pic", "", [START, *b"a pic"]), ("", "", [START])],
        "donut": [("<s_cord-v2>", "", [TASK]), ("<s_cord-v2>a", "", [TASK, *b"a"]), ("", "", [START])],
        "florence": [("<OCR>", "What is the text in the image?", [START]), ("what?", "what?", [START])],
        "parse": [("</s><s><s_cord-v2>", "", [END, START, TASK]), ("", "", [START])],
        "patches": [("a pic", "", [START, *b"a pic"]), ("", "", [START])],
        "trocr": [("", "", [START])],
    }[made.kind]
    for size in ((40, 30), (64, 64)):
        for text, read, first in asked:
            answer = ask(client, size, text, 10)
            assert answer.choices[0].model_extra["token_ids"] == made.greedy(size, read, first, 10)
            assert answer.choices[0].finish_reason == "length"


def test_streams_go_on_after_their_worker_was_killed(made: Made, server: ServerProcess, client: openai.OpenAI) -> None:
    texts = {"donut": "<s_cord-v2>", "florence": "<CAPTION>", "parse": "</s><s>", "trocr": ""}
    text = texts.get(made.kind, "a pic")
    expected = ask(client, (40, 30), text, 40).choices[0].model_extra["token_ids"]
    found: list[int] = []
    for number, part in enumerate(ask(client, (40, 30), text, 40, stream=True)):
        if number == 0:
            os.kill(below(server.pid, "worker")[0], signal.SIGKILL)
        found += (part.choices[0].model_extra or {}).get("token_ids") or [] if part.choices else []
    assert found == expected
