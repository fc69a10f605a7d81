"""Small requests that would take for ever, thrown again and again: each is refused soon, and a stream keeps its pace.

What is measured, of the stream beside them: the time between its tokens, which the fake engine makes every 20 ms. So it
is the server's own event loop that is held to it, with its JSON, its templates and its sockets, not a model.
"""

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stentor.tests.server.attacks.hostile import Target, Witness, request, served
from stentor.tests.server.grammar.bombs import BOMBS as GRAMMARS
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO

SECONDS = 2.0
"""In which a refusal has come."""
THROWN_FOR = 0.3
"""Seconds, at least, of each kind."""
PAUSE = 0.05
"""Seconds between a refusal and the next throw."""
KEPT = 0.6
"""Share of the time that must pass in steps of no more than twice their median; the rest is this machine's noise."""
TRIES = 4
"""What a bomb costs, it costs each time; a busy neighbour is gone the next."""


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, **fields}).encode()


def template(source: str, **arguments: Any) -> bytes:
    return chat(chat_template=source, chat_template_kwargs=arguments)


def with_arguments(value: bytes) -> bytes:
    return chat(chat_template_kwargs={"a": 0}).replace(b'"a": 0', b'"a":' + value)


def with_address(url: str) -> bytes:
    return chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])


BOMBS: dict[str, tuple[str, bytes]] = {
    "deep lists": (CHAT, with_arguments(b"[" * 10**6 + b"]" * 10**6)),
    "deep lists that never end": (CHAT, with_arguments(b"[" * 10**6)),
    "deep objects": (CHAT, with_arguments(b'{"a":' * 10**5 + b"1" + b"}" * 10**5)),
    "deep lists of a moderate depth": (CHAT, with_arguments(b"[" * 900 + b"]" * 900)),
    "a wrong byte behind many lists": (CHAT, with_arguments(b"[" + b"[]," * 50_000 + b"nope]")),
    "half a character behind many others": (CHAT, with_arguments(b'"' + b"\\n" * 10**5 + b'\\ud800"')),
    "a crowd of lists": (CHAT, with_arguments(b"[" + b"[]," * 10**6 + b"1]")),
    "a crowd of biases, as large as may be": (
        CHAT,
        with_arguments(b"0")[:-1]
        + b',"logit_bias":{'
        + b",".join(b'"%d":1' % number for number in range(55_000))
        + b"}}",
    ),
    "as many digits as fit": (CHAT, with_arguments(b"9" * 10**6)),
    "loops in loops": (
        CHAT,
        template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
    ),
    "a loop over a long text": (
        CHAT,
        template("{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}", x="a" * 10**5),
    ),
    "a sort in one step": (
        CHAT,
        template("{% for a in range(99999) %}{% set b = x | sort %}{% endfor %}", x="ab" * 10**5),
    ),
    "a macro that calls itself": (CHAT, template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")),
    "a number with a million digits": (CHAT, template("{{ 9 ** 9 ** 9 }}")),
    "a width of a billion": (CHAT, template("{{ '%1000000000d' % 1 }}")),
    "a text times a billion": (CHAT, template("{{ 'a' * 1000000000 }}")),
    "a pattern": (CHAT, chat(guided_regex="(a+)+$", structured_outputs={"regex": "(a|a)*b"})),
    "a schema with patterns": (
        CHAT,
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": GRAMMARS["patterns that must all hold"]["json"]},
            }
        ),
    ),
    "an address of decimals": (CHAT, with_address("http://2852039166/latest")),
    "an address in IPv6": (CHAT, with_address("http://[::ffff:169.254.169.254]/")),
    "a file": (CHAT, with_address("file:///etc/passwd")),
    "an address with a long name": (CHAT, with_address("http://" + "a." * 10**5)),
    "a prompt far too long": (COMPLETIONS, json.dumps({"prompt": "a" * 10**6}).encode()),
}


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with served() as target:
        target.ask(
            request(chat(chat_template="{{ 1 }}", max_tokens=1))
        )  # the process that renders these takes its time to start, and so does the one that tries grammars
        target.ask(request(chat(response_format={"type": "json_object"}, max_tokens=1)))
        yield target


@pytest.fixture(scope="module")
def witness(target: Target) -> Iterator[Witness]:
    with target.witness() as witness:
        yield witness


@pytest.fixture(scope="module")
def usual(witness: Witness) -> float:
    """The median time between tokens while nothing else happens."""
    began = time.monotonic()
    time.sleep(1.0)
    return witness.median(began, time.monotonic())


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_soon_and_a_stream_keeps_its_pace(
    name: str, target: Target, witness: Witness, usual: float
) -> None:
    path, body = BOMBS[name]
    data = request(body, path=path)
    engine_saw = len(target.engine.streams)
    for tries in range(1, TRIES + 1):
        slowest, gaps = _throw(target, witness, data)
        median = statistics.median(gaps)
        kept = sum(gap for gap in gaps if gap <= 2 * usual) / sum(gaps)
        told = (
            f"{name}: refused within {1e3 * slowest:.0f} ms; between tokens {1e3 * median:.1f} ms in the median, "
            f"{1e3 * max(gaps):.1f} at most, usually {1e3 * usual:.1f}; {kept:.0%} of the time within twice that"
        )
        print(told)
        if slowest < SECONDS and median <= 2 * usual and kept >= KEPT:
            break
        assert tries < TRIES, told
    assert len(target.engine.streams) == engine_saw


def _throw(target: Target, witness: Witness, data: bytes) -> tuple[float, list[float]]:
    """Seconds until the slowest refusal, and those between tokens of the stream beside it."""
    began = time.monotonic()
    slowest = 0.0
    while time.monotonic() - began < THROWN_FOR:
        answer = target.ask(data)
        assert answer.status == 400, answer.body
        slowest = max(slowest, answer.seconds)
        time.sleep(PAUSE)
    ended = time.monotonic()
    assert witness.goes_on()
    return slowest, witness.gaps(began, ended)
