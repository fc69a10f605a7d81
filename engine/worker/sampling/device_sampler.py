"""Brings rows' sampling parameters into the device's sampler tables."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels import sampling
from stentor.kernels.sampling.tables import IN_PROMPT, MAX_BIAS, PARAMS, WORD, SamplerTables, pack_params
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep

from ..device.pinned import StepMemory
from .logprobs import Alternatives
from .masks import SlotMasks

Int32 = npt.NDArray[np.int32]


class TableWrite(msgspec.Struct, frozen=True):
    """A change of one table line: ``data[begin:end]`` is written to the line of ``slot``."""

    table: str
    slot: int
    begin: int
    end: int


class NewSamplingParams(msgspec.Struct, frozen=True):
    """The sampling parameters of the rows that enter in one step."""

    slots: npt.NDArray[np.int64]
    """[rows]"""
    params: npt.NDArray[np.int64]
    """[rows * PARAMS]"""
    data: Int32
    """Lines of the large tables, concatenated."""
    table_writes: tuple[TableWrite, ...] = ()

    @classmethod
    def none(cls) -> "NewSamplingParams":
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(0, dtype=np.int32))


class DeviceSampler:
    """The sampling state of every slot, on the device except for what the host needs.

    New state travels with the step's one copy; nothing here waits for the device.
    """

    def __init__(self, vocab_size: int, slots: int, place: torch.device) -> None:
        self._vocab_size = vocab_size
        self._tables = SamplerTables.empty(slots, vocab_size, place)
        self._logprobs: list[Alternatives | None] = [None] * slots
        self._own_masks: dict[int, Int32] = {}
        """Masks of rows that have one, without the engine's restrictions."""
        self._masked: set[int] = set()
        """Slots whose table line holds a step's mask instead."""

    @property
    def total_bytes(self) -> int:
        return self._tables.nbytes

    def logprobs(self, slot: int) -> Alternatives | None:
        """The alternatives that a row wants with its log-probability; None if it wants no log-probability."""
        return self._logprobs[slot]

    def add(
        self, rows: Sequence[NewRow], steps: Sequence[RowStep] = (), masked: Iterable[int] = ()
    ) -> NewSamplingParams:
        """Add rows; pass the result to :meth:`enter` before any of them samples.

        ``steps``: the next step's rows. Those whose mask was set return to their own mask, except the slots ``masked``,
        whose new masks are still to come.
        """
        lines = _Lines()
        if self._masked and (free := self._masked.difference(masked)):
            for step in steps:
                if step.slot in free and step.sample:
                    self._masked.discard(step.slot)
                    lines.add("mask", step.slot, self._own_masks[step.slot])
        if not rows and not lines.table_writes:
            return NewSamplingParams.none()
        params: list[int] = []
        for row in rows:
            self._logprobs[row.slot] = Alternatives.of(row.params, self._vocab_size)
            params += self._pack(row, lines)
        return NewSamplingParams(
            slots=np.array([row.slot for row in rows], dtype=np.int64),
            params=np.array(params, dtype=np.int64),
            data=np.concatenate(lines.parts) if lines.parts else np.zeros(0, dtype=np.int32),
            table_writes=tuple(lines.table_writes),
        )

    def remove(self, slot: int) -> None:
        """Remove a row. Its tables keep their contents, which nobody reads."""
        self._logprobs[slot] = None
        self._own_masks.pop(slot, None)
        self._masked.discard(slot)

    def mask(self, masked: Iterable[int], masks: SlotMasks, memory: StepMemory) -> None:
        """Set the masks of the slots ``masked`` for the next draw; they hold until a step without, see :meth:`add`.

        Slots that ``masks`` does not name return to their own mask. Slots without a masked row are skipped: their rows
        have gone.
        """
        found = {slot: mask.view("<i4") for slot, mask in masks.items() if slot in self._own_masks}
        for slot in self._masked.intersection(masked).difference(masks):
            self._masked.discard(slot)
            found[slot] = self._own_masks[slot]
        if not found:
            return
        table = self._tables.mask
        lines = memory.bring(np.concatenate(list(found.values())))
        slots = memory.bring(np.fromiter(found, dtype=np.int64))
        table.index_copy_(0, slots, lines.view(-1, table.shape[1]))
        self._masked.update(slot for slot in found if slot in masks)

    def enter(
        self, slots: torch.Tensor, params: torch.Tensor, data: torch.Tensor, writes: Sequence[TableWrite]
    ) -> None:
        """Fill the tables with the result of :meth:`add`, which is on the device now."""
        for write in writes:
            line = data[write.begin : write.end]
            match write.table:
                case "mask":
                    self._tables.mask[write.slot].copy_(line)
                case "early_mask":
                    self._tables.early_mask[write.slot].copy_(line)
                case "bias":
                    ids, values = line.view(2, -1)
                    self._tables.bias_ids[write.slot, : len(ids)].copy_(ids)
                    self._tables.bias_values[write.slot, : len(ids)].copy_(values.view(torch.float32))
                case "seen":
                    ids, counts = line.view(2, -1)
                    self._tables.seen[write.slot].zero_().index_copy_(0, ids.long(), counts)
                case table:
                    raise ValueError(f"there is no table {table}")
        if len(slots):
            sampling.write_params_(self._tables, slots, params.view(-1, PARAMS))

    def processed(
        self, logits: torch.Tensor, slots: Sequence[int], asked: Sequence[Alternatives], memory: StepMemory
    ) -> torch.Tensor:
        """The logits [n, V] whose log-probabilities rows ask for, from the model's: before :meth:`draw`, which counts
        what it samples."""
        at = [place for place, each in enumerate(asked) if each.processed]
        if not at:
            return logits
        rows = memory.bring(np.array(at, dtype=np.int64))
        of_rows = memory.bring(np.array([slots[place] for place in at], dtype=np.int64))
        own = sampling.processed_of(logits.index_select(0, rows), of_rows, self._tables)
        return logits.index_copy(0, rows, own.to(logits.dtype))

    def draw(self, logits: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
        """Sample one token for each row of ``logits`` [R, V], which is mutated, into ``out`` [R]; slot -1: padding."""
        sampling.step_(logits, slots, self._tables, out)

    def _pack(self, row: NewRow, lines: "_Lines") -> list[int]:
        """The row's fixed-size parameters; table lines are added to ``lines``."""
        params, slot = row.params, row.slot
        index = len(row.tokens) - row.prompt_len
        if params.needs_penalties:
            # only the repetition penalty reads the prompt
            prompt = row.tokens[: row.prompt_len] if params.repetition_penalty != 1.0 else []
            lines.add("seen", slot, _seen(prompt, row.tokens[row.prompt_len :], self._vocab_size))
        bias = {token: value for token, value in params.logit_bias if 0 <= token < self._vocab_size}
        if bias:
            # far more than a request may have; drop the surplus rather than fail the worker
            ids = np.array(list(bias)[:MAX_BIAS], dtype=np.int32)
            values = np.array(list(bias.values())[:MAX_BIAS], dtype=np.float32)
            lines.add("bias", slot, np.concatenate((ids, values.view(np.int32))))
        allowed, banned = params.allowed_token_ids, params.banned_token_ids
        masked = allowed is not None or bool(banned) or row.masked
        if masked:
            own = self._mask(allowed, banned)
            lines.add("mask", slot, own)
            if row.masked:
                self._own_masks[slot] = own
        ends = (*params.eos_token_ids, *params.stop_token_ids)
        early = index < params.min_tokens and bool(ends)
        if early:
            lines.add("early_mask", slot, self._mask(allowed, (*banned, *ends)))
        return pack_params(
            seed=row.seed,
            index=index,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            min_tokens=params.min_tokens,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            bias_count=min(len(bias), MAX_BIAS),
            mask=masked,
            early_mask=early,
            fallback=-1 if row.masked else _fallback(params, self._vocab_size),
        )

    def _mask(self, allowed: Iterable[int] | None, banned: Iterable[int]) -> Int32:
        """Bits of the allowed tokens, int32 [ceil(V / 32)]; token t is bit t % 32 of word t // 32."""
        bits = np.zeros(-(-self._vocab_size // WORD) * WORD, dtype=np.uint8)
        if allowed is None:
            bits[: self._vocab_size] = 1
        else:
            bits[[token for token in allowed if 0 <= token < self._vocab_size]] = 1
        bits[[token for token in banned if 0 <= token < self._vocab_size]] = 0
        return np.packbits(bits, bitorder="little").view("<i4")


class _Lines:
    """Table lines, concatenated."""

    def __init__(self) -> None:
        self.parts: list[Int32] = []
        self.table_writes: list[TableWrite] = []
        self._end = 0

    def add(self, table: str, slot: int, line: Int32) -> None:
        begin, self._end = self._end, self._end + len(line)
        self.parts.append(line)
        self.table_writes.append(TableWrite(table, slot, begin, self._end))


def _seen(prompt: Sequence[int], outputs: Sequence[int], vocab_size: int) -> Int32:
    """Distinct ids, then the table's value for each."""
    in_prompt = np.unique(np.array(prompt, dtype=np.int64))
    in_output, counts = np.unique(np.array(outputs, dtype=np.int64), return_counts=True)
    ids = np.union1d(in_prompt, in_output)
    values = np.zeros(len(ids), dtype=np.int32)
    values[np.searchsorted(ids, in_output)] = counts
    values[np.searchsorted(ids, in_prompt)] |= IN_PROMPT
    inside = (ids >= 0) & (ids < vocab_size)
    return np.concatenate((ids[inside].astype(np.int32), values[inside]))


def _fallback(params: SamplingParams, vocab_size: int) -> int:
    """The token for a row whose rules or broken logits leave nothing to sample: its lowest allowed one."""
    banned = set(params.banned_token_ids)
    allowed = (token for token in params.allowed_token_ids or () if 0 <= token < vocab_size and token not in banned)
    return min(allowed, default=0)
