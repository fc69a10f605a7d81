"""Whether and how long to think, from what requests say to what templates and the engine are told."""

from typing import Any

import pytest

from stentor.protocols.ipc.actors import Thinking
from stentor.server.parsing.output import OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.parsing.thinking import thinking_budget, thinking_options
from stentor.tests.fakes import byte_tokenizer

QWEN = OutputFormat(REASONING_FORMATS["qwen3"])
HARMONY = OutputFormat(REASONING_FORMATS["gpt_oss"])
QWEN_TEMPLATE = "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
DEEPSEEK_TEMPLATE = "{% if thinking %}<think>{% endif %}"
HARMONY_TEMPLATE = "Reasoning: {{ reasoning_effort }}<|channel|><|message|>{{ message.thinking }}"
SEED_TEMPLATE = "{% if thinking_budget == 0 %}{% endif %}"
MINIMAX_TEMPLATE = "{{ thinking_mode }}"
SWITCHED_ON = {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"}


@pytest.mark.parametrize(
    ("output", "template", "fields", "kwargs", "wanted"),
    [
        (QWEN, QWEN_TEMPLATE, {}, {}, None),
        (QWEN, QWEN_TEMPLATE, {"effort": "none"}, {"enable_thinking": False}, False),
        (QWEN, QWEN_TEMPLATE, {"effort": "high"}, {"enable_thinking": True}, True),
        (QWEN, "no arguments", {"effort": "none"}, {}, False),
        (
            QWEN,
            QWEN_TEMPLATE,
            {"effort": "high", "template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
            False,
        ),
        (
            QWEN,
            QWEN_TEMPLATE,
            {"template_kwargs": {"thinking": False, "x": 1}},
            {"enable_thinking": False, "thinking": False, "x": 1},
            False,
        ),
        (
            QWEN,
            DEEPSEEK_TEMPLATE,
            {"template_kwargs": {"enable_thinking": True}},
            {"thinking": True, "enable_thinking": True},
            True,
        ),
        (QWEN, QWEN_TEMPLATE, {"template_kwargs": {"enable_thinking": "yes"}}, {"enable_thinking": "yes"}, None),
        (HARMONY, HARMONY_TEMPLATE, {"effort": "low"}, {"reasoning_effort": "low", "thinking": True}, True),
        (HARMONY, HARMONY_TEMPLATE, {"effort": "none"}, {"reasoning_effort": "low", "thinking": False}, False),
        (HARMONY, HARMONY_TEMPLATE, {"effort": "xhigh"}, {"reasoning_effort": "high", "thinking": True}, True),
        (QWEN, "{{ reasoning_effort }}", {"effort": "max"}, {"reasoning_effort": "max"}, True),
        (QWEN, "{{ reasoning_effort }}", {"effort": "none"}, {}, False),
        (QWEN, "{{ reasoning_effort == 'no_think' }}", {"effort": "none"}, {"reasoning_effort": "no_think"}, False),
        (
            QWEN,
            "{{ reasoning_effort }}",
            {"effort": "low", "template_kwargs": {"reasoning_effort": "deep"}},
            {"reasoning_effort": "deep"},
            True,
        ),
        # the operator's count where the request says nothing
        (QWEN, QWEN_TEMPLATE, {"defaults": {"enable_thinking": False}}, {"enable_thinking": False}, False),
        (QWEN, "{{ a }}", {"defaults": {"a": 1, "b": 2}, "template_kwargs": {"a": 3}}, {"a": 3, "b": 2}, None),
        (
            QWEN,
            QWEN_TEMPLATE,
            {"defaults": {"enable_thinking": False}, "effort": "low"},
            {"enable_thinking": True},
            True,
        ),
        (QWEN, SEED_TEMPLATE, {"budget": 512}, {"thinking_budget": 512}, None),
        (QWEN, SEED_TEMPLATE, {"effort": "none", "budget": 512}, {"thinking_budget": 0}, False),
        (HARMONY, "", {"effort": "low"}, {"reasoning_effort": "low", **SWITCHED_ON}, True),
        (QWEN, MINIMAX_TEMPLATE, {"effort": "none"}, {"thinking_mode": "disabled"}, False),
        (QWEN, MINIMAX_TEMPLATE, {"effort": "low"}, {"thinking_mode": "enabled"}, True),
    ],
)
def test_the_template_is_told_in_the_words_that_it_names(
    output: OutputFormat, template: str, fields: dict[str, Any], kwargs: dict[str, Any], wanted: bool | None
) -> None:
    options = thinking_options(output, template, **fields)
    assert options.template_kwargs == kwargs
    assert options.wanted is wanted
    assert options.budget == fields.get("budget")


def test_the_requests_own_arguments_are_not_changed() -> None:
    given = {"thinking": True}
    thinking_options(QWEN, QWEN_TEMPLATE, template_kwargs=given, effort="low")
    assert given == {"thinking": True}


def test_a_budget_is_told_to_the_engine_in_tokens() -> None:
    tokenizer = byte_tokenizer()
    wanted = Thinking(5, list(b"<think>"), list(b"</think>"), True)
    assert thinking_budget(QWEN, tokenizer, 5, opened=True) == wanted
    assert thinking_budget(QWEN, tokenizer, None, opened=True) is None
    assert thinking_budget(OutputFormat(), tokenizer, 5, opened=False) is None
