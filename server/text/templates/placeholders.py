"""Media in the text of a prompt: expands the chat template's placeholders.

::

    template          <|vision_start|><|image_pad|><|vision_end|>What is this?
    expanded          <|vision_start|><|image_pad|><|image_pad|>…<|vision_end|>What is this?
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import TemplateError

NUMBER: Final = "{number}"
"""In the text for a piece of media: its number within its modality, from 1 on (Eagle 2.5)."""
INDEX: Final = "{index}"
"""The same from 0 on (MiniCPM-V)."""
AGAIN: Final = "{again}"
"""In a replacement: what stands before it is left out directly behind another piece of media (Idefics2)."""
SPACE: Final = "{space}"
"""In a replacement: a space where a word follows it at once, otherwise nothing (Idefics2)."""
_WORD: Final = re.compile(r"[^\s<]")


class MediaText:
    """Media of one conversation. The k-th placeholder of a modality belongs to its k-th piece of media."""

    def __init__(self, written: Mapping[str, str], replacements: Mapping[str, Sequence[str]]) -> None:
        """By modality: the template's placeholder, and its replacements; both may contain :data:`NUMBER`, and
        replacements :data:`INDEX`, :data:`AGAIN` and :data:`SPACE`."""
        self.written = written
        self._replacements = replacements
        self.order: list[str] = []
        """Modalities in the order of the media in the text, once it is expanded."""

    def texts(self, modality: str) -> Sequence[str]:
        """The text of each piece, for renderers that write tokens instead of text."""
        return self._replacements.get(modality, ())

    def held_by(self, text: str) -> str:
        """A placeholder in a text that no template has written; "" if there is none."""
        patterns = [_pattern(written) for written in self.written.values() if written]
        found = re.search("|".join(patterns), text) if patterns else None
        return "" if found is None else found[0]

    def expand(self, text: str) -> str:
        """``text`` with placeholders replaced; mutates :attr:`order`.

        Raises TemplateError if the numbers of placeholders and media differ: a client may have written a placeholder,
        which cannot be told from the others.
        """
        patterns = {modality: _pattern(self.written[modality]) for modality in self._replacements}
        for modality, given in self._replacements.items():
            found = re.findall(patterns[modality], text)
            if found != [numbered(self.written[modality], place) for place, _ in enumerate(given)]:
                raise TemplateError(self._mismatch(modality, len(found), len(given)))
        following = {
            modality: iter([numbered(each, place) for place, each in enumerate(given)])
            for modality, given in self._replacements.items()
        }
        self.order = []
        end = -1

        def replace(found: re.Match[str]) -> str:
            nonlocal end
            modality = found.lastgroup or ""
            self.order.append(modality)
            before, again, rest = next(following[modality]).rpartition(AGAIN)
            behind, end = found.start() == end, found.end()
            space = " " if _WORD.match(text, end) else ""
            return ("" if again and behind else before) + rest.replace(SPACE, space)

        known = "|".join(f"(?P<{modality}>{pattern})" for modality, pattern in patterns.items())
        return re.sub(known, replace, text)

    def _mismatch(self, modality: str, places: int, count: int) -> str:
        written = numbered(self.written[modality], 0)
        if places > count:
            return (
                f"The conversation holds `{written}` {places} times, which stands for {modality} input, of which there "
                f"is {count}; leave it out of texts."
            )
        return (
            f"The chat template writes `{written}` {places} times for {count} pieces of {modality} input: it does not "
            "take one where it stands, such as in this role."
        )


def _pattern(written: str) -> str:
    return r"[0-9]+".join(map(re.escape, written.split(NUMBER)))


def numbered(text: str, place: int) -> str:
    """The text for the piece of media at ``place`` among those of its modality."""
    return text.replace(NUMBER, str(place + 1)).replace(INDEX, str(place))
