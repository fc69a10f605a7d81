"""A batch in a few characters: ``8q1kv4k_2q512kv8k``.

    spec     = group ("_" group)*
    group    = [count] "q" number ["kv" number]
    number   = digits ["k"]                        k is 1024

``8q1kv4k`` is eight sequences with one new token each and 4096 keys, those of the new tokens included;
``q2k`` one sequence of 2048 new tokens and nothing before them.
"""

import re
from dataclasses import dataclass

from ..tool import UsageError

_GROUP = re.compile(r"(?P<count>\d+)?q(?P<q>\d+k?)(?:kv(?P<kv>\d+k?))?", flags=re.ASCII)
MAX_SEQUENCES = 65536
MAX_LENGTH = 1 << 24


class SpecError(UsageError):
    """The text is no batch."""


@dataclass(frozen=True)
class BatchSpec:
    """``sequences``: (new tokens, keys) of each."""

    text: str
    sequences: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        return sum(new for new, _ in self.sequences)

    @property
    def pairs(self) -> int:
        """Query-key pairs that causal attention computes."""
        return sum(new * (keys - new) + new * (new + 1) // 2 for new, keys in self.sequences)

    @property
    def keys(self) -> int:
        return sum(keys for _, keys in self.sequences)

    @property
    def decode_rows(self) -> int:
        """Leading sequences of one new token each."""
        return next((i for i, (new, _) in enumerate(self.sequences) if new != 1), len(self.sequences))


def parse_spec(text: str) -> BatchSpec:
    """Decodes come first, as a scheduler orders them. Raises :class:`SpecError` saying what is wrong."""
    groups: list[tuple[int, int]] = []
    for part in text.split("_"):
        found = _GROUP.fullmatch(part)
        if found is None:
            raise SpecError(f"{part!r} in {text!r} is no group of sequences; expected one such as 8q1kv4k or q512")
        new, count = _number(found["q"]), int(found["count"] or 1)
        keys = _number(found["kv"]) if found["kv"] else new
        if not 0 < new <= keys <= MAX_LENGTH or not 0 < count <= MAX_SEQUENCES - len(groups):
            raise SpecError(
                f"{part!r} in {text!r}: expected 1 to {MAX_SEQUENCES} sequences of at least one new token, "
                "and no fewer keys than those"
            )
        groups += [(new, keys)] * count
    return BatchSpec(text, tuple(sorted(groups, key=lambda group: group[0] != 1)))


def _number(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)
