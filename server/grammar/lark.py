r"""Grammars in llguidance's dialect of Lark, built rule by rule.

An expression is a piece of the right side of a rule. Text that is a special token of the tokenizer only matches by its
id (``<[151657]>``), never by characters; :meth:`Lark.literal` handles this.

No client's text can end the rule that contains it. A literal is a JSON string without raw control characters, which
llguidance reads as JSON; a schema is JSON, whose end llguidance's own reader finds; a pattern has its slashes escaped
and does not end in a lone backslash; and a client's whole grammar stays a grammar of its own, with its own names,
beside ours in :meth:`Lark.source`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stentor.protocols.common.errors import refused

from .schema import encoded, prepare
from .whitespace import INDENTED

ANY_TEXT: Final = r"/(.|\n)*/"
_NO_FORCING: Final = '%llguidance {"no_forcing": true}\n'
"""The engine's setting for a source that is only Lark."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CLASS: Final = re.compile(r"\\[^dDwW]|--|(-?)\\([dDwW])", re.DOTALL)
_ASCII: Final = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]"}


class Lark:
    """The rules of one grammar."""

    def __init__(self, special_tokens: Mapping[str, int], whitespace: Mapping[str, Any] = INDENTED) -> None:
        """``special_tokens``: ids by text, of the model's tokenizer. ``whitespace``: llguidance's default options for
        JSON; bounded, since a model might otherwise write spaces without end."""
        self.whitespace: Final = whitespace
        self._special = {text: id for text, id in special_tokens.items() if text}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []

    def rule(self, expression: str, attributes: str = "") -> str:
        """Adds a rule and returns an expression that matches the same."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def forward(self) -> str:
        """An expression for a rule that :meth:`define` adds later, so that the rule may contain itself."""
        self._rules.append("")
        return f"r{len(self._rules) - 1}"

    def define(self, name: str, expression: str) -> None:
        """Gives the rule that :meth:`forward` has named its expression."""
        self._rules[int(name[1:])] = f"{name}: {expression}"

    def literal(self, text: str) -> str:
        """Exactly this text; the empty text matches nothing and takes no room."""
        if not text:
            return '""'
        return " ".join(self._token(part) or _quoted(part) for part in self._parts(text))

    def either(self, expressions: Sequence[str]) -> str:
        """One of these."""
        return expressions[0] if len(expressions) == 1 else self.rule(" | ".join(expressions))

    def one_of(self, texts: Sequence[str]) -> str:
        """Exactly one of these texts, of which there may be thousands."""
        plain = [text for text in texts if text and not any(part in self._special for part in self._parts(text))]
        kept = frozenset(plain)
        others = [self.literal(text) for text in texts if text not in kept]
        if plain:
            # one terminal instead of many rules: the next token is then found in one automaton
            others.append(self.terminal(" | ".join(map(_quoted, plain))))
        return self.either(others)

    def json(
        self,
        schema: Mapping[str, Any] | bool,
        field: str = "schema",
        whitespace: Mapping[str, Any] | None = None,
        *,
        closed: bool = False,
    ) -> str:
        """JSON that the schema allows.

        ``field`` is where the client has put the schema. ``whitespace`` takes the place of the grammar's. ``closed``
        is as :func:`.schema.prepare` has it. Raises BadRequest for a schema that cannot be held.
        """
        allowed = self.whitespace if whitespace is None else whitespace
        return self.rule(f"%json {encoded(prepare(schema, field, allowed, closed=closed))}")

    def regex(self, pattern: str, field: str = "regex") -> str:
        """``pattern`` in the syntax of Rust's regex crate, without look-around; ``\\d`` and ``\\w`` are ASCII's, as in
        JavaScript and in patterns of schemas. Raises BadRequest."""
        if not pattern:
            return '""'
        written: list[str] = []
        escaped = False
        for character in _CLASS.sub(_of_ascii, pattern):
            if escaped and character in "\n\r":
                raise refused(field, "a backslash stands before a line's end", "invalid_value")
            if character == "/":
                written.append("/" if escaped else r"\/")
            elif character in "\n\r\0":
                written.append({"\n": r"\n", "\r": r"\r", "\0": r"\x00"}[character])
            else:
                written.append(character)
            escaped = character == "\\" and not escaped
        if escaped:
            raise refused(field, "the pattern ends in a lone backslash", "invalid_value")
        return self.rule(f"/{''.join(written)}/")

    def grammar(self, source: str) -> str:
        """Matches another grammar's ``start``; ``source`` is Lark, with its own names."""
        name = f"g{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": source})
        return self.rule(f"@{name}")

    def terminal(self, expression: str) -> str:
        """Adds a terminal: patterns, quoted texts and terminals in a row, with ``&``, ``|`` and ``~`` between them."""
        name = f"T{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def text_until(self, marker: str, body: str = ANY_TEXT) -> str:
        """Any text up to the first ``marker``, which is matched too; ``body``: the text's pattern."""
        parts = self._parts(marker)
        special = next((index for index, part in enumerate(parts) if part in self._special), None)
        if special is None:
            return self.rule(body, f"[suffix={_quoted(marker)}]")
        text = self.terminal(body)
        if before := "".join(parts[:special]):
            text = self.terminal(f"{text} {_quoted(before)}")
        return self.rule(f"{text} {self.literal(''.join(parts[special:]))}")

    def source(self, start: str) -> str:
        """The whole grammar, which begins with the expression ``start``."""
        text = "\n".join([f"start: {start}", *self._rules]) + "\n"
        if not self._grammars:
            return text
        return json.dumps({"grammars": [{"lark_grammar": _NO_FORCING + text}, *self._grammars]}, ensure_ascii=False)

    def _parts(self, text: str) -> list[str]:
        """The text in pieces, of which each is one special token or holds none."""
        return [text] if self._splitter is None else [part for part in self._splitter.split(text) if part]

    def _token(self, text: str) -> str | None:
        id = self._special.get(text)
        return None if id is None else f"<[{id}]>"


def _quoted(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def _of_ascii(found: re.Match[str]) -> str:
    """An ASCII class for a Unicode one, also inside another class; a hyphen before it begins no range."""
    return found[0] if found[2] is None else (r"\-" if found[1] else "") + _ASCII[found[2]]
