"""Converts EBNF grammars of llama.cpp (GBNF), xgrammar and vLLM to Lark.

Rules that are not recursive become one regular expression, so that matching is by characters, however the grammar was
divided into rules. Clients' names are not kept.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from stentor.protocols.common.errors import BadRequest, refused

MAX_DEPTH: Final = 64
MAX_REPEATS: Final = 10_000

_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)|(?P<begin>[A-Za-z_][A-Za-z0-9_-]*)(?=\s*::=)|(?P<is>::=)|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)"""
    r"""|"(?P<text>(?:\\.|[^"\\\n])*)"|'(?P<single>(?:\\.|[^'\\\n])*)'|\[(?P<class>\^?(?:\\.|[^\]\\])*)\]"""
    r"|(?P<counts>\{[0-9]{1,9}(?:,[0-9]{0,9})?\}|\{,[0-9]{1,9}\})|(?P<mark>[|()*+?.])",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_SHORT: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x20\t\n\r\f\v"}

Literal = Callable[[str], str]


class Node(NamedTuple):
    """A part of a rule's right side."""

    kind: str
    """``text``, ``class`` and ``name`` have a value; ``sequence``, ``either`` and ``repeat`` have parts."""
    value: str = ""
    parts: tuple["Node", ...] = ()
    least: int = 0
    most: int | None = 0


def is_ebnf(source: str) -> bool:
    """Whether it has ``::=`` outside of texts and comments, which Lark has not."""
    return re.search(r"^\s*[A-Za-z_][A-Za-z0-9_-]*\s*::=", source, re.MULTILINE) is not None


def lark_of_ebnf(source: str, field: str, literal: Literal) -> str:
    """The grammar in Lark; ``literal`` writes a text that may hold special tokens. Raises BadRequest."""
    rules = _Reader(source, field).rules()
    return _Writer(rules, literal).source()


class _Reader:
    def __init__(self, source: str, field: str) -> None:
        self._field = field
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        at = 0
        while at < len(source):
            found = _TOKEN.match(source, at)
            if found is None:
                raise self._refusal(f"line {source.count(chr(10), 0, at) + 1} is not understood")
            kind = found.lastgroup or ""
            if kind != "space":
                self._tokens.append((kind, found[kind], source.count("\n", 0, at) + 1 if len(source) < 4096 else 0))
            at = found.end()

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        while self._at < len(self._tokens):
            name = self._take("begin")
            self._take("is")
            if name in rules:
                raise self._refusal(f"the rule `{name[:64]}` is defined twice")
            rules[name] = self._either(0)
        if not rules:
            raise self._refusal("the grammar has no rules")
        for node in rules.values():
            for part in _parts_of(node):
                if part.kind == "name" and part.value not in rules:
                    raise self._refusal(f"the rule `{part.value[:64]}` is not defined")
        start = "root" if "root" in rules else next(iter(rules))
        return {start: rules.pop(start), **rules}

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", "")

    def _take(self, kind: str) -> str:
        found, value = self._peek()
        if found != kind:
            line = self._tokens[self._at][2] if self._at < len(self._tokens) else 0
            wanted = "a rule's name" if kind == "begin" else "`::=`"
            raise self._refusal(f"{wanted} is expected{f' in line {line}' if line else ''}")
        self._at += 1
        return value

    def _either(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._refusal(f"brackets are nested deeper than {MAX_DEPTH} levels")
        options = [self._sequence(depth)]
        while self._peek() == ("mark", "|"):
            self._at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Node("either", parts=tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            kind, value = self._peek()
            if kind in ("text", "single"):
                part = Node("text", _unescaped(value))
            elif kind == "class":
                part = Node("class", self._characters(value))
            elif kind == "name":
                part = Node("name", value)
            elif (kind, value) == ("mark", "."):
                part = Node("class", r"[\x00-\U{10ffff}]".replace(r"\U", r"\u"))
            elif (kind, value) == ("mark", "("):
                self._at += 1
                part = self._either(depth + 1)
                if self._peek() != ("mark", ")"):
                    raise self._refusal("a bracket is not closed")
            else:
                break
            self._at += 1
            parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else Node("sequence", parts=tuple(parts))

    def _repeated(self, part: Node) -> Node:
        kind, value = self._peek()
        if kind == "mark" and value in "?*+":
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[value]
        elif kind == "counts":
            low, comma, high = value[1:-1].partition(",")
            least = int(low or 0)
            most = int(high) if high else None if comma else least
            if least > MAX_REPEATS or (most or 0) > MAX_REPEATS or (most is not None and most < least):
                raise self._refusal(f"a repeat is not within 0 and {MAX_REPEATS}")
        else:
            return part
        self._at += 1
        return self._repeated(Node("repeat", parts=(part,), least=least, most=most))

    def _characters(self, written: str) -> str:
        """A class in the syntax of Rust's regex crate, all of whose members are spelled by number."""
        negated = written.startswith("^")
        members: list[str] = []
        units = list(_ESCAPE.finditer(written, 1 if negated else 0))
        index = 0
        while index < len(units):
            letter = units[index][4]
            if letter is not None and letter in _SHORT:
                members.append(_SHORT[letter])
                index += 1
                continue
            low = self._character(units[index])
            high = low
            if index + 2 < len(units) and units[index + 1][5] == "-":
                high = self._character(units[index + 2])
                index += 2
            if ord(low) > ord(high):
                raise self._refusal("a range of characters ends before it begins")
            members.append(f"{_spelled(low)}-{_spelled(high)}")
            index += 1
        if not members:
            raise self._refusal("a class of characters is empty")
        return f"[{'^' if negated else ''}{''.join(members)}]"

    def _character(self, unit: "re.Match[str]") -> str:
        character = _character(unit)
        if "\ud800" <= character <= "\udfff":
            raise self._refusal("half a character stands in a class")
        return character

    def _refusal(self, why: str) -> BadRequest:
        return refused(self._field, why, "invalid_value")


class _Writer:
    def __init__(self, rules: dict[str, Node], literal: Literal) -> None:
        self._rules = rules
        self._literal = literal
        self._regular = self._regular_rules()
        self._names = {
            name: (f"T{index}" if name in self._regular else f"n{index}") for index, name in enumerate(rules)
        }
        self._extra: list[str] = []

    def source(self) -> str:
        start = self._names[next(iter(self._rules))]
        lines = [f"start: {start}"]
        for name, node in self._rules.items():
            lines.append(f"{self._names[name]}: {self._written(node, name in self._regular)}")
        return "\n".join([*lines, *self._extra]) + "\n"

    def _regular_rules(self) -> set[str]:
        """Rules without recursive references and special tokens."""
        names = {name: _names_in(node) for name, node in self._rules.items()}
        regular: set[str] = set()
        waiting = {name: len(needed) for name, needed in names.items()}
        users: dict[str, list[str]] = {name: [] for name in names}
        for name, needed in names.items():
            for other in needed:
                users[other].append(name)
        ready = [name for name, count in waiting.items() if count == 0]
        while ready:
            name = ready.pop()
            if not self._has_special(self._rules[name]):
                regular.add(name)
                for user in users[name]:
                    waiting[user] -= 1
                    if waiting[user] == 0:
                        ready.append(user)
        return regular

    def _has_special(self, node: Node) -> bool:
        return any(
            part.kind == "text" and "<[" in re.sub(r'"(?:\\.|[^"\\])*"', "", self._literal(part.value))
            for part in _parts_of(node)
        )

    def _is_regular(self, node: Node) -> bool:
        return all(name in self._regular for name in _names_in(node)) and not self._has_special(node)

    def _written(self, node: Node, terminal: bool) -> str:
        if not terminal and node.kind in ("either", "repeat", "sequence", "class") and self._is_regular(node):
            if node.kind == "sequence" and not node.parts:
                return '""'
            name = f"X{len(self._extra)}"
            self._extra.append("")
            self._extra[int(name[1:])] = f"{name}: {self._written(node, True)}"
            return name
        match node.kind:
            case "text":
                return self._literal(node.value)
            case "class":
                return f"/{node.value}/"
            case "name":
                return self._names[node.value]
            case "either":
                return f"({' | '.join(self._written(part, terminal) for part in node.parts)})"
            case "repeat":
                return f"({self._written(node.parts[0], terminal)}){_counts(node)}" if node.most != 0 else '""'
        return " ".join(self._written(part, terminal) for part in node.parts) or '""'


def _counts(node: Node) -> str:
    match node.least, node.most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case least, None:
            return f"{{{least},}}"
    return f"{{{node.least},{node.most}}}"


def _parts_of(node: Node) -> Iterator[Node]:
    """The node and all its parts."""
    stack = [node]
    while stack:
        node = stack.pop()
        stack.extend(node.parts)
        yield node


def _names_in(node: Node) -> set[str]:
    return {part.value for part in _parts_of(node) if part.kind == "name"}


def _unescaped(text: str) -> str:
    """Two halves of one character, as JSON spells it, are that character; a lone half stays one."""
    written = "".join(map(_character, _ESCAPE.finditer(text)))
    return written.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _character(unit: "re.Match[str]") -> str:
    number = unit[1] or unit[2] or unit[3]
    if number:
        value = int(number, 16)
        return chr(value) if value < 0x110000 else "\ufffd"
    return _LETTERS.get(unit[4], unit[4]) if unit[4] is not None else unit[5]


def _spelled(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"
