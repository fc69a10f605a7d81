"""MiniMax M2's reasoning left in its answer, for clients that send it back as they got it."""

from ..interface import Content, Piece
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
