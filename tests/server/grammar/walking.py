"""A stand-in for a model that writes at a high temperature: any token that a grammar allows."""

import random

import numpy as np

from stentor.engine.core.grammar.matcher import Compiler, GuidanceMatcher, Matcher
from stentor.engine.core.grammar.token_sets import ids_in
from stentor.engine.core.grammar.vocabulary import TokenBytes


class KeepingCompiler(Compiler):
    """Keeps what it has compiled, as the engine does."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        super().__init__(vocabulary)
        self._kept: dict[str, GuidanceMatcher] = {}

    def compile(self, source: str) -> GuidanceMatcher:
        if source not in self._kept:
            self._kept[source] = super().compile(source)
        return self._kept[source].copy()


def matches(matcher: Matcher, text: bytes) -> bool:
    """Whether this is a text of the grammar, over a vocabulary in which each byte is the token of its value.

    Each byte is asked for before it is taken: llguidance takes 0.3 ms to report one that it must not take.
    """
    return all(matcher.allows(byte) and matcher.consume(byte) for byte in text) and matcher.accepting()


def written(compiler: Compiler, vocabulary: TokenBytes, source: str, seed: int, most: int = 1024) -> tuple[str, bool]:
    """A text that the grammar allows, and whether it came to its end within so many tokens.

    Half of the tokens are short ones, for most are words, of which some places take thousands.
    """
    matcher = compiler.compile(source)
    choose = random.Random(seed)
    ends = frozenset(vocabulary.eos)
    text = bytearray()
    for _ in range(most):
        if matcher.stopped():
            break
        allowed = ids_in_sample(matcher.allowed(), choose)
        assert allowed, (text, matcher.error())
        short = [id for id in allowed if len(vocabulary.tokens[id]) == 1]
        token = choose.choice(short if short and choose.random() < 0.5 else allowed)
        if token in ends:
            break
        assert matcher.consume(token), (bytes(text), token, matcher.error())
        text += vocabulary.tokens[token]
    else:
        return text.decode(errors="replace"), False
    assert matcher.accepting(), (bytes(text), matcher.error())
    return text.decode(), True


def ids_in_sample(tokens: int, choose: random.Random, most: int = 64) -> list[int]:
    """Of a set of tokens: all, or so many taken at random."""
    if tokens.bit_count() <= most:
        return ids_in(tokens)
    octets = np.frombuffer(tokens.to_bytes(-(-tokens.bit_length() // 8), "little"), np.uint8)
    ids: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return choose.sample(ids, most)
