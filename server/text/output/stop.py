"""Stop strings in a text that arrives in pieces.

One Aho-Corasick automaton over all stop strings (doi:10.1145/360825.360855): its state after a text is the longest
suffix that begins a stop string, which is both the text to hold back and the whole state. The cost per character does
not depend on the number or the length of the strings.
"""

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final


class _Node:
    __slots__ = ("depth", "fail", "hold", "next", "stop")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: dict[str, _Node] = {}
        self.fail = self
        self.stop = -1
        self.hold = 0


class StopStrings:
    """The stop strings of one request, compiled; shared by its choices.

    Raises ``ValueError`` for an empty string, which would match everywhere.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("A stop string is empty; give at least one character.")
        self.stops: Final = tuple(stops)
        self.root: Final = _Node(0)
        for number, stop in enumerate(self.stops):
            node = self.root
            for char in stop:
                node = node.next.setdefault(char, _Node(node.depth + 1))
            if node.stop < 0:
                node.stop = number
        self._link()
        starts = "".join(re.escape(char) for char in self.root.next)
        self.candidate: Final = re.compile(f"[{starts}]") if starts else re.compile(r"(?!)")
        """Finds the next character that could begin a stop string."""

    def _link(self) -> None:
        """Sets fail links in breadth-first order, so that a node's link is complete before its children's."""
        queue: deque[_Node] = deque()
        root = self.root
        for child in root.next.values():
            child.fail = root
            queue.append(child)
        while queue:
            node = queue.popleft()
            fail = node.fail
            if fail.stop >= 0 and (node.stop < 0 or fail.stop < node.stop):
                node.stop = fail.stop
            # a finished stop string that was not allowed to match is not worth holding for itself
            node.hold = node.depth if node.next else fail.hold
            for char, child in node.next.items():
                link = fail
                while char not in link.next and link is not root:
                    link = link.fail
                child.fail = link.next.get(char, root)
                queue.append(child)


compiled_stops: Final = lru_cache(maxsize=8)(StopStrings)
"""Makes :class:`StopStrings`, shared by all prompts of a request.

The largest allowed set takes about 10 ms and 5 MB, which is fine once, but not for each of a thousand prompts.
"""


class StopMatcher:
    """Watches the text of one choice.

    The match is the one that ends first; of several that end at the same character, the first in
    list order. How the text is cut into pieces makes no difference. Text is held back exactly as
    long as it could still become a stop string, and with ``include`` not at all, since then the
    stop string is part of the text.
    """

    __slots__ = ("_compiled", "_held", "_include", "_node", "matched")

    def __init__(self, compiled: StopStrings, *, include: bool = False) -> None:
        self._compiled = compiled
        self._include = include
        self._node = compiled.root
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, armed: bool = True) -> str:
        """Takes the next piece and returns the text that became final.

        A stop string that ends in a piece that is not ``armed`` does not match; one that begins there and ends later
        does. After :attr:`matched` is set, it returns nothing.
        """
        if self.matched is not None:
            return ""
        root = self._compiled.root
        node = self._node
        position, length = 0, len(text)
        while position < length:
            if node is root:
                found = self._compiled.candidate.search(text, position)
                if found is None:
                    break
                position = found.start()
            char = text[position]
            position += 1
            while char not in node.next and node is not root:
                node = node.fail
            node = node.next.get(char, root)
            if node.stop >= 0 and armed:
                return self._match(text, position, node.stop)
        self._node = node
        if self._include:
            return text
        hold = node.hold
        if not hold and not self._held:
            return text
        whole = self._held + text
        cut = len(whole) - hold
        self._held = whole[cut:]
        return whole[:cut]

    def _match(self, text: str, end: int, number: int) -> str:
        stop = self._compiled.stops[number]
        self.matched = stop
        held, self._held = self._held, ""
        if self._include:
            return text[:end]
        return (held + text[:end])[: -len(stop)]

    def finish(self) -> str:
        """The text held back, which is final when no more can come."""
        held, self._held = self._held, ""
        return held
