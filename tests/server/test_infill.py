"""Filling in the middle of a text: by the tokens that models for code have, and not by others."""

from typing import Any

import pytest
from tokenizers import AddedToken

from stentor.server.text.pool import TokenizerPool
from stentor.server.text.tokenizers.infill import infill_of
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state
from stentor.tests.server.harness import COMPLETIONS, in_memory

pytestmark = pytest.mark.anyio


def with_tokens(*names: str, **special: str) -> Tokenizer:
    """Of bytes and these."""
    tokenizer = byte_tokenizer()
    tokenizer.backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer(tokenizer.backend, {**tokenizer.special_tokens, **special}, tokenizer.chat_template)


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ],
)
def test_the_tokens_of_a_family_are_known_by_name(names: tuple[str, str, str]) -> None:
    tokenizer = with_tokens(*names, "<|file_sep|>")
    infill = infill_of(tokenizer)
    assert infill is not None
    assert infill.prompt("a", "b") == f"{names[0]}a{names[1]}b{names[2]}"
    assert set(infill.ends) == {258, 259, 260, 261}
    assert tokenizer.encode(infill.prompt("a", "b")) == [258, 97, 259, 98, 260]


def test_those_that_a_file_names_win_and_a_model_that_lacks_one_has_none() -> None:
    named = {"prefix_token": "<a>", "suffix_token": "<b>", "middle_token": "<c>"}
    infill = infill_of(with_tokens("<a>", "<b>", "<c>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", **named))
    assert infill is not None
    assert (infill.prefix, infill.suffix, infill.middle) == ("<a>", "<b>", "<c>")
    assert infill_of(with_tokens("<fim_prefix>", "<fim_suffix>")) is None
    assert infill_of(byte_tokenizer()) is None


def coder() -> tuple[TokenizerPool, list[int]]:
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
    return TokenizerPool(with_tokens(*names)), [258, 259, 260, 261]


async def test_what_stands_between_a_prompt_and_a_suffix_is_asked_for_by_the_model_s_tokens() -> None:
    pool, ids = coder()
    answer = [*b"return 1", ids[3]]
    engine = FakeEngine(answer=lambda _prompt, _index: answer)
    async with in_memory(fake_state(engine, pool=pool, vocab_size=300)) as client:
        body = {"prompt": ["def f():\n    ", "x"], "suffix": "\n\nf()", "max_tokens": 20}
        found = (await client.post(COMPLETIONS, json=body)).json()
    assert [choice["text"] for choice in found["choices"]] == ["return 1"] * 2
    assert [choice["finish_reason"] for choice in found["choices"]] == ["stop"] * 2
    before, behind, middle, _ = ids
    assert engine.streams[0].prompt == [before, *b"def f():\n    ", behind, *b"\n\nf()", middle]
    assert engine.streams[1].prompt == [before, *b"x", behind, *b"\n\nf()", middle]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"prompt": [1, 2]}, "needs prompts that are texts"),
        ({"prompt": "x", "echo": True}, "excludes `echo`"),
        ({"prompt": ["x"] * 8, "suffix": "x" * 3_000_000}, "characters"),
    ],
)
async def test_a_suffix_that_cannot_be_heeded_is_refused(body: dict[str, Any], why: str) -> None:
    async with in_memory(fake_state(pool=coder()[0])) as client:
        refused = await client.post(COMPLETIONS, json={"suffix": "y", **body})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "suffix"
    assert why in refused.json()["error"]["message"]


async def test_a_model_without_tokens_for_it_refuses_a_suffix_in_a_line() -> None:
    async with in_memory(fake_state()) as client:
        refused = (await client.post(COMPLETIONS, json={"prompt": "x", "suffix": "y"})).json()["error"]
        assert (refused["param"], refused["code"]) == ("suffix", "unsupported")
        assert (await client.post(COMPLETIONS, json={"prompt": "x", "suffix": ""})).status_code == 200
