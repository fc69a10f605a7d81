"""The names of a GGUF model's files if it is split: ``NAME-00001-of-00003.gguf`` and so on."""

import re
from collections.abc import Iterable
from typing import Final

_PART: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def part_names(name: str) -> list[str]:
    """The names of all files of a model, one of which is ``name``; only that if it is not split."""
    found = _PART.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        return [name]
    return [_part(found, number) for number in range(1, int(found[3]) + 1)]


def first_parts(names: Iterable[str]) -> list[str]:
    """The names without later files of split models, in order."""
    known = {*names}
    matches = ((name, _PART.fullmatch(name)) for name in sorted(known))
    return [name for name, found in matches if found is None or int(found[2]) == 1 or _part(found, 1) not in known]


def _part(found: re.Match[str], number: int) -> str:
    return f"{found[1]}-{number:05d}-of-{found[3]}.gguf"
