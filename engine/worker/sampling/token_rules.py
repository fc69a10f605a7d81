"""Transcript rules: masks forbidden tokens in the logits of all rows of a step.

Rows bring their rules as :class:`stentor.protocols.ipc.audio.TokenRules`. They depend on a row's own tokens only, so a
preempted row continues as it would have. Timestamps come in pairs around each segment::

    first token       a timestamp, at most max_initial_timestamp after <|0.00|>
    after a pair, or one that began the transcript: text
    after a single one   its pair, or the end
    any timestamp     not before the last one, and after it where that one ended a segment
    text              not where all timestamps together are likelier than the likeliest piece of text
"""

import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import msgspec
import torch

from stentor.protocols.ipc.audio import TokenRules
from stentor.protocols.ipc.steps import NewRow

_NONE = -1


class RuledRow:
    """The end of one row's transcript, as far as the rules need it."""

    __slots__ = ("before", "count", "last", "rules", "timestamp")

    def __init__(self, rules: "_Rules", outputs: Sequence[int]) -> None:
        self.rules = rules
        self.count = 0
        self.last = self.before = self.timestamp = _NONE
        for token in outputs:
            self.append(token)

    def append(self, token: int) -> None:
        self.count += 1
        self.before, self.last = self.last, token
        if 0 <= self.rules.begin <= token:
            self.timestamp = token


class RuleTable:
    """The rules of a worker's slots."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._rows: dict[int, RuledRow] = {}
        self._known: WeakValueDictionary[bytes, _Rules] = WeakValueDictionary()
        """Tensors of the rules in use; nearly all rows share one set."""

    def add(self, row: NewRow) -> None:
        """Add a row; without rules it is not restricted."""
        if row.params.rules is None:
            return
        key = msgspec.msgpack.encode(row.params.rules)
        rules = self._known.get(key)
        if rules is None:
            rules = self._known[key] = _Rules(row.params.rules, self._vocab_size, self._device)
        self._rows[row.slot] = RuledRow(rules, row.tokens[row.prompt_len :])

    def remove(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def append(self, slot: int, token: int) -> None:
        """Record a token of a row."""
        if (row := self._rows.get(slot)) is not None:
            row.append(token)

    def apply_(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        """Set forbidden logits to -inf, in place, in float32 [rows, vocabulary] of these slots."""
        groups: dict[_Rules, list[int]] = {}
        for position, slot in enumerate(slots):
            if (row := self._rows.get(slot)) is not None:
                groups.setdefault(row.rules, []).append(position)
        for rules, positions in groups.items():
            rows = [self._rows[slots[position]] for position in positions]
            if len(rows) == len(slots):
                rules.apply_(logits, rows)
                continue
            at = torch.tensor(positions, device=self._device)
            part = logits.index_select(0, at)
            rules.apply_(part, rows)
            logits.index_copy_(0, at, part)


class _Rules:
    """One set of rules as tensors."""

    def __init__(self, rules: TokenRules, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._suppressed = self._ids(rules.suppressed)
        self._first = self._ids(rules.suppressed_first)
        self.begin = rules.timestamp_begin if rules.timestamp_begin < vocab_size else _NONE
        """The first timestamp token; -1: there are none."""
        self._eot = min(max(rules.eot, 0), max(self.begin, 0))
        latest = self.begin + rules.max_initial_timestamp + 1
        self._first_end = vocab_size if rules.max_initial_timestamp < 0 else min(latest, vocab_size)
        self._stamps = torch.arange(max(self.begin, 0), vocab_size, device=device)

    def apply_(self, logits: torch.Tensor, rows: Sequence[RuledRow]) -> None:
        """Set forbidden logits to -inf, in place; ``rows`` are those of the logits."""
        if len(self._suppressed):
            logits.index_fill_(1, self._suppressed, -math.inf)
        if len(self._first) and (fresh := [place for place, row in enumerate(rows) if not row.count]):
            logits[torch.tensor(fresh, device=self._device).unsqueeze(1), self._first] = -math.inf
        if self.begin >= 0:
            self._apply_timestamps(logits, rows)

    def _apply_timestamps(self, logits: torch.Tensor, rows: Sequence[RuledRow]) -> None:
        begin = self.begin
        limits = [self._limits(row) for row in rows]
        text, stamps = logits[:, :begin], logits[:, begin:]
        bounds = torch.tensor(limits, device=self._device).T.unsqueeze(2)  # [3, rows, 1]
        stamps.masked_fill_((self._stamps < bounds[1]) | (self._stamps >= bounds[2]), -math.inf)
        if ends := [place for place, (end, _, _) in enumerate(limits) if 0 < end < begin]:
            text[:, : self._eot].index_fill_(0, torch.tensor(ends, device=self._device), -math.inf)
        wordless = bounds[0, :, 0] >= begin
        likelier = torch.logsumexp(stamps, dim=1) > text.amax(dim=1)
        (at,) = torch.nonzero(wordless | likelier, as_tuple=True)
        if len(at):
            text.index_fill_(0, at, -math.inf)

    def _limits(self, row: RuledRow) -> tuple[int, int, int]:
        """(text end, lowest, end): text below the first is forbidden, and timestamps below the second and from the
        third on."""
        begin, end = self.begin, self._vocab_size
        if not row.count:
            return begin, begin, self._first_end
        stamped = row.last >= begin
        single = stamped and row.count > 1 and row.before < begin
        # a segment is not empty, and the next one may begin where it ended
        lowest = begin if row.timestamp < 0 else row.timestamp + (not single)
        if not stamped:
            return 0, lowest, end
        return (self._eot, lowest, end) if single else (0, lowest, begin)

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        inside = sorted({token for token in tokens if 0 <= token < self._vocab_size})
        return torch.tensor(inside, dtype=torch.int64, device=self._device)
