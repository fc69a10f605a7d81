"""What the request types accept, and how they say what is wrong."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai import chat, completions, tokens
from stentor.protocols.openai.logit_bias import parse_logit_bias
from stentor.protocols.openai.messages import check_messages
from stentor.protocols.openai.sampling import IGNORED_FIELDS, REFUSED_EVERYWHERE, check_token_ids
from stentor.tests.examples import examples

HELLO = b'{"role":"user","content":"hi"}'
LIMITS = Limits()
DECODERS = [chat.decoder, completions.decoder, tokens.tokenize_decoder, tokens.detokenize_decoder]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def refusal_of(call: Callable[[], object]) -> BadRequest | None:
    """What ``call`` refused with; any other exception passes through and fails the test."""
    try:
        call()
    except BadRequest as refusal:
        return refusal
    return None


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.type.__name__)
def test_whatever_the_bytes_only_a_bad_request_comes_of_them(decoder: msgspec.json.Decoder[Any]) -> None:
    @settings(max_examples=examples(40, 750), deadline=None)
    @given(st.binary(max_size=64) | json_values.map(msgspec.json.encode))
    def check(body: bytes) -> None:
        refusal = refusal_of(lambda: decode(decoder, body, LIMITS))
        assert refusal is None or (refusal.message and refusal.status == 400)

    check()


@pytest.mark.parametrize("request_type", [chat.ChatRequest, completions.CompletionRequest])
def test_whatever_the_fields_only_a_bad_request_comes_of_them(request_type: type[Any]) -> None:
    fields = st.sampled_from(sorted(request_type.__struct_fields__))
    decoder = msgspec.json.Decoder(request_type)
    needed = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}

    @settings(max_examples=examples(60, 1500), deadline=None)
    @given(st.dictionaries(fields, json_values | st.integers(-2, 3) | st.lists(st.integers(0, 3)), max_size=4))
    def check(body: dict[str, Any]) -> None:
        refusal = refusal_of(lambda: decode(decoder, msgspec.json.encode({**needed, **body}), LIMITS).check(LIMITS))
        assert refusal is None or re.split(r"[.\[]", refusal.param or "")[0] in body

    check()


@settings(max_examples=examples(40, 750), deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["role", "content", "name", "tool_calls", "reasoning"]),
            json_values | st.sampled_from(["user", "assistant", "tool", [{"type": "text", "text": "x"}]]),
        ),
        max_size=3,
    )
)
def test_whatever_the_messages_only_a_bad_request_naming_one_comes_of_them(messages: list[dict[str, Any]]) -> None:
    refusal = refusal_of(lambda: check_messages(messages))
    assert refusal is None or (refusal.param or "").startswith("messages[")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{}", "messages", "`messages` is required."),
        (b'{"messages":[' + HELLO + b'],"n":0}', "n", "`n`: expected integer >= 1."),
        (b'{"messages":[' + HELLO + b'],"stop":[1]}', "stop[0]", "`stop[0]`: expected string, got integer."),
        (
            b'{"messages":[' + HELLO + b'],"stream_options":{"include_usage":1}}',
            "stream_options.include_usage",
            "`stream_options.include_usage`: expected boolean, got integer.",
        ),
        (
            b'{"messages":[' + HELLO + b'],"top_p": NaN}',
            "top_p",
            "`top_p`: NaN and Infinity are not numbers in JSON.",
        ),
        (b"[1]", None, "The body must be a JSON object: expected object, got array."),
    ],
)
def test_messages_speak_of_json_and_name_the_path(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(chat.decoder, body, LIMITS)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_a_nan_inside_a_string_is_not_blamed() -> None:
    with pytest.raises(BadRequest) as caught:
        decode(chat.decoder, b'{"user":"NaN","messages": [' + HELLO + b"] nonsense}", LIMITS)
    assert caught.value.param is None


def test_whole_numbers_are_numbers_and_fractions_are_not_integers() -> None:
    request = decode(chat.decoder, b'{"messages":[' + HELLO + b'],"temperature":1,"logit_bias":{"5":-100}}', LIMITS)
    assert (request.temperature, request.logit_bias) == (1.0, {"5": -100.0})


def test_ignored_and_refused_fields_are_told_apart() -> None:
    known = {*chat.ChatRequest.__struct_fields__, *completions.CompletionRequest.__struct_fields__}
    assert not known & set(IGNORED_FIELDS), "a declared field is not ignored"
    assert known >= {*REFUSED_EVERYWHERE, *chat.REFUSED, *completions.REFUSED}


def test_logit_bias_is_by_token_id_in_order() -> None:
    assert parse_logit_bias({"10": 1.0, "2": -3.0}, 11) == ((2, -3.0), (10, 1.0))
    assert parse_logit_bias(None, 11) == ()
    for key in ("11", "-1", "1.0", "", " 1", "1e0", "٣", "9" * 40):
        with pytest.raises(BadRequest) as caught:
            parse_logit_bias({key: 1.0}, 11)
        assert caught.value.param == "logit_bias"


def test_token_ids_are_held_against_the_vocabulary() -> None:
    assert check_token_ids([0, 9], 10, "tokens") == (0, 9)
    with pytest.raises(BadRequest, match=r"`tokens\[1\]`: token id 10 "):
        check_token_ids([0, 10], 10, "tokens")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_comes_in_four_shapes(prompt: Any, prompts: list[Any]) -> None:
    body = msgspec.json.encode({"prompt": prompt})
    assert decode(completions.decoder, body, LIMITS).prompts == prompts


class Fast(msgspec.Struct, tag="fast"):
    speed: Literal["high"] = "high"


class Slow(msgspec.Struct, tag="slow"):
    speed: Literal["low"] = "low"


class Choices(msgspec.Struct):
    """Every place of an enumeration in a request."""

    plain: Literal["a", "b"] | None = None
    numbers: Annotated[list[Literal[1, 2] | str], msgspec.Meta(max_length=3)] | None = None
    named: dict[str, Literal["c", "d"]] = {}
    either: list[Fast | Slow] = []


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        (b'{"plain":"x"}', "plain", "'x', expected one of a, b"),
        (b'{"numbers":[3]}', "numbers[0]", "3, expected one of 1, 2"),
        (b'{"named":{"k":"x"}}', "named", "'x', expected one of c, d"),
        (b'{"either":[{"type":"fast"},{"type":"x"}]}', "either[1].type", "'x', expected one of fast, slow"),
    ],
)
def test_a_value_that_is_none_of_an_enumeration_is_told_with_those_it_has(body: bytes, param: str, why: str) -> None:
    refusal = refusal_of(lambda: decode(msgspec.json.Decoder(Choices), body, LIMITS))
    assert refusal is not None
    assert (refusal.param, refusal.message) == (param, f"`{param}` is {why}.")


def test_alternatives_with_different_values_are_not_mixed() -> None:
    body = b'{"either":[{"type":"fast","speed":"low"}]}'
    refusal = refusal_of(lambda: decode(msgspec.json.Decoder(Choices), body, LIMITS))
    assert refusal is not None
    assert refusal.message == "`either[0].speed`: Invalid enum value 'low'."
