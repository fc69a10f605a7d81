"""Every reasoning format there is, by name, and which one a chat template is for."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..harmony import CHANNEL, END, MARKERS, MESSAGE, START, HarmonyParser
from ..interface import Content, Piece, ReasoningParser
from .marked import ReasoningFormat
from .messages import MessageFormat


class HarmonyReasoning(ReasoningFormat, frozen=True):
    """gpt-oss's analysis channel; its parser is the one for everything that it writes."""

    markers = MARKERS

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        header, body, said = prompt_tail.rpartition(MESSAGE)
        if not body or START in said or END in said:
            return False
        return f"{CHANNEL}analysis" in header[max(header.rfind(START), 0) :]

    def parser(self, *, opened: bool, calls: bool = False) -> ReasoningParser:
        return HarmonyParser((), opened=opened)


class AppendFormat(ReasoningFormat, frozen=True):
    """The answer holds everything, and the begin marker that the prompt has written."""

    def parser(self, *, opened: bool, calls: bool = False) -> ReasoningParser:
        return _Append(self.begin if opened else "")


class _Append:
    thinking = False

    def __init__(self, missing: str) -> None:
        self._missing = missing

    @property
    def done(self) -> bool:
        return not self._missing

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        missing, self._missing = self._missing, ""
        return [Content(missing + text)]

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return []


_DEEPSEEK: Final = "\uff5cAssistant\uff5c"
_DSML: Final = tuple(f"<\uff5cDSML\uff5c{tag}>" for tag in ("function_calls", "tool_calls", " calls"))
"""In front of calls, since V3.2."""

_MUSE: Final = MessageFormat(
    "muse",
    ("to=self<|message|>",),
    ("<|eom|>", "<|eot|>"),
    aliases=("musespark1x",),
    headers=("<|start|>",),
    body="<|message|>",
    thinks=("", "self"),
    says=("user", "commentary"),
    hides=("developer",),
    signs=("to=self", "<|message|>", "<|eom|>"),
)

_IN_ORDER: Final[tuple[ReasoningFormat, ...]] = (
    # the first whose signs a template shows is the one; the last ones are the most general
    HarmonyReasoning(
        "gpt_oss",
        (f"{CHANNEL}analysis{MESSAGE}",),
        (END,),
        aliases=("openai_gptoss", "harmony"),
        signs=(CHANNEL, MESSAGE),
    ),
    ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",), aliases=("magistral",), signs=("[THINK]",)),
    ReasoningFormat(
        "seed_oss",
        ("<seed:think>",),
        ("</seed:think>",),
        omits_begin=True,
        calls=("<seed:tool_call>",),
        signs=("<seed:think>",),
    ),
    ReasoningFormat(
        "kimi_k3",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        omits_begin=True,
        calls=("<|open|>tools<|sep|>",),
        wrapper=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        closings=("<|close|>message<|sep|>",),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        signs=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    MessageFormat(
        "inkling",
        ("<|content_thinking|>",),
        ("<|end_message|>", "<|content_model_end_sampling|>"),
        calls=("<|content_invoke_tool_json|>",),
        headers=("<|message_model|>",),
        contents=("<|content_text|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>"),
        signs=("<|message_model|>", "<|content_thinking|>"),
    ),
    _MUSE,
    replace(_MUSE, name="muse_glimmer", aliases=(), thinks=("self",), says=("", "user"), hides=()),
    ReasoningFormat(
        "k2_horizon",
        ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        omits_begin=True,
        calls=("<ifm|tool_calls>",),
        signs=("<ifm|think>",),
    ),
    ReasoningFormat(
        "plamo3",
        ("<|plamo:begin_think:plamo|>",),
        ("<|plamo:end_think:plamo|>",),
        omits_begin=True,
        calls=("<|plamo:begin_tool_requests:plamo|>",),
        tokens=("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
        signs=("plamo:begin_think",),
    ),
    ReasoningFormat("exaone_deep", ("<thought>",), ("</thought>",), signs=("[|assistant|]", "<thought>")),
    ReasoningFormat(
        "minimax_m3",
        ("<mm:think>",),
        ("</mm:think>",),
        calls=("]<]minimax[>[<tool_call>",),
        signs=("<mm:think>",),
    ),
    ReasoningFormat(
        "gemma4",
        ("<|channel>thought", "<|channel>"),
        ("<channel|>",),
        tokens=("<|channel>",),
        calls=("<|tool_call>",),
        signs=("<|channel>thought", "<channel|>"),
    ),
    ReasoningFormat(
        "apriel",
        ("Here are my reasoning steps:",),
        ("[BEGIN FINAL RESPONSE]",),
        signs=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ReasoningFormat(
        "cohere_command4",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        wrapper=("<|START_TEXT|>", "<|END_TEXT|>"),
        signs=("<|START_THINKING|>", "<|START_TEXT|>"),
    ),
    ReasoningFormat(
        "cohere_command3",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        wrapper=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        signs=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        signs=("Here is my thought process:",),
    ),
    ReasoningFormat(
        "minimax_m2",
        omits_begin=True,
        calls=("<minimax:tool_call>",),
        signs=("]~b]", "<think>", "<minimax:tool_call>"),
    ),
    AppendFormat("minimax_m2_append_think", omits_begin=True),
    ReasoningFormat("granite_3_3", wrapper=("<response>", "</response>"), signs=("<|start_of_role|>", "<response>")),
    ReasoningFormat("hunyuan_a13b", wrapper=("<answer>", "</answer>"), signs=("<think>", "<answer>")),
    ReasoningFormat(
        "ernie45",
        omits_begin=True,
        wrapper=("<response>", "</response>"),
        signs=("<response>", "</think>"),
    ),
    ReasoningFormat(
        "kimi_k2",
        omits_begin=True,
        calls=("<|tool_calls_section_begin|>",),
        signs=("<|im_middle|>", "</think>"),
    ),
    ReasoningFormat(
        "deepseek_v3",
        aliases=("deepseek_v4", "deepseek_v41"),
        omits_begin=True,
        on=False,
        calls=_DSML,
        signs=(_DEEPSEEK, "</think>", "thinking is defined"),
    ),
    ReasoningFormat(
        "deepseek_r1",
        aliases=("step5",),
        omits_begin=True,
        calls=_DSML,
        signs=(_DEEPSEEK, "<think>", "</think>"),
    ),
    ReasoningFormat(
        "glm45",
        aliases=("glm47", "ling3", "poolside_v1"),
        calls=("<tool_call>",),
        mentions_calls=True,
        signs=("[gMASK]", "</think>"),
    ),
    ReasoningFormat("step3", aliases=("step3p5",), omits_begin=True),
    ReasoningFormat("holo2", omits_begin=True),
    ReasoningFormat("olmo3", omits_begin=True),
    ReasoningFormat(
        "nemotron_v3",
        aliases=("nemotron",),
        omits_begin=True,
        calls=("<tool_call>", "<TOOLCALL>"),
        mentions_calls=True,
        signs=("<SPECIAL_", "</think>"),
    ),
    ReasoningFormat(
        "granite_thinking", aliases=("granite_thinking_parser",), calls=("<tool_call>",), mentions_calls=True
    ),
    ReasoningFormat(
        "hy_v3_opensource",
        ("<think:opensource>",),
        ("</think:opensource>",),
        signs=("hy_Assistant", ":opensource"),
    ),
    ReasoningFormat("hy_v3", signs=("hy_Assistant",)),
    ReasoningFormat("hy_v4", omits_begin=True, calls=("<tool_calls>",)),
    # models that write both markers themselves, where their prompt does not
    ReasoningFormat(
        "qwen3", aliases=("mimo", "minicpmv"), calls=("<tool_call>",), mentions_calls=True, signs=("</think>",)
    ),
)

REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {
    name: format for format in _IN_ORDER for name in (format.name, *format.aliases)
}

_BY_ARCHITECTURE: Final = {
    "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "SeedOssForCausalLM": "seed_oss",
    "Step3VLForConditionalGeneration": "step3",
}
_CERTAIN: Final = {
    **dict.fromkeys(("HYV4ForCausalLM", "HYV4VLForConditionalGeneration"), "hy_v4"),
    "MuseGlimmerForConditionalGeneration": "muse_glimmer",
}
"""Of architectures whose templates look like those of others."""
_SUFFIX: Final = re.compile(r"<(?:think|tool_calls?|arg_key|arg_value)(:[^\s<>'\"{}]+)>")


def marker_suffix(texts: str) -> str:
    """The suffix that the markers of a checkpoint of Hunyuan V4 have, with its colon; empty without one. ``texts`` are
    its chat template and its special tokens."""
    found = _SUFFIX.search(texts)
    return "" if found is None else found[1]


def with_suffix(format: ReasoningFormat, suffix: str) -> ReasoningFormat:
    """The format of a checkpoint whose markers have the suffix."""

    def each(markers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{marker[:-1]}{suffix}>" for marker in markers)

    return replace(format, begins=each(format.begins), ends=each(format.ends), calls=each(format.calls))


def reasoning_of(template_source: str, architecture: str) -> ReasoningFormat | None:
    """The format that a model's chat template is for; where it says nothing, the architecture may."""
    if architecture in _CERTAIN:
        return REASONING_FORMATS[_CERTAIN[architecture]]
    for format in _IN_ORDER:
        if format.detects(template_source):
            return format
    name = _BY_ARCHITECTURE.get(architecture)
    return None if name is None else REASONING_FORMATS[name]
