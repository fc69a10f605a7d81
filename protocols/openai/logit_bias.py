"""Biases of tokens: OpenAI's by token id, and llama.cpp's pairs, in which a text may stand for its tokens."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta

from ..common.bounds import items_at_most, keys_at_most, total_chars_at_most
from ..common.errors import refused, wrong
from ..common.limits import Limits

MOST: Final = 100.0
"""The largest bias; its negative keeps a token from being drawn."""
_CHARS_OF_A_BIAS: Final = 16
"""Most characters of biased texts, for each bias that the server allows."""

Biases = dict[str, Annotated[float, Meta(ge=-MOST, le=MOST)]]
"""By token id."""
BiasPairs = list[list[float | bool | str]]
"""A token id or a text, and a bias, where false is never. A text stands for each of its tokens."""


def check_biases(given: Biases | BiasPairs | None, limits: Limits) -> None:
    """Raises BadRequest."""
    if given is None or isinstance(given, dict):
        keys_at_most(given, limits.max_logit_bias, "logit_bias")
        return
    items_at_most(given, limits.max_logit_bias, "logit_bias")
    for place, pair in enumerate(given):
        if len(pair) != 2 or not _biased(pair[0]) or pair[1] is True or isinstance(pair[1], str):
            raise wrong(f"logit_bias[{place}]", "must be a token id or a text, and a number or false", "invalid_value")
        if not -MOST <= pair[1] <= MOST:
            raise wrong(f"logit_bias[{place}]", f"must have a bias between {-MOST:g} and {MOST:g}", "invalid_value")
    total_chars_at_most(sum(map(len, texts_of(given))), _CHARS_OF_A_BIAS * limits.max_logit_bias, "logit_bias")


def texts_of(pairs: BiasPairs) -> list[str]:
    """The texts among what checked ``pairs`` are for."""
    return [name for name, _ in pairs if isinstance(name, str) and not _is_token(name)]


def by_token(pairs: BiasPairs, tokens: Mapping[str, Sequence[int]]) -> Biases:
    """Checked ``pairs`` by token id, with the ``tokens`` of each of :func:`texts_of`. Of several biases for a token the
    last counts."""
    biases: Biases = {}
    for name, bias in pairs:
        key = name if isinstance(name, str) else str(int(name))
        for token in tokens.get(key, (key,)):
            biases[str(token)] = -MOST if bias is False else float(bias)
    return biases


def parse_logit_bias(bias: Biases | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, by id. Raises BadRequest for a key that is no token of the vocabulary."""
    if not bias:
        return ()
    pairs = {}
    for key, value in bias.items():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 12 else -1
        if not 0 <= token < vocab_size:
            shown = key if len(key) <= 32 else key[:32] + "…"
            raise refused("logit_bias", f"the key '{shown}' is not a token id between 0 and {vocab_size - 1}")
        pairs[token] = value
    return tuple(sorted(pairs.items()))


def _is_token(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _biased(token: float | bool | str) -> bool:
    """Whether a bias can be for it."""
    return isinstance(token, str) or (not isinstance(token, bool) and token.is_integer())
