"""What is too much, and how it is said."""

import json
from typing import Any

import pytest

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import MAX_TOKEN_RULES, Limits
from stentor.protocols.common.locating import MAX_TOKENS, crowded_field, deep_field
from stentor.protocols.openai import chat, completions, tokens

HELLO = [{"role": "user", "content": "hello"}]
DECODERS: dict[str, Any] = {
    "chat": chat.decoder,
    "completions": completions.decoder,
    "tokenize": tokens.tokenize_decoder,
}


def nested(levels: int) -> Any:
    """A value of that many levels."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def refusal_of(kind: str, fields: dict[str, Any], limits: Limits) -> BadRequest | None:
    base: dict[str, Any] = {"prompt": "hi"} if kind == "completions" else {"messages": HELLO}
    try:
        decode(DECODERS[kind], json.dumps(base | fields).encode(), limits).check(limits)
    except BadRequest as refusal:
        return refusal
    return None


@pytest.mark.parametrize(
    ("kind", "limits", "most", "more", "param"),
    [
        ("chat", Limits(max_choices=3), {"n": 3}, {"n": 4}, "n"),
        ("completions", Limits(max_choices=3), {"best_of": 3, "n": 3}, {"best_of": 4, "n": 3}, "best_of"),
        ("completions", Limits(max_prompts=2), {"prompt": ["a"] * 2}, {"prompt": ["a"] * 3}, "prompt"),
        ("completions", Limits(max_prompts=1), {"prompt": [1, 2, 3]}, {"prompt": [[1], [2]]}, "prompt"),
        (
            "completions",
            Limits(max_sequences=4),
            {"prompt": ["a"] * 2, "n": 2},
            {"prompt": ["a"] * 2, "n": 3},
            "prompt",
        ),
        ("completions", Limits(max_prompt_chars=5), {"prompt": ["ab", "cde"]}, {"prompt": ["ab", "cdef"]}, "prompt"),
        ("completions", Limits(max_logprobs=2), {"logprobs": 2}, {"logprobs": 3}, "logprobs"),
        ("chat", Limits(max_messages=2), {"messages": HELLO * 2}, {"messages": HELLO * 3}, "messages"),
        ("chat", Limits(max_prompt_chars=10), {"messages": HELLO * 2}, {"messages": HELLO * 3}, "messages"),
        ("tokenize", Limits(max_prompt_chars=10), {"messages": HELLO * 2}, {"messages": HELLO * 3}, "messages"),
        ("chat", Limits(max_logprobs=2), {"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 3}, "top_logprobs"),
        ("chat", Limits(max_logprobs=2), {"prompt_logprobs": 2}, {"prompt_logprobs": 3}, "prompt_logprobs"),
        ("chat", Limits(max_stop_strings=2), {"stop": ["a"] * 2}, {"stop": ["a"] * 3}, "stop"),
        ("chat", Limits(max_stop_length=2), {"stop": "ab"}, {"stop": "abc"}, "stop"),
        ("chat", Limits(max_stop_length=2), {"stop": ["a", "ab"]}, {"stop": ["a", "abc"]}, "stop[1]"),
        ("chat", Limits(max_stop_tokens=2), {"stop_token_ids": [1] * 2}, {"stop_token_ids": [1] * 3}, "stop_token_ids"),
        ("chat", Limits(max_logit_bias=1), {"logit_bias": {"1": 1}}, {"logit_bias": {"1": 1, "2": 1}}, "logit_bias"),
        (
            "chat",
            Limits(max_allowed_tokens=1),
            {"allowed_token_ids": [1]},
            {"allowed_token_ids": [1, 1]},
            "allowed_token_ids",
        ),
        ("chat", Limits(max_template_chars=3), {"chat_template": "abc"}, {"chat_template": "abcd"}, "chat_template"),
        (
            "chat",
            Limits(max_json_depth=5),
            {"chat_template_kwargs": {"a": nested(3)}},
            {"chat_template_kwargs": {"a": nested(4)}},
            "chat_template_kwargs",
        ),
        ("chat", Limits(max_json_values=80), {"stop": ["a"] * 5}, {"stop": ["a"] * 40}, "stop"),
    ],
)
def test_as_much_as_may_be_is_taken_and_more_is_refused_by_name(
    kind: str, limits: Limits, most: dict[str, Any], more: dict[str, Any], param: str
) -> None:
    assert refusal_of(kind, most, limits) is None
    refusal = refusal_of(kind, more, limits)
    assert refusal is not None
    assert refusal.param == param
    assert f"`{param}`" in refusal.message


def test_bad_words_are_held_against_their_limits() -> None:
    limits = Limits(max_bad_words=2, max_bad_word_length=3)
    for words, param, code in (
        (["a"] * 3, "bad_words", "array_above_max_length"),
        (["a", "abcd"], "bad_words[1]", "string_above_max_length"),
    ):
        refusal = refusal_of("chat", {"bad_words": words}, limits)
        assert refusal is not None
        assert (refusal.param, refusal.code) == (param, code)


def test_text_in_parts_counts_as_much_as_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}]}]
    assert refusal_of("chat", {"messages": parts}, Limits(max_prompt_chars=8)) is None
    refusal = refusal_of("chat", {"messages": parts}, Limits(max_prompt_chars=7))
    assert refusal is not None
    assert refusal.param == "messages"


def test_the_depth_of_what_is_thrown_away_does_not_count() -> None:
    assert refusal_of("chat", {"prediction": nested(9)}, Limits(max_json_depth=5)) is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a":1,"b":{"c":' + b"[" * 50, "b"),
        (b'{"a":' + b"[" * 50 + b"]" * 50 + b',"b":1}', "a"),
        (b'{"a":[[]],"b":1}', None),
        (b"[" * 50, None),
        (b'{"odd key":' + b"[" * 50, None),
        (b'{"a":[' + b"[]," * MAX_TOKENS + b"[" * 50, None),
    ],
)
def test_the_field_that_goes_deep_is_found_where_it_is_near(body: bytes, field: str | None) -> None:
    assert deep_field(body) == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a":[1,2],"b":[' + b"1," * 99, "b"),
        (b'{"a":"' + b"," * 99 + b'","b":[1,2,3,4]}', "a"),
        (b'{"a":{' + b'"k":1,' * 99 + b'"k":1},"b":[1]}', "a"),
        (b"[1,2,3]", None),
        (b'{"odd key":[1,2,3]}', None),
        (b"", None),
    ],
)
def test_the_field_that_holds_most_is_found(body: bytes, field: str | None) -> None:
    assert crowded_field(body) == field


@pytest.mark.parametrize(
    ("field", "rules"),
    [("allowed_token_ids", [1] * (MAX_TOKEN_RULES // 8)), ("logit_bias", {str(id): 1 for id in range(4096)})],
)
def test_what_each_prompt_is_given_is_bounded_for_all_of_them_together(field: str, rules: Any) -> None:
    fit = MAX_TOKEN_RULES // len(rules)
    assert refusal_of("completions", {"prompt": ["a"] * fit, field: rules}, Limits()) is None
    refusal = refusal_of("completions", {"prompt": ["a"] * (fit + 1), field: rules}, Limits())
    assert refusal is not None
    assert (refusal.status, refusal.param, refusal.code) == (400, field, "array_above_max_length")
    assert f"{fit + 1} prompts" in refusal.message


def test_one_prompt_may_be_given_as_much_as_the_operator_says() -> None:
    limits = Limits(max_allowed_tokens=1 << 20, max_json_values=1 << 24)
    assert refusal_of("completions", {"allowed_token_ids": [1] * (MAX_TOKEN_RULES + 1)}, limits) is None
