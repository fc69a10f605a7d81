"""The process that tries grammars; see :mod:`.process`."""

import random
import re
import sys
from typing import Final

from stentor.engine.core.grammar.matcher import Compiler, GrammarError, GuidanceMatcher
from stentor.engine.core.grammar.vocabulary import TokenBytes

from ..sandbox.child import Growth, bounded_child, receive, send
from .process import TOO_COMPLEX, GrammarJob, Verdict

MAX_LENGTH: Final = 200

_LIMITS: Final = re.compile(
    r"too complex|fuel|exceeded|too deep|too large|too big|too many|limit|Unable to determine if regex is empty", re.I
)
_PLACE: Final = re.compile(r"^(?:the grammar cannot be used: )?(?:(?:at )?(\d+)\(\d+\): )?")
_EXCERPT: Final = re.compile(r" +\d+ \| .*$")
_INNER: Final = re.compile(r"(?:: | while processing )?(?:json-schema:///)?#/\$defs/\S+")
"""The names of definitions are not the client's."""
_REGEX_ERROR: Final = re.compile(r"regex parse error:.*?\berror: (.*)$")


def client_message(error: str) -> str:
    """The fault without the source and without marks; :data:`.process.TOO_COMPLEX` for a grammar that costs too
    much."""
    text = " ".join(error.split())
    text = _PLACE.sub("", text, count=1)
    text = _EXCERPT.sub("", text)
    if (regex := _REGEX_ERROR.search(text)) is not None:
        return f"the pattern is not valid or not supported: {_short(regex[1])}"
    if _LIMITS.search(text):
        return TOO_COMPLEX
    text = _INNER.sub("", text)
    text = text.replace("failed to compile JSON schema: ", "").replace(
        "Unsatisfiable schema: ", "no value satisfies it: "
    )
    return _short(text) or "the grammar cannot be used"


def _short(text: str) -> str:
    text = "".join(character for character in text if character.isprintable()).strip().rstrip(".")
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "…"


MAX_MEMORY: Final = 3 << 30
"""Bytes of address space."""
WALKS: Final = 2
STEPS: Final = 24
"""Tokens of each walk: some costs only appear after a grammar has begun."""


def main() -> int:
    with bounded_child("stentor-grammar", MAX_MEMORY) as connection:
        try:
            compiler = Compiler(receive(connection, TokenBytes))
        except GrammarError as error:
            send(connection, Verdict(str(error)))
            return 0
        growth = Growth()
        send(connection, Verdict())
        while True:
            why = _try(compiler, receive(connection, GrammarJob).source)
            send(connection, Verdict(why, growth.too_much))
    return 0


def _try(compiler: Compiler, source: str) -> str:
    """Compiles, and goes a few ways into the grammar, as the engine will."""
    try:
        matcher = compiler.compile(source)
        choose = random.Random(0)
        for _ in range(WALKS):
            if not _walk(matcher.copy(), choose):
                return TOO_COMPLEX
    except GrammarError as error:
        return client_message(str(error))
    except MemoryError:
        return TOO_COMPLEX
    return ""


def _walk(matcher: GuidanceMatcher, choose: random.Random) -> bool:
    """False where the grammar has become too complex on the way."""
    for _ in range(STEPS):
        allowed = matcher.allowed()
        if matcher.error():
            return False
        token = _one_of(allowed, choose)
        if token is None or matcher.stopped():
            if not matcher.accepting():
                raise GrammarError("it asks for text that this model's tokens cannot write")
            return True
        if not matcher.consume(token):
            return not matcher.error()
    return True


def _one_of(tokens: int, choose: random.Random) -> int | None:
    """A random member of a set of tokens."""
    if not tokens:
        return None
    above = tokens >> choose.randrange(tokens.bit_length())
    lowest = above & -above
    return tokens.bit_length() - above.bit_length() + lowest.bit_length() - 1


if __name__ == "__main__":
    sys.exit(main())
