"""Reasoning between a marker that begins it and one that ends it: nearly every family."""

import re
from enum import Enum
from functools import cached_property
from typing import Final

import msgspec

from ..interface import Content, Piece, ReasoningParser, Thought
from ..markers import scanner


class ReasoningFormat(msgspec.Struct, frozen=True, dict=True):
    """How a family of models marks its reasoning."""

    name: str
    begins: tuple[str, ...] = ("<think>",)
    """Any of them; the first is the one that counts as the model's own."""
    ends: tuple[str, ...] = ("</think>",)
    aliases: tuple[str, ...] = ()
    """Other names of the format."""
    omits_begin: bool = False
    """The model may think without writing that it begins."""
    on: bool = True
    """Whether it thinks where neither prompt nor request says; only matters with ``omits_begin``."""
    calls: tuple[str, ...] = ()
    """Markers of tool calls, if those end reasoning too."""
    mentions_calls: bool = False
    """Such a marker is plain text, which reasoning may also mention: it counts only where a call follows."""
    wrapper: tuple[str, str] | None = None
    """Markers around the answer, which are not part of it."""
    closings: tuple[str, ...] = ()
    """Markers behind reasoning or answer that belong to neither."""
    tokens: tuple[str, ...] = ()
    """Special tokens that are part of a marker."""
    signs: tuple[str, ...] = ()
    """Texts of a chat template of this family, which must all be present; empty if templates do not identify it."""

    @property
    def begin(self) -> str:
        """The marker where reasoning begins, in the output or at the end of the prompt."""
        return self.begins[0]

    @property
    def end(self) -> str:
        """The marker where reasoning ends."""
        return self.ends[0]

    @cached_property
    def markers(self) -> frozenset[str]:
        """Texts that the parser must see, also where the tokenizer has them as special tokens."""
        return frozenset((*self.begins, *self.ends, *self.tokens, *(self.wrapper or ()), *self.closings))

    def detects(self, template_source: str) -> bool:
        """Whether a chat template is of this family."""
        return bool(self.signs) and all(sign in template_source for sign in self.signs)

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        """Whether the output after this prompt begins inside the model's reasoning.

        ``wanted``: whether the request enables thinking, if it says so. ``continued``: the existing text of a message
        that the model continues.
        """
        if continued.strip():
            last = max(continued.rfind(text) for text in self.begins)
            return last > max(continued.rfind(text) for text in self.ends)
        tail = prompt_tail.rstrip()
        if tail.endswith(self.begins):
            return True
        if tail.endswith(self.ends):
            return False
        return self.omits_begin and (self.on if wanted is None else wanted)

    def parser(self, *, opened: bool, calls: bool = False) -> ReasoningParser:
        """``calls``: tools may be called, and in some families a call ends reasoning that has no end marker."""
        return MarkedParser(self, opened, self.calls if calls else ())


MAX_SPACE: Final = 64
"""Characters of white space behind the marker of a call."""
_CALLED: Final = re.compile(r"\w|\s{0,64}[{\[<]|\s{0,32}\n\s{0,32}\w")
"""What follows the marker of a call where one is made: its name, its JSON, or its first tag. Prose has a blank or a
punctuation mark there."""


class _Phase(Enum):
    BEFORE = 1  # nothing but white space so far
    THINKING = 2
    AFTER = 3  # newlines that follow the end of something
    WRAPPED = 4  # the answer, inside its wrapper
    ANSWER = 5


class MarkedParser:
    """Reasoning comes first or not at all; a marker later on is part of the answer.

    Newlines at either end of the reasoning belong to its markers, and so do those before the answer. White space
    before a marker that begins the whole is dropped with it, and so is an end marker of nothing.
    """

    __slots__ = (
        *("_format", "_held", "_interrupts", "_lead", "_newlines", "_opened", "_phase", "_space", "_stops", "_wrapper"),
    )

    def __init__(self, format: ReasoningFormat, opened: bool, interrupts: tuple[str, ...]) -> None:
        self._format = format
        self._opened = opened
        self._wrapper = format.wrapper
        self._interrupts = interrupts
        self._stops = scanner((*format.ends, *interrupts))
        self._phase = _Phase.BEFORE
        self._held = ""
        self._space: list[str] = []
        """White space before all other text."""
        self._newlines = 0
        """Newlines held back, before ``_held``."""
        self._lead = True
        """No reasoning yet."""

    @property
    def thinking(self) -> bool:
        return self._phase is _Phase.THINKING or (self._opened and self._phase is _Phase.BEFORE)

    @property
    def done(self) -> bool:
        return self._phase is _Phase.ANSWER

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        if not text:
            return pieces
        if self._phase is _Phase.ANSWER:
            pieces.append(Content(text))
            return pieces
        if self._phase is _Phase.THINKING and self._in_the_midst(text):
            pieces.append(Thought(text))
            return pieces
        if self._phase is _Phase.BEFORE and not self._held and text.isspace():
            self._space.append(text)
            return pieces
        self._held += text
        while self._held:
            phase = self._phase
            match phase:
                case _Phase.BEFORE:
                    self._begin()
                case _Phase.THINKING:
                    self._think(pieces)
                case _Phase.AFTER:
                    self._leave_newlines()
                case _Phase.WRAPPED:
                    self._answer_wrapped(pieces)
                case _Phase.ANSWER:
                    pieces.append(Content(self._held))
                    self._held = ""
            if self._phase is phase:
                break
        return pieces

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces: list[Piece] = []
        if self._phase is _Phase.BEFORE:
            begun = _without(self._held.lstrip(), self._format.begins)
            self._held = self._take_space() + self._held if begun is None else begun
            if self._opened or begun is not None:
                self._phase = _Phase.THINKING
        rest, self._held = self._held, ""
        if self._phase is _Phase.THINKING:
            if rest.startswith(self._interrupts):
                self._newlines = 0
                pieces.append(Content(rest))
            else:
                self._add_thought(rest, pieces)
            return pieces
        rest = "\n" * self._newlines + rest
        self._newlines = 0
        if rest:
            pieces.append(Content(rest))
        return pieces

    def _in_the_midst(self, text: str) -> bool:
        """Whether a text is all reasoning and leaves nothing to hold back: as most are."""
        return not (self._held or self._newlines or self._lead or text[-1] == "\n") and self._stops.apart(text)

    def _take_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space

    def _begin(self) -> None:
        format = self._format
        text = self._held.lstrip()
        expected = format.begins
        if any(len(text) < len(marker) and marker.startswith(text) for marker in expected):
            return  # also where the text is a shorter marker already
        if (after := _without(text, expected)) is not None:
            self._go(_Phase.THINKING, after)
            return
        if not self._opened:
            if (after := _without(text, format.ends)) is not None:
                self._go(_Phase.AFTER, after)
                return
            expected += format.ends
            if self._wrapper is not None:
                if text.startswith(self._wrapper[0]):
                    self._unwrap(text)
                    return
                expected += self._wrapper[:1]
        if any(marker.startswith(text) for marker in expected):
            return
        self._held = self._take_space() + self._held
        self._phase = _Phase.THINKING if self._opened else _Phase.ANSWER

    def _go(self, phase: _Phase, rest: str) -> None:
        self._space.clear()
        self._phase = phase
        self._held = rest

    def _think(self, pieces: list[Piece]) -> None:
        held = self._held
        found = self._stops.search(held)
        while found is not None and found.group() in self._interrupts and self._format.mentions_calls:
            rest = held[found.end() :]
            if _CALLED.match(rest):
                break
            if len(rest) < MAX_SPACE and not rest.strip():  # what follows is not known yet
                self._add_thought(held[: found.start()], pieces)
                self._held = held[found.start() :]
                return
            self._add_thought(held[: found.end()], pieces)
            held = rest
            found = self._stops.search(held)
        if found is None:
            settled = self._stops.held(held)
            self._held = held[settled:]
            self._add_thought(held[:settled], pieces)
            return
        self._add_thought(held[: found.start()], pieces)
        self._newlines = 0
        if found.group() in self._format.ends:
            self._go(_Phase.AFTER, held[found.end() :])
        else:
            self._go(_Phase.ANSWER, held[found.start() :])

    def _add_thought(self, text: str, pieces: list[Piece]) -> None:
        """Adds reasoning, except newlines that may be its last."""
        if self._lead:
            text = text.lstrip("\n")
            if not text:
                return
            self._lead = False
        kept = text.rstrip("\n")
        if kept:
            pieces.append(Thought("\n" * self._newlines + kept))
            self._newlines = len(text) - len(kept)
        else:
            self._newlines += len(text)

    def _leave_newlines(self) -> None:
        text = self._held.lstrip("\n")
        while (after := _without(text, self._format.closings)) is not None:
            text = after.lstrip("\n")
        self._held = text
        if not text or any(marker.startswith(text) for marker in self._format.closings):
            return
        if self._wrapper is not None:
            if text.startswith(self._wrapper[0]):
                self._unwrap(text)
                return
            if self._wrapper[0].startswith(text):
                return
        self._phase = _Phase.ANSWER

    def _unwrap(self, text: str) -> None:
        assert self._wrapper is not None
        self._lead = True
        self._go(_Phase.WRAPPED, text[len(self._wrapper[0]) :])

    def _answer_wrapped(self, pieces: list[Piece]) -> None:
        assert self._wrapper is not None
        end = scanner(self._wrapper[1:])
        text = self._held
        found = end.search(text)
        settled = end.held(text) if found is None else found.start()
        rest = text[settled:]
        text = text[:settled]
        if self._lead:
            text = text.lstrip("\n")
            self._lead = not text
        kept = text.rstrip("\n")
        if kept:
            pieces.append(Content("\n" * self._newlines + kept))
            self._newlines = 0
        self._newlines += len(text) - len(kept)
        if found is None:
            self._held = rest
            return
        self._newlines = 0
        self._wrapper = None
        self._go(_Phase.AFTER, rest[len(found.group()) :])


def _without(text: str, markers: tuple[str, ...]) -> str | None:
    """The text behind the marker that it begins with; None without one."""
    for marker in markers:
        if text.startswith(marker):
            return text[len(marker) :]
    return None
