"""Pictures through the OpenAI SDK: a real server over a text model in a GGUF file and its projector file, against
transformers."""

from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.server.media.model_processor import ModelProcessor
from stentor.tests.e2e.made_up import EXACT
from stentor.tests.e2e.test_media import Made, Turn, conversation, said_by_transformers
from stentor.tests.support.mmproj_files import write_pair
from stentor.tests.support.vision_models import FAMILIES


@pytest.fixture(scope="module", params=["idefics3", "qwen3_vl"])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    model = FAMILIES[request.param](folder)
    write_pair(folder, model, request.param)
    return Made(folder, model, ModelProcessor(folder)._processor)


@pytest.fixture(scope="module")
def client(made: Made) -> Iterator[openai.OpenAI]:
    named = ["--served-model-name", "sees", "--kv-cache-memory", "64MiB"]
    apart = made.folder / "elsewhere" / "projector.gguf"  # named by the option
    apart.parent.mkdir()
    (made.folder / "gguf" / "mmproj-m.gguf").rename(apart)
    arguments = [str(made.folder / "gguf" / "m.gguf"), "--mmproj", str(apart), *EXACT, *named]
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
