"""The special tokens that a tokenizer puts around a text, and around and between two."""

import msgspec

from ..text.tokenizers.tokenizer import Tokenizer


class AffixTokens(msgspec.Struct, frozen=True):
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.before) + len(self.after)


class PairAffixTokens(msgspec.Struct, frozen=True):
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    has_type_ids: bool
    """Whether tokens of the second text are marked as such: BERT's types."""

    @property
    def length(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


def affix_tokens_of(tokenizer: Tokenizer) -> AffixTokens:
    encoding = tokenizer.backend.encode("a", add_special_tokens=True)
    special = encoding.special_tokens_mask
    inner = [place for place, mark in enumerate(special) if not mark]
    if not inner:
        return AffixTokens((), ())
    return AffixTokens(tuple(encoding.ids[: inner[0]]), tuple(encoding.ids[inner[-1] + 1 :]))


def pair_affix_tokens_of(tokenizer: Tokenizer) -> PairAffixTokens:
    encoding = tokenizer.backend.encode("a", "a", add_special_tokens=True)
    whose = encoding.sequence_ids
    first = [place for place, text in enumerate(whose) if text == 0]
    second = [place for place, text in enumerate(whose) if text == 1]
    if not first or not second:
        return PairAffixTokens((), (), (), has_type_ids=False)
    ids = encoding.ids
    return PairAffixTokens(
        tuple(ids[: first[0]]),
        tuple(ids[first[-1] + 1 : second[0]]),
        tuple(ids[second[-1] + 1 :]),
        has_type_ids=encoding.type_ids[second[0]] == 1,
    )
