"""Requests that ask for too much, or make no sense: the engine never hears of them, and streams go on."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from stentor.protocols.common.limits import Limits
from stentor.tests.server.attacks.hostile import Cost, Target, request, served
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO

LIMITS = Limits()
MOST = Cost(busy=2.0, waited=math.inf, seconds=math.inf)
"""That the server's thread may do at once."""
MiB = 1 << 20

HELLO_JSON = json.dumps(HELLO).encode()
ARGUMENTS = b'"chat_template_kwargs":{"a":'


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, **fields}).encode()


def raw_chat(fields: bytes) -> bytes:
    """Fields as they stand, beside good messages."""
    return b'{"messages":' + HELLO_JSON + b"," + fields + b"}"


def completions(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hi", **fields}).encode()


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


def entries(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}]
PATTERN = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "pattern": r"(a)\1"}}}
TEXT = LIMITS.max_prompt_chars + 1

CASES: dict[str, tuple[str, bytes, str | None]] = {
    # deep and crowded
    "a list 10^6 deep, never closed": (CHAT, raw_chat(b'"z":' + b"[" * 10**6)[:-1], "z"),
    "a list 10^6 deep": (CHAT, raw_chat(b'"z":' + nested(10**6)), "z"),
    "an object 10^5 deep": (CHAT, raw_chat(b'"z":' + nested(10**5, '{"a":', "}")), "z"),
    "arguments 10^5 deep": (CHAT, raw_chat(ARGUMENTS + nested(10**5) + b"}"), "chat_template_kwargs"),
    "arguments a level too deep": (CHAT, raw_chat(ARGUMENTS + nested(63) + b"}"), "chat_template_kwargs"),
    "content 100 deep": (
        CHAT,
        b'{"messages":[{"role":"user","content":' + nested(100) + b"}]}",
        "messages",
    ),
    "8 MB of empty lists": (
        CHAT,
        raw_chat(ARGUMENTS + b"[" + b"[]," * (8 * MiB // 3) + b"1]}"),
        "chat_template_kwargs",
    ),
    "16 MB of tokens": (COMPLETIONS, b'{"prompt":[' + b"1," * (8 * MiB) + b"1]}", "prompt"),
    "10^6 logit-bias entries": (CHAT, raw_chat(b'"logit_bias":' + entries(10**6)), "logit_bias"),
    # numbers
    "NaN": (CHAT, raw_chat(b'"temperature":NaN'), "temperature"),
    "Infinity": (CHAT, raw_chat(b'"top_p":Infinity'), "top_p"),
    "-Infinity": (CHAT, raw_chat(b'"presence_penalty":-Infinity'), "presence_penalty"),
    "1e400": (CHAT, raw_chat(b'"temperature":1e400'), "temperature"),
    "1e400 in arguments": (CHAT, raw_chat(ARGUMENTS + b"1e400}"), "chat_template_kwargs"),
    "an integer of 10^5 digits": (CHAT, raw_chat(b'"seed":' + b"9" * 10**5), "seed"),
    "a number of 10^5 digits": (CHAT, raw_chat(b'"temperature":' + b"9" * 10**5), "temperature"),
    "10^5 digits in arguments": (CHAT, raw_chat(ARGUMENTS + b"9" * 10**5 + b"}"), "chat_template_kwargs"),
    "an exponent of 10^5 digits": (CHAT, raw_chat(b'"temperature":1e' + b"9" * 10**5), "temperature"),
    "an integer beyond 64 bits for a foreign template": (
        CHAT,
        chat(chat_template="{{ a }}", chat_template_kwargs={"a": 10**30}),
        "chat_template",
    ),
    "max_tokens beyond 64 bits": (CHAT, chat(max_tokens=10**30), "max_tokens"),
    # characters
    "half a character": (CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}', "messages[0].content"),
    "the other half": (CHAT, b'{"messages":[{"role":"user","content":"a\\udc00"}]}', "messages[0].content"),
    "half a character in a stop string": (CHAT, raw_chat(b'"stop":"\\ud83d"'), "stop"),
    "no UTF-8": (CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}', "messages[0].content"),
    "an overlong NUL": (CHAT, b'{"messages":[{"role":"user","content":"\xc0\x80"}]}', "messages[0].content"),
    "a surrogate in UTF-8": (CHAT, raw_chat(b'"stop":"\xed\xa0\x80"'), "stop"),
    "a NUL byte in a text": (CHAT, b'{"messages":[{"role":"user","content":"a\0b"}]}', "messages[0].content"),
    "nothing but NUL bytes": (CHAT, bytes(1000), None),
    "UTF-16": (CHAT, chat().decode().encode("utf-16"), None),
    "a byte order mark": (CHAT, b"\xef\xbb\xbf" + chat(), None),
    # keys that come twice: the last one counts, and the others must be of their type
    "a key twice, the last one bad": (CHAT, raw_chat(b'"n":1,"n":100000'), "n"),
    "a key twice, the first one of another type": (CHAT, raw_chat(b'"n":"x","n":1'), "n"),
    # too many, too long
    "n": (CHAT, chat(n=LIMITS.max_choices + 1), "n"),
    "n of 2^62": (CHAT, chat(n=2**62), "n"),
    "best_of": (COMPLETIONS, completions(best_of=LIMITS.max_choices + 1), "best_of"),
    "100k stop strings": (CHAT, chat(stop=["a"] * 10**5), "stop"),
    "one stop string too many": (CHAT, chat(stop=["a"] * (LIMITS.max_stop_strings + 1)), "stop"),
    "a stop string of 1 MB": (CHAT, chat(stop="a" * MiB), "stop"),
    "a second stop string of 1 MB": (CHAT, chat(stop=["a", "a" * MiB]), "stop[1]"),
    "stop tokens": (CHAT, chat(stop_token_ids=[1] * (LIMITS.max_stop_tokens + 1)), "stop_token_ids"),
    "bad words": (CHAT, chat(bad_words=["a"] * (LIMITS.max_bad_words + 1)), "bad_words"),
    "a long bad word": (CHAT, chat(bad_words=["a" * (LIMITS.max_bad_word_length + 1)]), "bad_words[0]"),
    "an empty bad word": (CHAT, chat(bad_words=[""]), "bad_words[0]"),
    "one bias too many": (CHAT, raw_chat(b'"logit_bias":' + entries(LIMITS.max_logit_bias + 1)), "logit_bias"),
    "allowed tokens": (CHAT, chat(allowed_token_ids=[1] * (LIMITS.max_allowed_tokens + 1)), "allowed_token_ids"),
    "top log-probabilities": (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    "log-probabilities": (COMPLETIONS, completions(logprobs=21), "logprobs"),
    "log-probabilities of the prompt": (CHAT, chat(prompt_logprobs=21), "prompt_logprobs"),
    "messages": (CHAT, chat(messages=HELLO * (LIMITS.max_messages + 1)), "messages"),
    "prompts": (COMPLETIONS, completions(prompt=["a"] * (LIMITS.max_prompts + 1)), "prompt"),
    "prompts times n": (COMPLETIONS, completions(prompt=["a"] * 9, n=LIMITS.max_choices), "prompt"),
    "characters of a prompt": (COMPLETIONS, completions(prompt="a" * TEXT), "prompt"),
    "characters of prompts together": (COMPLETIONS, completions(prompt=["a" * (TEXT // 2)] * 3), "prompt"),
    "characters of messages": (CHAT, chat(messages=[{"role": "user", "content": "a" * TEXT}]), "messages"),
    "characters to tokenize": ("/tokenize", completions(prompt="a" * TEXT), "prompt"),
    "a prompt beyond the context": (COMPLETIONS, completions(prompt="a " * 10**5), "prompt"),
    "messages beyond the context": (CHAT, chat(messages=HELLO * 4000), "messages"),
    "a model's name": (CHAT, chat(model="a" * MiB), "model"),
    "a cache salt": (CHAT, chat(cache_salt="a" * MiB), "cache_salt"),
    # templates
    "a template of 1 MB": (CHAT, chat(chat_template="a" * MiB), "chat_template"),
    "a template without an end": (
        CHAT,
        chat(chat_template="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        "chat_template",
    ),
    "a template that calls itself": (
        CHAT,
        chat(chat_template="{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        "chat_template",
    ),
    "a template that doubles": (
        CHAT,
        chat(
            chat_template="{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s * 2 %}{% endfor %}"
        ),
        "chat_template",
    ),
    "a template that looks around": (
        CHAT,
        chat(chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "chat_template",
    ),
    # patterns and addresses
    "a pattern": (CHAT, chat(guided_regex="a?" * 20_000), "guided_regex"),
    "a structured pattern": (CHAT, chat(structured_outputs={"regex": "(?=a)b"}), "structured_outputs.regex"),
    "a schema with a pattern": (CHAT, chat(response_format=PATTERN), "response_format.json_schema.schema.pattern"),
    "a grammar": (CHAT, chat(guided_grammar="root ::= root root"), "guided_grammar"),
    "an address": (CHAT, chat(messages=IMAGE), "messages[0].content[0]"),
    "a tool with a deep schema": (CHAT, raw_chat(b'"tools":[{"function":' + nested(80, '{"a":', "}") + b"}]"), "tools"),
    # bodies that are none
    "nothing": (CHAT, b"", None),
    "a compressed body that does not say so": (CHAT, gzip.compress(chat()), None),
}


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with served() as target:
        target.ask(request(chat(chat_template="warm up {{ 1 }", max_tokens=1)))  # a process of its own renders these
        yield target


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_the_name_of_its_field(name: str, target: Target) -> None:
    path, body, param = CASES[name]
    with target.witness():
        before = len(target.engine.streams)
        answer, cost = target.ask_often(request(body, path=path), MOST)
        assert len(target.engine.streams) == before, "it reached the engine"
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert len(answer.body) < 1000
    assert cost < MOST


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "x-unknown"])
def test_an_encoded_body_is_not_unpacked(encoding: str, target: Target) -> None:
    bomb = b"x"
    if encoding == "gzip":
        bomb = gzip.compress(bytes(64 * MiB), 1)
    elif encoding == "deflate":
        bomb = zlib.compress(bytes(64 * MiB), 1)
    answer = target.ask(request(bomb, b"content-encoding: " + encoding.encode()))
    assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")


def test_a_text_with_an_escaped_nul_is_a_text(target: Target) -> None:
    answer = target.ask(request(b'{"messages":[{"role":"user","content":"a\\u0000b"}],"max_tokens":1}'))
    assert answer.status == 200
    assert 0 in target.engine.streams[-1].prompt


def test_as_many_as_may_be_are_served(target: Target) -> None:
    full = chat(
        max_tokens=1,
        n=LIMITS.max_choices,
        stop=["x" * LIMITS.max_stop_length] * LIMITS.max_stop_strings,
        stop_token_ids=[1] * LIMITS.max_stop_tokens,
        logit_bias={str(token): 1 for token in range(258)},
        chat_template_kwargs={"a": json.loads(nested(61))},
    )
    assert target.ask(request(full)).status == 200


def test_the_limits_are_the_operators() -> None:
    strict = Limits(max_choices=2, max_prompt_tokens=5, max_json_depth=5, max_body_bytes=4096, max_logprobs=3)
    cases = [
        (CHAT, chat(n=3), 400, "n"),
        (CHAT, chat(logprobs=True, top_logprobs=4), 400, "top_logprobs"),
        (COMPLETIONS, completions(prompt="123456"), 400, "prompt"),
        (COMPLETIONS, completions(prompt=[1] * 6), 400, "prompt"),
        (CHAT, raw_chat(ARGUMENTS + nested(4) + b"}"), 400, "chat_template_kwargs"),
        (CHAT, chat(user="a" * 4096), 413, None),
    ]
    with served(strict) as target:
        for path, body, status, param in cases:
            answer = target.ask(request(body, path=path))
            assert (answer.status, answer.error["param"]) == (status, param)
        assert target.engine.streams == []
        assert target.ask(request(completions(prompt="12345", max_tokens=1, n=2), path=COMPLETIONS)).status == 200
