"""Encoder-decoders of text through the real server: the prompt goes to the encoder."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

import stentor
from stentor.loadtest.server_process import ServerProcess
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.tests.e2e.processes import below
from stentor.tests.parity.translators import tiny_bart, tiny_t5

START, END, GERMAN = 256, 257, 258
TEXT = "translate: hello world"
ALWAYS: dict[str, Any] = {"temperature": 0.0, "extra_body": {"min_tokens": 12, "return_token_ids": True}}

pytestmark = pytest.mark.proof(each="made")


def write(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    backend = Tokenizer(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>", "<de>")])
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    backend.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=["t5", "bart"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    special: dict[str, Any] = {
        "vocab_size": 259,
        "decoder_start_token_id": START,
        "eos_token_id": END,
        "pad_token_id": START,
    }
    model = (tiny_t5 if request.param == "t5" else tiny_bart)(**special)
    folder = tmp_path_factory.mktemp(request.param)
    write(model, folder)
    return model, folder


@pytest.fixture(scope="module")
def server(made: tuple[Any, Path]) -> Iterator[ServerProcess]:
    arguments = ["--served-model-name", "tiny", "--dtype", "float32", "--kv-cache-memory", "16MiB"]
    with ServerProcess([str(made[1]), *arguments]) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)


def generated(model: Any, text: str, decoder: list[int]) -> list[int]:
    """The first twelve tokens that transformers finds likeliest."""
    inputs = torch.tensor([[*text.encode(), END]])
    with torch.inference_mode():
        found = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            decoder_input_ids=torch.tensor([[START, *decoder]]),
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # its cache has as many layers as the encoder
            forced_eos_token_id=None,
        )
    tokens: list[int] = found[0, 1 + len(decoder) :].tolist()
    return tokens


def ids_of(choice: Any) -> list[int]:
    found: list[int] = choice.model_extra.get("token_ids", [])  # the first part of a stream has the prompt's alone
    return found


def test_completions_are_those_of_transformers(made: tuple[Any, Path], client: openai.OpenAI) -> None:
    texts = [TEXT, "x", "a longer text, which shares nothing with others"]
    whole = client.completions.create(model="tiny", prompt=texts, max_tokens=12, **ALWAYS)
    assert [ids_of(choice) for choice in whole.choices] == [generated(made[0], text, []) for text in texts]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(len(text) + 1 for text in texts)
    given = client.completions.create(model="tiny", prompt=[*TEXT.encode(), END], max_tokens=12, **ALWAYS)
    assert given.choices[0].text == whole.choices[0].text
    for decoder in ("<de>", [GERMAN]):
        body = {**ALWAYS["extra_body"], "decoder_prompt": decoder}
        aimed = client.completions.create(model="tiny", prompt=TEXT, max_tokens=12, temperature=0, extra_body=body)
        assert ids_of(aimed.choices[0]) == generated(made[0], TEXT, [GERMAN])


def test_streams_choices_and_scores_are_as_of_any_model(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 12, "n": 2, "seed": 5, "logprobs": 2}
    whole = client.completions.create(**asked, extra_body={"min_tokens": 12})
    parts = list(client.completions.create(**asked, extra_body={"min_tokens": 12}, stream=True))
    for choice in whole.choices:
        mine = [each for part in parts for each in part.choices if each.index == choice.index]
        assert "".join(each.text for each in mine) == choice.text
        assert choice.logprobs is not None
        assert len(choice.logprobs.token_logprobs or []) == 12
    greedy = client.completions.create(model="tiny", prompt=TEXT, max_tokens=12, **ALWAYS)
    stop = ids_of(greedy.choices[0])[3]
    body = {**ALWAYS["extra_body"], "stop_token_ids": [stop], "min_tokens": 0}
    stopped = client.completions.create(model="tiny", prompt=TEXT, max_tokens=12, temperature=0, extra_body=body)
    assert stopped.choices[0].finish_reason == "stop"
    assert ids_of(stopped.choices[0]) == ids_of(greedy.choices[0])[: len(ids_of(stopped.choices[0]))]
    beams = client.completions.create(
        model="tiny", prompt=TEXT, max_tokens=4, extra_body={"use_beam_search": True, "n": 2, "ignore_eos": True}
    )
    assert len(beams.choices) == 2


def test_requests_go_on_after_their_worker_was_killed(server: ServerProcess, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 60, "temperature": 0}
    asked["extra_body"] = {"ignore_eos": True, "return_token_ids": True}
    expected = ids_of(client.completions.create(**asked).choices[0])
    found: list[int] = []
    for number, part in enumerate(client.completions.create(**asked, stream=True)):
        if number == 0:
            os.kill(below(server.pid, "worker")[0], signal.SIGKILL)
        found += ids_of(part.choices[0]) if part.choices else []
    assert found == expected


def test_what_it_cannot_do_is_refused(server: ServerProcess, client: openai.OpenAI) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "a" * 64}, "has 65 tokens; the model's context is 64 tokens, for a prompt"),
        ({"prompt": "a", "max_tokens": 64}, "the decoder's prompt has 1 tokens; the model's context is 64 tokens"),
        ({"prompt": "a", "prompt_logprobs": 1}, "the model's encoder reads the prompt"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "the model's encoder reads the prompt"),
        ({"prompt": "a", "decoder_prompt": [259]}, "token id 259 is outside the vocabulary"),
        ({"prompt": "a", "decoder_prompt": "b" * 63}, "it makes 64 tokens with those that begin every output"),
    ]
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    for body, why in refusals:
        response = httpx.post(url, json={"model": "tiny", **body}, timeout=60)
        assert response.status_code == 400, response.text
        assert why in response.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match=r"no default chat template\..* /v1/completions"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "5"}])


def test_a_program_gives_both_prompts_as_with_vllm(made: tuple[Any, Path]) -> None:
    params = stentor.SamplingParams(max_tokens=12, min_tokens=12, temperature=0)
    prompts: list[Any] = [
        TEXT,
        {"encoder_prompt": TEXT, "decoder_prompt": "<de>"},
        {"encoder_prompt": {"prompt": TEXT}, "decoder_prompt": {"prompt_token_ids": [GERMAN]}},
    ]
    with stentor.LLM(str(made[1]), dtype="float32", kv_cache_memory="16MiB") as llm:
        found = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
    aimed = generated(made[0], TEXT, [GERMAN])
    assert found == [generated(made[0], TEXT, []), aimed, aimed]
