"""Every reasoning format there is, by name, and which one a chat template is for."""

from collections.abc import Callable, Mapping
from typing import Final

from ..interface import Content, Piece
from .format import ReasoningFormat
from .harmony import HarmonyReasoning
from .marked import MarkedFormat

_SAME_PROMPTS = MarkedFormat("minimax_m2", omits_begin=True)


class AppendFormat:
    """The answer holds everything, and the begin marker that the prompt has written."""

    name = "minimax_m2_append_think"
    aliases: tuple[str, ...] = ()
    markers = _SAME_PROMPTS.markers
    begin = _SAME_PROMPTS.begin
    end = _SAME_PROMPTS.end

    def detects(self, template_source: str) -> bool:
        return False

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        return _SAME_PROMPTS.opened(prompt_tail, wanted, continued)

    def parser(self, *, opened: bool, calls: bool = False) -> "_Append":
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


def _all(*texts: str) -> Callable[[str], bool]:
    return lambda source: all(text in source for text in texts)


def _deepseek_v3(source: str) -> bool:
    return _DEEPSEEK in source and "</think>" in source and "thinking is defined" in source


def _hunyuan(source: str) -> bool:
    return "<think>" in source and "<answer>" in source


_MINIMAX_M2: Final = MarkedFormat(
    "minimax_m2",
    omits_begin=True,
    calls=("<minimax:tool_call>",),
    template_matches=_all("]~b]", "<think>", "<minimax:tool_call>"),
)

_IN_ORDER: Final[tuple[ReasoningFormat, ...]] = (
    # the first whose signs a template shows is the one; the last ones are the most general
    HarmonyReasoning(),
    MarkedFormat("mistral", ("[THINK]",), ("[/THINK]",), aliases=("magistral",), template_matches=_all("[THINK]")),
    MarkedFormat(
        "seed_oss",
        ("<seed:think>",),
        ("</seed:think>",),
        omits_begin=True,
        calls=("<seed:tool_call>",),
        template_matches=_all("<seed:think>"),
    ),
    MarkedFormat("minimax_m3", ("<mm:think>",), ("</mm:think>",), template_matches=_all("<mm:think>")),
    MarkedFormat(
        "gemma4",
        ("<|channel>thought",),
        ("<channel|>",),
        tokens=("<|channel>",),
        calls=("<|tool_call>",),
        template_matches=_all("<|channel>thought", "<channel|>"),
    ),
    MarkedFormat(
        "apriel",
        ("Here are my reasoning steps:",),
        ("[BEGIN FINAL RESPONSE]",),
        template_matches=_all("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    MarkedFormat(
        "cohere_command4",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        wrapper=("<|START_TEXT|>", "<|END_TEXT|>"),
        template_matches=_all("<|START_THINKING|>", "<|START_TEXT|>"),
    ),
    MarkedFormat(
        "cohere_command3",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        wrapper=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        template_matches=_all("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    MarkedFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        template_matches=_all("Here is my thought process:"),
    ),
    _MINIMAX_M2,
    AppendFormat(),
    MarkedFormat(
        "granite_3_3", wrapper=("<response>", "</response>"), template_matches=_all("<|start_of_role|>", "<response>")
    ),
    MarkedFormat("hunyuan_a13b", wrapper=("<answer>", "</answer>"), template_matches=_hunyuan),
    MarkedFormat(
        "ernie45",
        omits_begin=True,
        wrapper=("<response>", "</response>"),
        template_matches=_all("<response>", "</think>"),
    ),
    MarkedFormat(
        "kimi_k2",
        omits_begin=True,
        calls=("<|tool_calls_section_begin|>",),
        template_matches=_all("<|im_middle|>", "</think>"),
    ),
    MarkedFormat(
        "deepseek_v3",
        aliases=("deepseek_v4", "deepseek_v41"),
        omits_begin=True,
        on=False,
        template_matches=_deepseek_v3,
    ),
    MarkedFormat("deepseek_r1", omits_begin=True, template_matches=_all(_DEEPSEEK, "<think>", "</think>")),
    MarkedFormat("glm45", aliases=("glm47",), calls=("<tool_call>",), template_matches=_all("[gMASK]", "</think>")),
    MarkedFormat("step3", aliases=("step3p5",), omits_begin=True),
    MarkedFormat("holo2", omits_begin=True),
    MarkedFormat("olmo3", omits_begin=True),
    MarkedFormat(
        "nemotron_v3",
        aliases=("nemotron",),
        omits_begin=True,
        calls=("<tool_call>", "<TOOLCALL>"),
        template_matches=_all("<SPECIAL_", "</think>"),
    ),
    MarkedFormat("granite_thinking", aliases=("granite_thinking_parser",), calls=("<tool_call>",)),
    MarkedFormat(
        "hy_v3_opensource",
        ("<think:opensource>",),
        ("</think:opensource>",),
        template_matches=_all("hy_Assistant", ":opensource"),
    ),
    MarkedFormat("hy_v3", template_matches=_all("hy_Assistant")),
    # models that write both markers themselves, where their prompt does not
    MarkedFormat("qwen3", aliases=("mimo",), calls=("<tool_call>",), template_matches=_all("</think>")),
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


def reasoning_of(template_source: str, architecture: str) -> ReasoningFormat | None:
    """The format that a model's chat template is for; where it says nothing, the architecture may."""
    for format in _IN_ORDER:
        if format.detects(template_source):
            return format
    name = _BY_ARCHITECTURE.get(architecture)
    return None if name is None else REASONING_FORMATS[name]
