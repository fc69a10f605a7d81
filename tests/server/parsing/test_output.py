"""Which formats a model's output is read by: from flags, from its chat template, and what its prompt has begun."""

import re
from pathlib import Path

import pytest

from stentor.server.config.config import ConfigError
from stentor.server.options.reading import read_config
from stentor.server.parsing.harmony import HarmonyParser
from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Thought, Tool
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat, UnknownFormat, settle_output
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.tests.server.parsing.pieces import parse

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TEMPLATES = {
    "qwen3": PLAIN + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "mistral": "[SYSTEM_PROMPT]Think in [THINK]…[/THINK].[/SYSTEM_PROMPT][INST]{{ messages[0].content }}[/INST]",
    "gpt_oss": "<|start|>user<|message|>{{ messages[0].content }}<|end|><|start|>assistant<|channel|>",
    "seed_oss": "{{ bos }}<seed:think>{{ thinking_budget }}</seed:think>",
    "granite": "Write your thoughts after 'Here is my thought process:' and then 'Here is my response:'.",
    "granite_3_3": "<|start_of_role|>system<|end_of_role|>Use <think></think> and <response></response> tags.",
    "minimax_m2": "]~b]ai\n<think>\n{# calls: <minimax:tool_call> #}",
    "minimax_m3": "{% set think_begin_token = '<mm:think>' %}",
    "kimi_k2": "<|im_assistant|>assistant<|im_middle|><think>{{ m.reasoning_content }}</think>",
    "deepseek_v3": (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        "<\uff5cAssistant\uff5c>{% if thinking %}<think>{% else %}</think>{% endif %}"
    ),
    "deepseek_r1": "{% set content = content.split('</think>')[-1] %}<\uff5cAssistant\uff5c><think>\n",
    "glm45": "[gMASK]<sop>{% if enable_thinking is false %}<think></think>{% endif %}",
    "hunyuan_a13b": "<|startoftext|><think>\n\n</think>\n<answer>\n",
    "exaone_deep": "{% if add_generation_prompt %}{{ '\n[|assistant|]<thought>\n' }}{% endif %}",
    "ernie45": "<|im_start|>assistant\n<think>\n{{ r }}\n</think>\n\n<response>\n",
    "cohere_command3": "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
    "nemotron_v3": "<SPECIAL_11>Assistant\n<think>\n</think>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_says_which_format_its_model_reasons_in(name: str) -> None:
    output = settle_output("auto", "auto", TEMPLATES[name], "LlamaForCausalLM")
    assert output.reasoning is not None
    assert output.reasoning.name == name


def test_a_model_that_does_not_reason_has_no_parser() -> None:
    output = settle_output("auto", "none", PLAIN, "LlamaForCausalLM")
    assert output == OutputFormat(None, None)
    assert output.parser([Tool("f", None, None)], opened=False) is None
    assert output.visible == frozenset()
    assert not output.thinking_opened("<think>\n")
    assert str(output) == "reasoning none, tool calls none"


def test_an_architecture_speaks_where_the_template_says_nothing() -> None:
    assert settle_output("auto", "none", "", "GptOssForCausalLM").harmony
    assert not settle_output("auto", "none", TEMPLATES["qwen3"], "GptOssForCausalLM").harmony
    assert settle_output("none", "none", "", "GptOssForCausalLM").reasoning is None


def test_a_flag_counts_more_than_the_template() -> None:
    assert settle_output("none", "none", TEMPLATES["qwen3"], "") == OutputFormat(None, None)
    named = settle_output("openai_gptoss", "none", TEMPLATES["qwen3"], "")
    assert named.reasoning is REASONING_FORMATS["gpt_oss"]


@pytest.mark.parametrize("architecture", ["HYV4ForCausalLM", "HYV4VLForConditionalGeneration"])
def test_markers_of_hunyuan_v4_have_the_suffix_of_their_checkpoint(architecture: str) -> None:
    source = "hy_Assistant<tool_calls:6124c78e><arg_key:6124c78e>"
    output = settle_output("auto", "auto", source, architecture)
    assert str(output) == "reasoning hy_v4, tool calls hy_v4"
    assert output == settle_output("hy_v4", "hy_v4", "", "", "<s> <think:6124c78e> </s>")
    tool = Tool("f", None, {"type": "object", "properties": {"a": {"type": "integer"}}})
    parser = output.parser([tool], opened=output.thinking_opened("hy_Assistant<think:6124c78e>"))
    assert parser is not None
    call = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    text = f"Hm</think>Yes<tool_calls>{call}</tool_calls>".replace(">", ":6124c78e>")
    wanted = [Thought("Hm"), Content("Yes"), CallStart("f", None), CallArguments('{"a": 1}'), CallEnd()]
    assert parse(parser, [text]) == wanted


def test_all_that_kimi_k3_writes_is_read_from_its_channels() -> None:
    output = settle_output("auto", "auto", "<|open|>think<|sep|><|close|>", "")
    assert str(output) == "reasoning kimi_k3, tool calls kimi_k3"
    said = "Hm<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>response<|sep|>"
    ended = "<|close|>message<|sep|>"
    call = '<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|>'
    calls = f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"
    for text, tools, wanted in (
        (said + ended, (), [Thought("Hm"), Content("Yes")]),
        (
            said + calls + ended,
            [Tool("now", None, None)],
            [Thought("Hm"), Content("Yes"), CallStart("now", None), CallArguments("{}"), CallEnd()],
        ),
    ):
        parser = output.parser(tools, opened=output.thinking_opened("<|open|>think<|sep|>"))
        assert parser is not None
        assert parse(parser, list(text)) == wanted


def test_messages_of_inkling_may_come_in_any_order() -> None:
    output = settle_output("auto", "auto", "<|message_model|><|content_thinking|><|content_invoke_tool_json|>", "")
    assert str(output) == "reasoning inkling, tool calls inkling"
    head, end = "<|message_model|>", "<|end_message|>"
    call = '<|content_invoke_tool_json|>{"name": "now", "args": {}}'
    called = [CallStart("now", None), CallArguments("{}"), CallEnd()]
    for text, tools, wanted in (
        (f"<|content_thinking|>Hm{end}{head}<|content_text|>Yes{end}", (), [Thought("Hm"), Content("Yes")]),
        ("<|content_text|>Yes<|content_model_end_sampling|>", (), [Content("Yes")]),
        ("Yes, without any marker", (), [Content("Yes, without any marker")]),
        (f"now{end}", (), [Content("now")]),
        (
            f"<|content_thinking|>a\n{end}{head}<|content_text|>b{end}{head}<|content_thinking|>c{end}{head}now{call}{end}",
            [Tool("now", None, None)],
            [Thought("a\n"), Content("b"), Thought("c"), *called],
        ),
    ):
        for pushes in ([text], list(text)):
            parser = output.parser(tools, opened=output.thinking_opened(head))
            assert parser is not None
            assert parse(parser, pushes) == wanted
    opened = output.parser((), opened=output.thinking_opened(f"{head}<|content_thinking|>"))
    assert opened is not None
    assert parse(opened, [f"Hm{end}{head}<|content_text|>Yes"]) == [Thought("Hm"), Content("Yes")]
    assert not output.parser((), opened=False).thinking  # type: ignore[union-attr]


def test_recipients_say_what_muse_s_messages_are() -> None:
    start, end = "<|start|>assistant", "<|eom|>"
    call = '<atem:function_calls>\n<atem:invoke name="now.now">\n</atem:invoke>\n</atem:function_calls>'
    called = [CallStart("now", None), CallArguments("{}"), CallEnd()]
    text = (
        f" to=self<|message|>Hm{end}{start} to=commentary<|message|>Wait.{end}{start} to=developer<|message|>x{end}"
        f"{start} to=now.now<|message|>{call}{end}"
    )
    tools = [Tool("now", None, None)]
    for name in ("auto", "musespark1x"):
        output = settle_output(name, name, "to=self<|message|><|eom|><atem:invoke", "")
        assert str(output) == "reasoning muse, tool calls muse"
        for pushes in ([text], list(text)):
            parser = output.parser(tools, opened=output.thinking_opened(start))
            assert parser is not None
            assert parse(parser, pushes) == [Thought("Hm"), Content("Wait."), *called]
    bare = f"<|message|>a{end}{start} to=user<|message|>b<|eot|>"
    for name, wanted in (("muse", [Thought("a"), Content("b")]), ("muse_glimmer", [Content("ab")])):
        assert parse(REASONING_FORMATS[name].parser(opened=False), list(bare)) == wanted


@pytest.mark.parametrize("option", ["reasoning-parser", "tool-call-parser"])
def test_an_unknown_name_is_refused_in_one_line_that_lists_those_there_are(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({option: "no-such-format"}, {})
    message = str(caught.value)
    assert message.startswith(f"--{option}: there is no ")
    assert "'no-such-format'; choose one of auto, none" in message
    assert "\n" not in message
    if option == "reasoning-parser":
        assert all(name in message for name in REASONING_FORMATS)


def test_an_unknown_name_that_no_option_gave_is_refused_too() -> None:
    with pytest.raises(UnknownFormat, match="choose one of auto, none"):
        settle_output("x", "auto", "", "")


def test_markers_are_what_the_parser_must_see() -> None:
    assert OutputFormat(REASONING_FORMATS["mistral"]).visible == {"[THINK]", "[/THINK]"}
    assert "<|call|>" in OutputFormat(REASONING_FORMATS["gpt_oss"]).visible_with(calls=False)
    both = settle_output("mistral", "mistral", "", "")
    assert both.visible_with(calls=False) == {"[THINK]", "[/THINK]"}
    assert both.visible_with(calls=True) == both.visible == {"[THINK]", "[/THINK]", *TOOL_FORMATS["mistral"].markers}


def test_the_prompt_settles_how_a_parser_begins() -> None:
    output = OutputFormat(REASONING_FORMATS["qwen3"])
    for tail, expected in (
        ("assistant\n<think>\n", [Thought("Hm"), Content("Hi")]),
        ("assistant\n", [Content("Hm</think>Hi")]),
    ):
        parser = output.parser((), opened=output.thinking_opened(tail))
        assert parser is not None
        assert parse(parser, ["Hm</think>Hi"]) == expected


@pytest.mark.parametrize(
    ("reasoning", "tools", "said"),
    [
        ("auto", "auto", "reasoning gpt_oss, tool calls gpt_oss"),
        ("gpt_oss", "hermes", "reasoning gpt_oss, tool calls gpt_oss"),
        ("auto", "none", "reasoning gpt_oss, tool calls none"),
        ("none", "openai", "reasoning gpt_oss, tool calls gpt_oss"),
    ],
)
def test_channels_have_one_parser_for_all_they_carry(reasoning: str, tools: str, said: str) -> None:
    output = settle_output(reasoning, tools, TEMPLATES["gpt_oss"], "")
    assert str(output) == said
    assert isinstance(output.parser((), opened=False), HarmonyParser)


def test_a_return_and_a_call_end_the_turn_of_a_model_with_channels() -> None:
    assert settle_output("auto", "auto", TEMPLATES["gpt_oss"], "").turn_ends == ("<|return|>", "<|call|>")
    assert settle_output("auto", "auto", TEMPLATES["qwen3"], "").turn_ends == ()


def test_the_reference_lists_every_format_of_reasoning() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "parsers.md").read_text()
    listed = page[page.index("## Reasoning") : page.index("## Tool calls")]
    assert set(REASONING_FORMATS) <= set(re.findall(r"`(\w+)`", listed))
