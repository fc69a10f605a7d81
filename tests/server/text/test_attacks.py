"""What hostile templates try, rendered as the checkpoint's own would be: without a process that could be killed."""

import json
import subprocess
import sys
from functools import cache

import pytest

from stentor.server.text.chat_template import ChatTemplate
from stentor.tests.server.text import attacks

pytestmark = pytest.mark.alone

Outcome = tuple[str, str | None, float]


@cache
def outcomes(table: str) -> dict[str, Outcome]:
    """Of every template in it, up to the first that the renderer did not survive."""
    done = subprocess.Popen(
        [sys.executable, "-P", "-m", attacks.__name__, table], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, _ = done.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        done.kill()
        out, _ = done.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    return {name: tuple(outcome) for name, outcome in zip(lines[::2], lines[1::2], strict=False)}


@pytest.mark.parametrize("name", attacks.COSTLY)
def test_a_template_that_would_cost_too_much_is_refused_before_it_does(name: str) -> None:
    assert name in outcomes("costly"), "it, or one before it, did not come back"
    _, error, seconds = outcomes("costly")[name]
    assert error is not None
    assert "needs too much memory" not in error, "that was the operating system's limit"
    assert seconds < 2


@pytest.mark.parametrize("name", attacks.CURIOUS)
def test_a_template_that_looks_for_python_finds_nothing(name: str) -> None:
    text, error, _ = outcomes("curious")[name]
    if error is None:
        assert text in ("", "[Undefined]"), text
    else:
        assert not [each for each in ("<class", "<module", "<function", "0x", "/etc", ".py") if each in error]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, user"),
        ("{{ [3, 1, 2] | sort | join }}{{ [1, 1, 2] | unique | list }}", "123[1, 2]"),
        ("{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [{'a': 2}] | sum(attribute='a') }}", "6[1, 2]2"),
        ("{{ 2.345 | round(2) }}{{ 'abc' | title }}{{ ' x ' | trim }}", "2.35Abcx"),
        ("{{ '{:>5}|{}'.format('x', 1) }}{{ '%05.1f' % 2.25 }}{{ '{a[b]}'.format(a={'b': 1}) }}", "    x|1002.21"),
        ("{{ {'a': 1} | tojson(indent=2) }}{{ [1, 2] | tojson(separators=(',', ':')) }}", '{\n  "a": 1\n}[1,2]'),
        ("{{ 'a' in ('a', 'b') }}{{ [1] == [1] }}{{ 1 < 2 < 3 }}{{ messages[0] == messages[1] }}", "TrueTrueTrueFalse"),
        ("{{ messages[1:][0].content }}{{ messages[-1]['content'][:1] }}{{ [[1, 2]][0][1] }}", "yoy2"),
        ("{{ messages | selectattr('content', 'equalto', 'hi') | list | length }}{{ 'x' is in ['x'] }}", "1True"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% set a, b = 1, 2 %}{{ a + b }}", "a13"),
        ("{{ 'a,b'.split(',') | last }}{{ ' x'.lstrip() }}{{ 'ab'.startswith(('a', 'c')) }}", "bxTrue"),
        ("{{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] | length }}{{ (1, 2, [3]) | length }}", "103"),
        ("{{ messages | groupby('role') | map('first') | list }}", "['user']"),
        ("{{ [1, 2, 3] | batch(2) | list }}{{ [1, 2] | reverse | list }}{{ 'x' * 3 }}", "[[1, 2], [3]][2, 1]xxx"),
    ],
)
def test_what_templates_use_still_does_what_it_did(source: str, text: str) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": "yo"}]
    assert ChatTemplate(source, {}).render(messages) == text


def test_a_long_conversation_is_gathered_into_a_list() -> None:
    source = (
        "{% set n = namespace(x=[]) %}{% for m in messages %}{% set n.x = n.x + [m] %}{% endfor %}{{ n.x | length }}"
    )
    template = ChatTemplate(source, {}, max_seconds=30)
    assert template.render([{"role": "user", "content": "x"}] * 4000) == "4000"
