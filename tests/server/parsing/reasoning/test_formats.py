"""Every reasoning format, at every split of its text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.parsing.interface import Content, Piece, Thought
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.parsing.reasoning.marked import ReasoningFormat
from stentor.tests.examples import examples
from stentor.tests.server.parsing.pieces import check_every_split, cut, cuts, of_kind, parse, texts

MARKED = sorted(name for name, format in REASONING_FORMATS.items() if type(format) is ReasoningFormat)


def split(name: str, text: str, *, opened: bool = False, calls: bool = False) -> tuple[str, str]:
    """Reasoning and content."""
    format = REASONING_FORMATS[name]
    pieces = check_every_split(lambda: format.parser(opened=opened, calls=calls), text)
    kinds = [type(piece) for piece in pieces]
    assert kinds in ([], [Thought], [Content], [Thought, Content])
    return of_kind(pieces, Thought), of_kind(pieces, Content)


@pytest.mark.parametrize(
    ("name", "opened", "text", "expected"),
    [
        ("qwen3", False, "<think>\nHm, 日本.\n</think>\n\nHéllo", ("Hm, 日本.", "Héllo")),
        ("qwen3", False, "\n<think>\na\n\nb\n</think>\n\nc\n\nd\n", ("a\n\nb", "c\n\nd\n")),
        ("qwen3", False, "<think>\n\n</think>\n\nHi", ("", "Hi")),
        ("qwen3", False, "Hi", ("", "Hi")),
        ("qwen3", False, "  Hi <think>no</think>", ("", "  Hi <think>no</think>")),
        ("qwen3", True, "Hm.\n</think>\n\nHi", ("Hm.", "Hi")),
        ("qwen3", True, "<think>\nHm.\n</think>\n\nHi", ("Hm.", "Hi")),
        ("qwen3", True, "Is <think> a tag?</think>Yes", ("Is <think> a tag?", "Yes")),
        ("qwen3", True, "Hm. </thi", ("Hm. </thi", "")),
        ("qwen3", True, "Hm.\n\n</think", ("Hm.\n\n</think", "")),
        ("qwen3", True, "Hm.\n", ("Hm.", "")),
        ("qwen3", True, "\n\n", ("", "")),
        ("qwen3", False, "\n\n", ("", "\n\n")),
        ("qwen3", False, "<thi", ("", "<thi")),
        ("qwen3", False, "<think", ("", "<think")),
        ("qwen3", False, "</think>\n\nHi", ("", "Hi")),
        ("qwen3", True, "a</think>b</think>c", ("a", "b</think>c")),
        ("qwen3", True, "a < b </b> </thinks></think>b", ("a < b </b> </thinks>", "b")),
        ("qwen3", True, "a</think>\n", ("a", "")),
        ("deepseek_r1", True, "Hm.\n</think>\n\nHi", ("Hm.", "Hi")),
        ("deepseek_r1", True, "never ends", ("never ends", "")),
        ("deepseek_v3", True, "Hm</think>Hi", ("Hm", "Hi")),
        ("deepseek_v3", False, "Hi", ("", "Hi")),
        ("glm45", False, "\n<think>Hm.</think>\nHi", ("Hm.", "Hi")),
        ("kimi_k2", True, "<think>Hm.</think>Hi", ("Hm.", "Hi")),
        ("k2_horizon", True, "Hm.</ifm|think_fast>Hi", ("Hm.", "Hi")),
        ("plamo3", True, "Hm.<|plamo:end_think:plamo|>Hi", ("Hm.", "Hi")),
        ("hy_v4", True, "Hm.</think>Hi", ("Hm.", "Hi")),
        ("kimi_k3", False, "<|open|>response<|sep|>Hi<|close|>response<|sep|><|close|>message<|sep|>", ("", "Hi")),
        ("holo2", True, "Hm.</think>Hi", ("Hm.", "Hi")),
        ("granite", False, "Here is my thought process:\nHm.\n\nHere is my response:\nHi", ("Hm.", "Hi")),
        ("granite", False, "Here's my thought process: Hm. Here's my response: Hi", (" Hm. ", " Hi")),
        ("granite", False, "Here is my house.", ("", "Here is my house.")),
        ("granite_3_3", False, "<think>Hm.</think><response>Hi</response>", ("Hm.", "Hi")),
        ("mistral", False, "[THINK]Hm.[/THINK]Hi", ("Hm.", "Hi")),
        ("mistral", False, "[THINK]a [THIN [/THINK]b[/TH", ("a [THIN ", "b[/TH")),
        ("minimax_m2", True, "Hm.\n</think>\n\nHi", ("Hm.", "Hi")),
        ("minimax_m2_append_think", True, "Hm.\n</think>\n\nHi", ("", "<think>Hm.\n</think>\n\nHi")),
        ("minimax_m3", False, "<mm:think>Hm.</mm:think>Hi", ("Hm.", "Hi")),
        ("step3", True, "Hm.</think>Hi", ("Hm.", "Hi")),
        ("hunyuan_a13b", False, "<think>\nHm.\n</think>\n<answer>\nHi\n\nyou\n</answer>", ("Hm.", "Hi\n\nyou")),
        ("hunyuan_a13b", False, "<think>\n\n</think>\n<answer>\nHi\n</answ", ("", "Hi\n</answ")),
        ("hunyuan_a13b", False, "<answer>\nHi\n</answer>", ("", "Hi")),
        ("hunyuan_a13b", False, "<think>Hm.</think><ans", ("Hm.", "<ans")),
        ("hunyuan_a13b", False, "<think>Hm.</think>Hi</answer>", ("Hm.", "Hi</answer>")),
        ("seed_oss", True, "<seed:think>Hm.</seed:think>\n\nHi", ("Hm.", "Hi")),
        ("ernie45", True, "Hm.\n</think>\n\n\n<response>\nHi\n</response>\n", ("Hm.", "Hi")),
        ("ernie45", True, "Hm.\n</think>\nHi", ("Hm.", "Hi")),
        ("olmo3", True, "Hm.</think>Hi", ("Hm.", "Hi")),
        ("gemma4", False, "<|channel>thought\nHm.<channel|>Hi", ("Hm.", "Hi")),
        ("gemma4", False, "<|channel>thousand reasons<channel|>Hi", ("thousand reasons", "Hi")),
        ("gemma4", False, "<|channel>", ("", "")),
        ("gemma4", False, "<|channel>thou", ("thou", "")),
        ("nemotron_v3", True, "Hm.\n</think>\nHi", ("Hm.", "Hi")),
        (
            "cohere_command3",
            False,
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>",
            ("Hm.", "Hi"),
        ),
    ],
)
def test_what_a_model_thinks_and_what_it_answers_are_told_apart(
    name: str, opened: bool, text: str, expected: tuple[str, str]
) -> None:
    assert split(name, text, opened=opened) == expected


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("qwen3", "<tool_call>"),
        ("glm45", "<tool_call>"),
        ("kimi_k2", "<|tool_calls_section_begin|>"),
        ("minimax_m2", "<minimax:tool_call>"),
        ("minimax_m3", "]<]minimax[>[<tool_call>"),
        ("seed_oss", "<seed:tool_call>"),
        *((name, "<｜DSML｜tool_calls>") for name in ("deepseek_r1", "deepseek_v3", "deepseek_v4")),
        ("deepseek_v41", "<｜DSML｜ calls>"),
    ],
)
def test_a_tool_call_ends_reasoning_where_tools_may_be_called(name: str, call: str) -> None:
    text = f"I will.\n{call}it"
    assert split(name, text, opened=True, calls=True) == ("I will.", f"{call}it")
    assert split(name, text, opened=True) == (text, "")


@pytest.mark.parametrize("name", ["qwen3", "glm45", "nemotron_v3", "granite_thinking"])
@pytest.mark.parametrize(
    ("mention", "call"),
    [
        ("I write <tool_call> with JSON.", '\n<tool_call>\n{"name": "f"}</tool_call>'),
        ("I write `<tool_call>`, then <tool_call>.", "<tool_call>\n<function=f>\n</function></tool_call>"),
        ("A <tool_call>" + " " * 70 + "is long.", "<tool_call>f\n</tool_call>"),
    ],
)
def test_reasoning_that_mentions_a_marker_of_calls_goes_on(name: str, mention: str, call: str) -> None:
    assert split(name, f"{mention}{call}", opened=True, calls=True) == (mention, call.lstrip())
    assert split(name, f"{mention}\n</think>\n\n{call}", opened=True, calls=True) == (mention, call.lstrip())


def test_a_marker_of_calls_at_the_very_end_ends_reasoning() -> None:
    assert split("qwen3", "So.\n<tool_call>\n", opened=True, calls=True) == ("So.", "<tool_call>\n")


def test_reasoning_is_handed_out_as_it_comes() -> None:
    parser = REASONING_FORMATS["deepseek_r1"].parser(opened=True)
    assert parser.push("Let me") == [Thought("Let me")]
    assert parser.push(" see\n") == [Thought(" see")]
    assert parser.push("more </") == [Thought("\nmore ")]
    assert parser.push("b>") == [Thought("</b>")]
    assert parser.push("</think>") == []
    assert parser.push("Hi") == [Content("Hi")]
    assert parser.push(" <think>") == [Content(" <think>")]


def test_a_token_counts_as_thought_from_the_marker_that_begins_it_to_the_one_that_ends_it() -> None:
    parser = REASONING_FORMATS["qwen3"].parser(opened=False)
    counted = []
    for token in ("<think>", "\n", "Hm", "</think>", "\n", "Hi"):
        counted.append(parser.thinking)
        parser.push(token)
    assert counted == [False, True, True, True, False, False]
    assert REASONING_FORMATS["qwen3"].parser(opened=True).thinking


def expected_of(format: ReasoningFormat, text: str, opened: bool) -> tuple[str, str]:
    """The same by regular expressions over the whole text; for formats without a wrapper."""
    begin = "|".join(map(re.escape, format.begins))
    end = "|".join(map(re.escape, format.ends))
    head = re.match(rf"\s*(?:{begin})", text)
    if head is None and not opened:
        stray = re.match(rf"\s*(?:{end})\n*", text)
        return ("", text[stray.end() :] if stray else text)
    body = text[head.end() :] if head else text
    tail = re.search(rf"(?:{end})\n*", body)
    if tail is None:
        return body.strip("\n"), ""
    return body[: tail.start()].strip("\n"), body[tail.end() :]


@pytest.mark.parametrize("name", [name for name in MARKED if REASONING_FORMATS[name].name == name])
def test_however_a_text_is_cut_it_means_what_the_whole_means(name: str) -> None:
    format = REASONING_FORMATS[name]
    fragments = [*format.begins, *format.ends, *(format.wrapper or ()), "\n"]

    @settings(max_examples=examples(15, 300), deadline=None)
    @given(texts(*fragments), cuts, st.booleans())
    def check(text: str, places: list[int], opened: bool) -> None:
        whole = parse(format.parser(opened=opened), [text])
        assert parse(format.parser(opened=opened), cut(text, places)) == whole
        assert parse(format.parser(opened=opened), list(text)) == whole
        if format.wrapper is None:
            assert (of_kind(whole, Thought), of_kind(whole, Content)) == expected_of(format, text, opened)

    check()


@settings(max_examples=examples(30, 300), deadline=None)
@given(texts("<think>", "</think>"), cuts, st.booleans())
def test_the_format_that_appends_hands_on_all_there_is(text: str, places: list[int], opened: bool) -> None:
    format = REASONING_FORMATS["minimax_m2_append_think"]
    said = "<think>" + text if opened and text else text
    expected: list[Piece] = [Content(said)] if said else []
    assert parse(format.parser(opened=opened), cut(text, places)) == expected


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_endless_white_space_costs_no_more_at_its_end(name: str) -> None:
    parser = REASONING_FORMATS[name].parser(opened=True)
    held = []
    for push in ["a", *["\n"] * 2_000, " ", *["\n "] * 200]:
        parser.push(push)
        held.append(len(getattr(parser, "_held", "")))
    assert max(held) < 64


@pytest.mark.parametrize(
    ("name", "tail", "wanted", "continued", "opened"),
    [
        ("qwen3", "<|im_start|>assistant\n", None, "", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", None, "", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", None, "", False),
        ("qwen3", "What is <think>?<|im_end|>\n<|im_start|>assistant\n", None, "", False),
        ("qwen3", "<|im_start|>assistant\n", True, "", False),
        ("qwen3", "assistant\n<think>\nLet me", None, "<think>\nLet me", True),
        ("qwen3", "assistant\n<think>\nHm.</think>Hi", None, "<think>\nHm.</think>Hi", False),
        ("deepseek_r1", "<Assistant>", None, "", True),
        ("deepseek_r1", "<Assistant>", False, "", False),
        ("deepseek_r1", "<Assistant></think>", None, "", False),
        ("deepseek_r1", "<Assistant>The answer", None, "The answer", False),
        ("deepseek_v3", "<Assistant>", None, "", False),
        ("deepseek_v3", "<Assistant>", True, "", True),
        ("deepseek_v3", "<Assistant><think>", None, "", True),
        ("deepseek_v3", "<Assistant><think></think>", True, "", False),
        ("exaone_deep", "\n[|assistant|]<thought>\n", None, "", True),
        ("holo2", "<Assistant>", None, "", True),
        ("minimax_m2_append_think", "]~b]ai\n<think>\n", None, "", True),
        ("mistral", "[/INST]", None, "", False),
        ("granite", "<|assistant|>Here is my thought process:", None, "", True),
    ],
)
def test_the_prompt_says_whether_thinking_has_begun(
    name: str, tail: str, wanted: bool | None, continued: str, opened: bool
) -> None:
    assert REASONING_FORMATS[name].opened(tail, wanted, continued) is opened


def test_a_format_goes_by_vllms_names() -> None:
    vllm = {
        *("deepseek_r1", "deepseek_v3", "ernie45", "glm45", "openai_gptoss", "granite", "holo2", "hunyuan_a13b"),
        *("kimi_k2", "minimax_m2", "minimax_m2_append_think", "mistral", "nemotron_v3", "olmo3", "qwen3", "seed_oss"),
        *("step5", "ling3", "poolside_v1", "minicpmv", "cohere_command4", "deepseek_v41", "glm47"),
        *("step3", "minimax_m3", "cohere_command3", "granite_thinking_parser", "step3p5", "deepseek_v4", "mimo"),
    }
    assert vllm <= REASONING_FORMATS.keys()
    formats: dict[str, ReasoningFormat] = {}
    for format in REASONING_FORMATS.values():
        assert formats.setdefault(format.name, format) is format
