"""Finds offsets into tensors that 32 bits may not hold, in the IR of a kernel.

Triton adds an offset to a pointer at the offset's own width. A token times a row's width, or a block times its stride,
passes 2^31 on a GPU of 80 GB, and then points elsewhere. Values are bounded from above: constants and ranges by
themselves; numbers of programs, arguments and loaded numbers by :data:`MOST`, which their products exceed.
"""

import re

MOST = 1 << 20
"""Tokens, sequences, rows of a weight, its inputs, or a stride between them."""
_LIMIT = 1 << 31
_ASSIGNED = re.compile(r"^\s*(%[\w#:, %]+?) = (\w+(?:\.\w+)*)(.*)$")
_NAME = re.compile(r"%[\w#]+")
_CONSTANT = re.compile(r"(?:dense<)?(-?\d+|true|false)>?\s*:")
_SAME = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "arith.extsi", "arith.extui",
    "arith.trunci", "tt.join", "tt.cat", "tt.unsplat",
)  # fmt: skip


def narrow_offsets(ir: str) -> list[str]:
    """Returns the additions to pointers, as text of the ``ir`` (TTIR), whose offset of 32 bits may be too large."""
    bounds: dict[str, int] = {}
    found = []
    for line in ir.splitlines():
        text = re.sub(r" loc\(.*$", "", line)
        if "scf.for" in text:
            _enter_loop(text, bounds)
        if (match := _ASSIGNED.match(text)) is None:
            continue
        names, operation, rest = match.groups()
        values = [bounds.get(name, MOST) for name in _NAME.findall(rest.split(" : ")[0])]
        if operation == "tt.addptr":
            offset = _NAME.findall(rest)[1]
            if text.rstrip().endswith(("i32", "i32>")) and bounds.get(offset, MOST) >= _LIMIT:
                found.append(text.strip())
            continue
        bound = _bound(operation, rest, values)
        for name in _NAME.findall(names):
            bounds[name.split(":")[0]] = bound
    return found


def _enter_loop(text: str, bounds: dict[str, int]) -> None:
    """A loop's variable is below the end of its range."""
    if match := re.search(r"scf\.for (?:unsigned )?(%\w+) = (%\w+) to (%\w+)", text):
        bounds[match[1]] = bounds.get(match[3], MOST)


def _bound(operation: str, rest: str, values: list[int]) -> int:
    match operation:
        case "arith.constant":
            number = _CONSTANT.search(rest)
            return MOST if number is None else int(number[1]) if number[1].lstrip("-").isdigit() else 1
        case "tt.get_program_id":
            return MOST if rest.strip().startswith("x") else 65534
        case "tt.make_range":
            end = re.search(r"end = (\d+)", rest)
            return MOST if end is None else int(end[1]) - 1
        case "arith.muli":
            return values[0] * values[1]
        case "arith.addi" | "arith.ori" | "arith.xori":
            return sum(map(abs, values))
        case "arith.subi":
            return abs(values[0])
        case "arith.divsi" | "arith.divui" | "arith.ceildivsi":
            return abs(values[0]) // max(1, abs(values[1])) if values[1] != MOST else abs(values[0])
        case "arith.remsi" | "arith.remui" | "arith.minsi" | "arith.minui":
            return min(map(abs, values))
        case "arith.andi":
            return min((value for value in values if value >= 0), default=MOST)
        case "arith.maxsi" | "arith.maxui":
            return max(values)
        case "arith.select":
            return max(values[1:])
        case "arith.shrsi" | "arith.shrui":
            return abs(values[0]) >> min(max(values[1], 0), 63) if values[1] != MOST else abs(values[0])
        case "arith.shli":
            return abs(values[0]) << min(max(values[1], 0), 31)
        case _ if operation in _SAME:
            return max(values, default=MOST)
        case _:
            return MOST
