"""Small requests that would take for ever: each is refused soon, and delays no other request.

The server's own event loop is measured, with its JSON, its templates and its sockets, not a model: the CPU time of its
thread between two turns of a task that wakes every 2 ms.
"""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stentor.tests.server.attacks.hostile import Cost, Target, request, served
from stentor.tests.server.grammar.bombs import BOMBS as GRAMMARS
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO

SECONDS = 8.0
"""In which a refusal has come; a template is given up after :data:`RENDER_SECONDS`, a schema after 2 s."""
RENDER_SECONDS = 0.3
BUSY = 1.5
"""Times as long as it takes to read as much JSON as a bomb has here, for which the server's thread may do nothing else.
Worst here is a megabyte of lists: 0.4."""
WAITED = 1.5
"""Seconds for which another thread of the server may keep it from running."""


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
    "a number with a million digits": (CHAT, template("{{ 9 ** (9 ** 9) }}")),
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
    with served(render_seconds=RENDER_SECONDS) as target:
        target.ask(
            request(chat(chat_template="{{ 1 }}", max_tokens=1))
        )  # the process that renders these takes its time to start, and so does the one that tries grammars
        target.ask(request(chat(response_format={"type": "json_object"}, max_tokens=1)))
        yield target


@pytest.fixture(scope="module")
def unit() -> float:
    """CPU seconds that this machine takes to read a megabyte of lists, at best."""
    crowd = b"[" + b"[]," * 300_000 + b"1]"
    least = math.inf
    for _ in range(10):
        began = time.thread_time()
        json.loads(crowd)
        least = min(least, time.thread_time() - began)
    return least


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_soon_and_holds_nobody_up(name: str, target: Target, unit: float) -> None:
    path, body = BOMBS[name]
    with target.witness():
        engine_saw = len(target.engine.streams)
        most = Cost(BUSY * unit, WAITED, SECONDS)
        answer, cost = target.ask_often(request(body, path=path), most)
        assert len(target.engine.streams) == engine_saw
    print(f"{name}: {cost}, {cost.busy / unit:.2f} of the unit")
    assert answer.status == 400, answer.body
    assert cost < most
