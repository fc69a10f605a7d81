"""gpt-oss's analysis channel, as a format beside the others; its parser is the one for everything it writes."""

import re
from collections.abc import Sequence
from typing import Final

from ..harmony import CHANNEL, END, MARKERS, MESSAGE, HarmonyParser

_OPEN: Final = re.compile(r"<\|channel\|>\s*analysis\s*(?:to=\S+\s*)?<\|message\|>(?:(?!<\|(?:end|start)\|>)(?:.|\n))*\Z")


class HarmonyReasoning:
    name = "gpt_oss"
    aliases = ("openai_gptoss", "harmony")
    markers = MARKERS
    begin = f"{CHANNEL}analysis{MESSAGE}"
    end = END

    def detects(self, template_source: str) -> bool:
        return CHANNEL in template_source and MESSAGE in template_source

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        return _OPEN.search(prompt_tail) is not None

    def parser(self, *, opened: bool, interrupts: Sequence[str] = ()) -> HarmonyParser:
        return HarmonyParser((), opened=opened)
