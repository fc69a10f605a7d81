"""Suffix decoding (arXiv:2411.04975): proposes what followed a row's last tokens, in it or in past answers."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.steps import NewRow

from .ngram import CANDIDATES, NgramIndex
from .past_answers import PastAnswers
from .proposer import row_at

_RING_BITS: Final = 20
"""Ring of a million tokens: 28 MiB."""


class _Row(msgspec.Struct):
    text: NgramIndex
    prompt_len: int
    domain: bytes


class SuffixProposer:
    """See :class:`.proposer.Proposer`: looks up each row's prompt, its answer so far, and past answers of its domain.

    If these continue in several ways, proposes the most frequent one. Answers are kept as long as the worker lives. The
    answer of a preempted row is added as far as it has come.
    """

    def __init__(self, slots: int, config: SpeculativeConfig, ring_bits: int = _RING_BITS) -> None:
        self.most = config.num_speculative_tokens
        self._config = config
        self._rows: list[_Row | None] = [None] * slots
        depth = max(config.suffix_decoding_max_tree_depth, config.prompt_lookup_min)
        self._same = config.prompt_lookup_min, depth
        self._past = PastAnswers(ring_bits, config.suffix_decoding_max_cached_requests, *self._same)

    def enter(self, new: NewRow) -> None:
        self._rows[new.slot] = _Row(NgramIndex(new.tokens, *self._same), new.prompt_len, new.domain)

    def remove(self, slot: int) -> None:
        row, self._rows[slot] = self._rows[slot], None
        if row is not None:
            self._past.add(row.domain, row.text.tokens[row.prompt_len :])

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        row = row_at(self._rows, slot)
        for token in tokens:
            row.text.append(token)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        found = {slot: self._drafts(row_at(self._rows, slot), most) for slot, most in wanted.items()}
        return {slot: drafts for slot, drafts in found.items() if drafts}

    def verified(self, slot: int, drafted: int, accepted: int) -> None:
        row_at(self._rows, slot).text.verified(accepted)

    def _drafts(self, row: _Row, most: int) -> list[int]:
        text, past = row.text, self._past
        own_same, own = text.places(CANDIDATES)
        past_same, others = past.places(row.domain, text.tokens)
        same = max(own_same, past_same)
        most = min(most, int(same * self._config.suffix_decoding_max_spec_factor))
        if not (own or others) or most <= 0 or text.passes_over():
            return []
        ways = [list(islice(text.behind(place, most), most)) for place in own] if own_same == same else []
        ways += [past.behind(place, most) for place in others] if past_same == same else []
        return agreed(ways, self._config.suffix_decoding_min_token_prob)


def agreed(ways: Sequence[Sequence[int]], least: float) -> list[int]:
    """The most frequent continuation, token by token among the ways that agree so far; the first of equals.

    Ends when fewer than the fraction ``least`` of all ways agree.
    """
    drafts: list[int] = []
    live = [way for way in ways if way]
    least *= len(ways)
    while live and len(live) >= least:
        at = len(drafts)
        if len(live) == 1:
            return [*drafts, *live[0][at:]]
        counts: dict[int, int] = {}
        for way in live:
            counts[way[at]] = counts.get(way[at], 0) + 1
        token = max(counts, key=counts.__getitem__)
        if counts[token] < least:
            break
        drafts.append(token)
        live = [way for way in live if way[at] == token and len(way) > at + 1]
    return drafts
