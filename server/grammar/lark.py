"""Grammars in llguidance's dialect of Lark, put together rule by rule.

An expression is a piece of the right side of a rule. Text that the tokenizer has as special tokens can only be matched
by their ids (``<[151657]>``), never by characters: :meth:`Lark.literal` sees to that.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

ANY_TEXT: Final = r"/(.|\n)*/"


class Lark:
    """The rules of one grammar."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        """``special_tokens``: ids by text, of the model's tokenizer."""
        self._special = dict(special_tokens)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._splitter = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._rules: list[str] = []

    def rule(self, expression: str, attributes: str = "") -> str:
        """Adds a rule and returns an expression that matches what it does."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def literal(self, text: str) -> str:
        """Exactly this text; the empty text matches nothing and takes no room."""
        if not text:
            return '""'
        parts = [text] if self._splitter is None else [part for part in self._splitter.split(text) if part]
        return " ".join(self._token(part) or json.dumps(part, ensure_ascii=False) for part in parts)

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """JSON that the schema allows."""
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def regex(self, pattern: str) -> str:
        """``pattern`` in the syntax of Rust's regex crate, without look-around."""
        return self.rule("/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", r"\n") + "/")

    def text_until(self, marker: str) -> str:
        """Any text up to the first ``marker``, which is matched too."""
        if self._token(marker) is not None:
            return self.rule(f"{ANY_TEXT} {self.literal(marker)}")
        return self.rule(ANY_TEXT, f"[suffix={json.dumps(marker, ensure_ascii=False)}]")

    def source(self, start: str) -> str:
        """The whole grammar, which begins with the expression ``start``."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _token(self, text: str) -> str | None:
        id = self._special.get(text)
        return None if id is None else f"<[{id}]>"
