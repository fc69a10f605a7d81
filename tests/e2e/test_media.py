"""Pictures through the OpenAI SDK: a real server over a tiny vision model, against transformers."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anthropic
import httpx
import ollama
import openai
import pytest
import torch
from safetensors.torch import load

from stentor.loadtest.server_process import ServerProcess
from stentor.server.media.decoding.decode_video import decode_video
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.e2e.made_up import EXACT
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.media.videos import video
from stentor.tests.support.vision_models import qwen3_vl

NAME: Final = "sees"
SIZES: Final = {"small": (40, 30), "wide": (90, 20), "large": (64, 64)}


class Made(NamedTuple):
    folder: Path
    model: Any
    processor: Any
    """transformers' own."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    model = qwen3_vl(folder)
    return Made(folder, model, ModelProcessor(folder)._processor)


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[ServerProcess]:
    arguments = [str(made.folder), *EXACT, "--served-model-name", NAME, "--kv-cache-memory", "64MiB"]
    with ServerProcess(arguments) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


Turn = tuple[str, Sequence[str]]
"""A role, and texts or names of pictures."""


def conversation(turns: Sequence[Turn], *, sent: bool) -> Any:
    """``sent``: as a client sends it; else as transformers takes it."""

    def part(text: str) -> dict[str, Any]:
        if text not in SIZES:
            return {"type": "text", "text": text}
        if not sent:
            return {"type": "image", "image": picture(*SIZES[text])}
        url = "data:image/png;base64," + base64.b64encode(png(*SIZES[text])).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    return [{"role": role, "content": [part(text) for text in texts]} for role, texts in turns]


def said_by_transformers(made: Made, turns: Sequence[Turn], count: int) -> tuple[list[int], list[int]]:
    """The prompt, and what greedy decoding makes of it."""
    inputs = made.processor.apply_chat_template(
        conversation(turns, sent=False),
        chat_template=(made.folder / "chat_template.jinja").read_text(),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        whole = made.model.generate(**inputs, max_new_tokens=count, do_sample=False)[0].tolist()
    prompt = inputs["input_ids"][0].tolist()
    return prompt, whole[len(prompt) :]


@pytest.mark.proof(each="turns")  # without the server: tests/parity/test_media_models.py
@pytest.mark.parametrize(
    "turns",
    [
        [("user", ["hello"])],
        [("user", ["small", "what is it?"])],
        [("user", ["wide", "and", "large", "and", "small", "?"])],
        [("user", ["hi"]), ("assistant", ["yes"]), ("user", ["large", "this"]), ("assistant", ["ok"]), ("user", ["?"])],
    ],
    ids=["no picture", "one", "several of mixed sizes", "in the middle of history"],
)
def test_an_answer_to_pictures_is_that_of_transformers(
    client: openai.OpenAI, made: Made, turns: Sequence[Turn]
) -> None:
    prompt, wanted = said_by_transformers(made, turns, 12)
    for _ in range(2):  # the second time, out of the caches
        found: Any = client.chat.completions.create(
            model=NAME,
            messages=conversation(turns, sent=True),
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
        assert found.prompt_token_ids == prompt
        assert found.choices[0].token_ids == wanted
        assert found.usage.prompt_tokens == len(prompt)


def test_langchain_sends_a_picture_and_gets_the_answer_of_the_sdk(
    server: ServerProcess, client: openai.OpenAI, made: Made
) -> None:
    module = pytest.importorskip("langchain_openai", reason="the extra `clients` is not installed")
    turns = [("user", ["wide", "what is it?"])]
    wanted: Any = client.chat.completions.create(
        model=NAME, messages=conversation(turns, sent=True), max_tokens=12, temperature=0
    )
    data = base64.b64encode(png(*SIZES["wide"])).decode()
    forms = (
        {"type": "image", "base64": data, "mime_type": "image/png"},  # its own, whatever the provider
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    )
    with httpx.Client(timeout=60) as http:
        chat = module.ChatOpenAI(
            model=NAME,
            base_url=f"http://127.0.0.1:{server.port}/v1",
            api_key="unused",
            max_retries=0,
            max_tokens=12,
            temperature=0,
            http_client=http,
        )
        for form in forms:
            question = [{"role": "user", "content": [form, {"type": "text", "text": "what is it?"}]}]
            found = chat.invoke(question)
            assert found.content == wanted.choices[0].message.content
            assert found.usage_metadata["input_tokens"] == wanted.usage.prompt_tokens
            assert "".join(piece.content for piece in chat.stream(question)) == found.content


def test_anthropic_s_sdk_and_responses_show_a_picture_to_the_same_effect(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    turns: Sequence[Turn] = [("user", ["wide", "what is it?"])]
    wanted: Any = client.chat.completions.create(
        model=NAME, messages=conversation(turns, sent=True), max_tokens=12, temperature=0
    )
    data = base64.b64encode(png(*SIZES["wide"])).decode()
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="unused", max_retries=0) as theirs:
        block: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        content: Any = [block, {"type": "text", "text": "what is it?"}]
        question: Any = [{"role": "user", "content": content}]
        cold = {"temperature": 0}
        found: Any = theirs.messages.create(model=NAME, messages=question, max_tokens=12, extra_body=cold)
        counted = theirs.messages.count_tokens(model=NAME, messages=question)
    parts: Any = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"},
        {"type": "input_text", "text": "what is it?"},
    ]
    response = client.responses.create(
        model=NAME, input=[{"role": "user", "content": parts}], max_output_tokens=12, temperature=0
    )
    said, tokens = wanted.choices[0].message.content, wanted.usage.prompt_tokens
    assert "".join(block.text for block in found.content) == response.output_text == said
    used = found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    assert response.usage is not None
    assert used == counted.input_tokens == response.usage.input_tokens == tokens


def test_an_answer_to_a_video_is_that_of_transformers_given_its_frames(client: openai.OpenAI, made: Made) -> None:
    file = video(6, (64, 32), fps=2)
    ours = ModelProcessor(made.folder)
    decoded = decode_video(file, DecodedLimits(), ours.choose_frames({}))
    inputs = ours.video(decoded)
    marks = "<|vision_start|>", "<|vision_end|>"
    told = f"<|im_start|>user\n{marks[0]}{inputs.replacement}{marks[1]}what?<|im_end|>\n<|im_start|>assistant\n"
    ids = made.processor.tokenizer(told, add_special_tokens=False)["input_ids"]
    kinds = made.processor.create_mm_token_type_ids([ids])
    with torch.no_grad():
        whole = made.model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            mm_token_type_ids=torch.tensor(kinds),
            max_new_tokens=12,
            do_sample=False,
            **load(inputs.payload),
        )[0].tolist()
    url = "data:video/mp4;base64," + base64.b64encode(file).decode()
    content: Any = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "what?"}]
    found: Any = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": content}],
        max_tokens=12,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    assert found.prompt_token_ids == ids
    assert found.choices[0].token_ids == whole[len(ids) :]
    assert found.usage.prompt_tokens_details.video_tokens == ids.count(made.model.config.video_token_id)


def test_the_same_picture_is_found_again_and_another_is_not_taken_for_it(client: openai.OpenAI) -> None:
    def ask(seed: int) -> Any:
        url = "data:image/png;base64," + base64.b64encode(png(50, 50, seed)).decode()
        content: Any = [{"type": "text", "text": "look at this: "}, {"type": "image_url", "image_url": {"url": url}}]
        return client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": content}], max_tokens=1, temperature=0
        )

    first, again, other = ask(1), ask(1), ask(2)
    assert first.usage.prompt_tokens_details.image_tokens == 36
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1
    assert 16 <= other.usage.prompt_tokens_details.cached_tokens < 32, "what stands in front of the picture"
    assert again.choices[0].message == first.choices[0].message


def test_a_picture_that_cannot_be_read_is_refused_by_its_field(client: openai.OpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no picture").decode()
    content: Any = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": content}], max_tokens=1)
    assert error.value.param == "messages[0].content[0].image_url.url"


def test_ollama_s_client_shows_a_picture_to_the_same_effect(client: openai.OpenAI, server: ServerProcess) -> None:
    turns: Sequence[Turn] = [("user", ["small", "what is it?"])]
    messages = conversation(turns, sent=True)
    wanted = client.chat.completions.create(model=NAME, messages=messages, max_tokens=6, temperature=0)
    with ollama.Client(f"http://127.0.0.1:{server.port}") as theirs:
        message = {"role": "user", "content": "what is it?", "images": [png(*SIZES["small"])]}
        found = theirs.chat(NAME, [message], options={"num_predict": 6, "temperature": 0})
    assert wanted.usage is not None
    assert (found.message.content, found.prompt_eval_count) == (
        wanted.choices[0].message.content,
        wanted.usage.prompt_tokens,
    )
