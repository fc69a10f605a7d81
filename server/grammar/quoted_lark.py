"""Rewrites a client's Lark grammar of a text for the same text inside a JSON string.

Rules stay unchanged; their texts and patterns are rewritten. Nothing in the new grammar matches a quotation mark
without a backslash before it, so the string can end behind any match. :mod:`.pattern_parts` explains why some patterns
become several terminals. With ignored white space they do not, since it would be allowed between these as well.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from stentor.protocols.common.errors import BadRequest, refused

from .client_grammar import checked_lark
from .pattern_parts import Many, One, Part
from .quoted_regex import UnquotableError, parts_of, quoted_literal, quoted_pattern, quoted_text

_DIGITS: Final = r"[0-9]+"
_EXPONENT: Final = r"[eE][+\-]?[0-9]+"
_POINTED: Final = rf"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?"
_FLOAT: Final = rf"(?:{_POINTED}|{_DIGITS}{_EXPONENT})"
_NUMBER: Final = rf"(?:{_DIGITS}|{_FLOAT})"
_SIGN: Final = r"[+\-]?"

COMMON: Final = MappingProxyType(
    {
        "DIGIT": r"[0-9]",
        "HEXDIGIT": r"[0-9a-fA-F]",
        "INT": _DIGITS,
        "SIGNED_INT": _SIGN + _DIGITS,
        "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
        "_EXP": _EXPONENT,
        "FLOAT": _FLOAT,
        "SIGNED_FLOAT": _SIGN + _FLOAT,
        "NUMBER": _NUMBER,
        "SIGNED_NUMBER": _SIGN + _NUMBER,
        "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
        "LCASE_LETTER": r"[a-z]",
        "UCASE_LETTER": r"[A-Z]",
        "LETTER": r"[A-Za-z]",
        "WORD": r"[A-Za-z]+",
        "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
        "WS_INLINE": r"[ \t]+",
        "WS": r"[ \t\f\r\n]+",
        "CR": r"\r",
        "LF": r"\n",
        "NEWLINE": r"(?:\r?\n)+",
        "SH_COMMENT": r"#[^\n]*",
        "CPP_COMMENT": r"//[^\n]*",
        "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
        "SQL_COMMENT": r"--[^\n]*",
    }
)


MAX_LENGTH: Final = 1 << 20
"""Characters of the rewritten grammar: a class of characters takes about a hundred."""
_ANY: Final = "(?s:.*)"
_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\#|//)[^\n]*|[ \t\r]+)
    |(?P<line>\n)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)(?:[ \t]*\.\.[ \t]*(?P<last>"(?:\\.|[^"\\\n])*"))?
    |/(?P<pattern>(?:\\.|[^/\\])+)/(?P<flags>[imslux]*)
    |(?P<special><[^<>\s]+>)
    |(?P<inner>@[a-zA-Z0-9_\-]+|%(?:json|lark|regex|llguidance)\b)
    |%import[ \t]+common[ \t]*(?:\.[ \t]*(?P<one>[_A-Z]+)(?:[ \t]*->[ \t]*(?P<alias>_?[A-Z][_A-Z0-9\-]*))?
      |\([ \t]*(?P<several>[_A-Z]+(?:[ \t]*,[ \t]*[_A-Z]+)*)[ \t]*\))
    |(?P<statement>%[a-z]+)
    |(?P<not>~)(?![ \t]*[+\-]?[0-9])
    |(?P<open>[(\[])|(?P<close>[)\]])
    |(?P<word>[!?]?[_?]?[A-Za-z][A-Za-z0-9_\-]*)
    |(?P<other>->|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_HEX: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))")


class Token(NamedTuple):
    kind: str
    text: str
    """The client's text, or that of the kind."""
    more: str = ""
    """The end of a range, the flags of a pattern, or the new name of an import."""


def quoted_lark(source: str, field: str) -> str:
    """The grammar of the text between the quotes. Raises BadRequest for unsupported features."""
    source = checked_lark(source, field)
    try:
        quoted = _quoted(source)
    except UnquotableError as error:
        raise refused(field, f"{error}", "invalid_value") from None
    if len(quoted) > MAX_LENGTH:
        said = f"`{field}`: the grammar is too large; what is made of it comes to more than {MAX_LENGTH} characters."
        raise BadRequest(said, field, "string_above_max_length")
    return quoted


@lru_cache(maxsize=16)
def _quoted(source: str) -> str:
    """Cached: a grammar is needed twice in a request, and again in a client's later requests."""
    return _Writing(source).whole()


class _Writing:
    def __init__(self, source: str) -> None:
        self._source = source
        self._out: list[str] = []
        self._depth = 0
        self._negations: list[tuple[int, int]] = []
        """Positions in ``_out`` where negations begin, and their nesting."""
        self._terminals: list[str] = []
        self._prefix = "Q"
        while self._prefix in source:
            self._prefix += "Q"
        self._tokens = list(_tokens(source))
        self._simple = dict(_simple_terminals(self._tokens))
        self._splits = not any(token.text == "%ignore" for token in self._tokens)
        self._in_rule = False
        """In a rule, and not in a terminal or in a rule that says more of one."""
        self._in_body = False

    def whole(self) -> str:
        length = at = 0
        fresh = True
        while at < len(self._tokens):
            token = self._tokens[at]
            at += 1
            if token.kind == "space":
                self._out.append(" ")
                continue
            if fresh:
                self._in_rule = _begins_rule(token) or (token.text == "|" and self._in_rule)
                self._in_body = token.text == "|"
                if token.text == "%ignore" and (ignored := self._ignored(at)):
                    self._out.append(f"%ignore {ignored[0]}")
                    at = ignored[1]
                    fresh = False
                    continue
            fresh = token.kind == "line"
            if token.kind == "not":
                self._negations.append((len(self._out), self._depth))
            elif token.kind == "open":
                self._in_rule = self._in_rule and (token.text == "(" or self._in_body)
                self._out.append(token.text)
                self._depth += 1
            elif token.kind == "close":
                self._depth -= 1
                self._put(token.text)
            elif fresh:
                self._out.append(" " if self._negations else "\n")
            else:
                self._in_body = self._in_body or token.text == ":"
                self._put(self._written(token))
            length += len(self._out[-1]) if self._out else 0
            if length > MAX_LENGTH:
                break  # already too long, which the caller checks
        return "".join([*self._out, "\n", *self._terminals])

    def _ignored(self, at: int) -> tuple[str, int] | None:
        """A terminal for a ``%ignore`` whose body begins here, and its end.

        None if it is not one repeated pattern: ignored text may repeat anyway, and so need not continue with a
        backslash itself.
        """
        found = _single(self._tokens, at, self._simple)
        if found is None or not isinstance(found[0], Many) or found[0].times not in "*+":
            return None
        part = found[0].part
        if isinstance(part, One):
            options = ([f"(?:{part.plain})+"] if part.plain else []) + ([part.changed] if part.changed else [])
            return f"/{'|'.join(options)}/", found[1]
        return (f"/{part.pattern()}/", found[1]) if not part.may_be_empty else None

    def _put(self, written: str) -> None:
        """Writes a possible end of a negation."""
        self._out.append(written)
        while self._negations and self._negations[-1][1] >= self._depth:
            start, _ = self._negations.pop()
            denied = "".join(self._out[start:])
            del self._out[start:]
            name = f"{self._prefix}{len(self._terminals)}"
            # by itself it would include bytes of any kind, not only those allowed between quotes
            self._terminals.append(f"{name}: /{quoted_pattern(_ANY)}/ & ~{denied}\n")
            self._out.append(f" {name} ")

    def _written(self, token: Token) -> str:
        splits = self._splits and self._in_rule and not self._negations
        match token:
            case Token("range", low, high):
                return f" {_range(_text(low), _text(high))} "
            case Token("text", text):
                return f" {_literal(text)} "
            case Token("pattern", pattern, flags):
                part = parts_of(pattern, flags)
                return f" ({part.rules()}) " if splits and part.open else f" /{part.pattern()}/ "
            case Token("import", name, alias):
                return f"{alias}: {_pattern(_common(name))}\n"
            case Token("imports", names):
                return "".join(f"{name}: {_pattern(_common(name))}\n" for name in _names(names))
            case Token("word", name) if splits and (simple := self._simple.get(name)) and simple.open:
                return f" ({simple.rules()}) "
            case Token("special", text):
                raise UnquotableError(f"`{text[:64]}` is a token, and what a tool is given is text")
            case Token("inner" | "statement", text) if text not in ("%ignore", "%if"):
                raise UnquotableError(f"`{text[:64]}` is not supported in the grammar of a tool's input")
        return token.text


def _tokens(source: str) -> Iterator[Token]:
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise UnquotableError(f"line {source.count(chr(10), 0, at) + 1} is not understood")
        at = found.end()
        match found.lastgroup:
            case "last":
                yield Token("range", found["text"], found["last"])
            case "flags":
                yield Token("pattern", found["pattern"], found["flags"])
            case "one" | "alias":
                yield Token("import", found["one"], found["alias"] or found["one"])
            case "several":
                yield Token("imports", found["several"])
            case kind:
                yield Token(kind or "other", found[0])


def _simple_terminals(tokens: Sequence[Token]) -> Iterator[tuple[str, Part]]:
    """Terminals that are one pattern, which may be repeated."""
    fresh = True
    for index, token in enumerate(tokens):
        match token:
            case Token("import", name, alias):
                yield alias, parts_of(_common(name))
            case Token("imports", names):
                yield from ((name, parts_of(_common(name))) for name in _names(names))
            case Token("word", name) if fresh and _is_terminal(name):
                body = index + 1
                while body < len(tokens) and tokens[body].kind == "space":
                    body += 1
                if body < len(tokens) and tokens[body].text == ":" and (single := _single(tokens, body + 1, {})):
                    yield name, single[0]
        fresh = token.kind == "line" or (fresh and token.kind == "space")


def _single(tokens: Sequence[Token], at: int, named: Mapping[str, Part]) -> tuple[Part, int] | None:
    """A body that begins here and is one pattern, or the name of one, which may be repeated; and where it ends."""
    body: list[Token] = []
    end = at
    while end < len(tokens) and tokens[end].kind != "line":
        if tokens[end].kind != "space":
            body.append(tokens[end])
            if len(body) > 2:
                return None
        end += 1
    after = end
    while after < len(tokens) and tokens[after].kind in ("line", "space"):
        after += 1
    if not body or (after < len(tokens) and tokens[after].text == "|"):
        return None
    if len(body) == 2 and body[1].text not in ("*", "+", "?"):
        return None
    first = body[0]
    part = parts_of(first.text, first.more) if first.kind == "pattern" else named.get(first.text)
    if part is None:
        return None
    return (part if len(body) == 1 else Many(part, body[1].text)), end


def _begins_rule(token: Token) -> bool:
    return token.kind == "word" and not _is_terminal(token.text)


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",")]


def _common(name: str) -> str:
    if name not in COMMON:
        raise UnquotableError(f"there is no `common.{name[:64]}`")
    return COMMON[name]


def _pattern(pattern: str) -> str:
    return f"/{quoted_pattern(pattern)}/"


def _literal(written: str) -> str:
    if written.endswith("i"):
        return f"/{quoted_literal(_text(written[:-1]), ignore_case=True)}/" if len(written) > 3 else '""'
    return json.dumps(quoted_text(_text(written))).replace("\x7f", "\\u007f")


def _range(low: str, high: str) -> str:
    if len(low) != 1 or len(high) != 1 or low > high:
        raise UnquotableError("a range of characters has an end that is not one character, or ends before it begins")
    return _pattern(f"[\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}]")


def _text(written: str) -> str:
    r"""Text of a string: JSON's escapes, and two digits behind ``\x``."""
    as_json = _HEX.sub(lambda found: f"\\u00{found[1]}" if found[1] else found[0], written)
    try:
        text = json.loads(as_json)
    except ValueError:
        raise UnquotableError("a text in quotes is not valid") from None
    assert isinstance(text, str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnquotableError("a text in quotes holds half a character") from None
    return text
