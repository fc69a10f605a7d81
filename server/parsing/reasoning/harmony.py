"""gpt-oss's analysis channel, as a format beside the others; its parser is the one for everything it writes."""

from ..harmony import CHANNEL, END, MARKERS, MESSAGE, START, HarmonyParser


class HarmonyReasoning:
    name = "gpt_oss"
    aliases = ("openai_gptoss", "harmony")
    markers = MARKERS
    begin = f"{CHANNEL}analysis{MESSAGE}"
    end = END

    def detects(self, template_source: str) -> bool:
        return CHANNEL in template_source and MESSAGE in template_source

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        header, body, said = prompt_tail.rpartition(MESSAGE)
        if not body or START in said or END in said:
            return False
        return f"{CHANNEL}analysis" in header[max(header.rfind(START), 0) :]

    def parser(self, *, opened: bool, calls: bool = False) -> HarmonyParser:
        return HarmonyParser((), opened=opened)
