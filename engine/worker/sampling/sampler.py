"""Samples the tokens of a step: each row's parameters apply to its own logits only."""

import itertools
from collections.abc import Sequence

import msgspec
import torch

from stentor.kernels import sampling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs

from ...layers.linear.rank_group import RankGroup
from .logprobs import Alternatives, logprob_entries, widest, with_logits
from .masks import NO_MASKS, SlotMasks, lowest, restrict_rows_
from .sampler_rows import SampledRow


class _Edits(msgspec.Struct):
    """Inputs of one in-place operation: rows of the logits, and for each row its part of flat lists."""

    rows: list[int]
    parts: list[tuple[torch.Tensor, ...]]

    def flat(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """rows [P], offsets [P + 1], then the flat lists."""
        offsets = itertools.accumulate((len(part[0]) for part in self.parts), initial=0)
        return (
            torch.tensor(self.rows, device=device),
            torch.tensor(list(offsets), device=device),
            *(torch.cat(lists) for lists in zip(*self.parts, strict=True)),
        )


class Sampler:
    """The sampling state of a worker's slots.

    A row's samples depend only on its parameters, seed, tokens and logits: not on the rest of the batch, the former row
    of its slot, or a preemption.
    """

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device, ranks: RankGroup | None = None) -> None:
        """``ranks``: if workers split the model, rank 0 samples for all."""
        self._ranks = ranks
        self._vocab_size = vocab_size
        self._device = device
        self._slot_params = sampling.SlotParams.empty(max_rows, device)
        self._rows: list[SampledRow | None] = [None] * max_rows

    def add(self, slot: int, params: SamplingParams, seed: int, tokens: Sequence[int], prompt_len: int) -> None:
        """Add a row to a free ``slot``.

        Args:
            params: sampling parameters. Ids outside the vocabulary are ignored.
            seed: unsigned 64 bits.
            tokens: prompt and outputs so far; a row that was preempted has outputs.
            prompt_len: how many of ``tokens`` are the prompt.
        """
        if self._rows[slot] is not None:
            raise ValueError(f"slot {slot} still holds a row; remove it before another enters")
        self._slot_params.set(
            slot,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=seed,
        )
        self._rows[slot] = SampledRow(params, tokens, prompt_len, self._vocab_size, self._device)

    def remove(self, slot: int) -> None:
        """Remove a row; ignored for a free slot."""
        self._rows[slot] = None

    def sample(
        self,
        logits: torch.Tensor,
        slots: Sequence[int],
        best: list[int] | None = None,
        masks: SlotMasks = NO_MASKS,
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """Sample one token for each of ``slots`` and append it to the row.

        Args:
            logits: [R, V] float32, contiguous; may be mutated.
            slots: the slot of each row of the logits, all different.
            best: the argmax of each, as :func:`stentor.kernels.sampling.argmax` finds it, if known.
            masks: by slot, for this call, in place of the row's allowed and banned tokens.

        Returns:
            token ids, and if any row asked for log-probabilities an entry per row (None for the rows that did not). If
            a row's parameters or broken logits leave nothing to sample, it takes its lowest allowed id.
        """
        rows = [self._row(slot) for slot in slots]
        if not masks and self.are_plain(slots):
            sampled_token_ids = self._agreed(sampling.argmax(logits).tolist() if best is None else best)
            return [row.append(token) for row, token in zip(rows, sampled_token_ids, strict=True)], None

        raw = self._raw_of_edited(logits, rows, slots, masks)
        self._edit(logits, rows, slots, masks)
        sampled_token_ids = self._draw(logits, slots, rows)
        if masks:
            for at, slot in enumerate(slots):
                if sampled_token_ids[at] < 0 and slot in masks:
                    sampled_token_ids[at] = lowest(masks[slot])
        sampled_token_ids = self._agreed(sampled_token_ids)
        indices = [position for position, row in enumerate(rows) if row.logprobs is not None]
        tokens = [row.append(token) for row, token in zip(rows, sampled_token_ids, strict=True)]
        if not indices:
            return tokens, None
        raw |= self._processed(logits, rows, slots)
        return tokens, self._logprobs(logits, raw, rows, tokens)

    def ahead(self, logits: torch.Tensor, slots: Sequence[int], behind: Sequence[int]) -> list[int] | None:
        """The tokens that :meth:`sample` would sample at all positions of rows with drafts, in one call.

        Position i is the one ``behind[i]`` tokens after the next one of row ``slots[i]``; its logits [V] are right if
        these tokens are the drafts before it. Returns None if a row has penalties, bias or allowed tokens, or asks for
        log-probabilities.
        """
        rows = [self._row(slot) for slot in slots]
        if any(row.edits or row.logprobs is not None for row in rows):
            return None
        if all(row.greedy for row in rows):
            return self._agreed(sampling.argmax(logits).tolist())
        indices = [row.index + more for row, more in zip(rows, behind, strict=True)]
        of_rows, at = (torch.tensor(list(each), device=self._device) for each in (slots, indices))
        return self._agreed(sampling.draw(logits, of_rows, at, self._slot_params).tolist())

    def take(self, slots: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Append tokens of :meth:`ahead`, one a row; returns those that the rows take."""
        return [self._row(slot).append(token) for slot, token in zip(slots, tokens, strict=True)]

    def draft(self, logits: torch.Tensor, slots: Sequence[int], best: list[int] | None = None) -> list[int]:
        """The tokens that :meth:`sample` would sample, without masks and log-probabilities; they stay appended to the
        rows until :meth:`take_back`."""
        rows = [self._row(slot) for slot in slots]
        if best is None or not all(row.greedy and not row.edits for row in rows):
            self._edit(logits, rows, slots, NO_MASKS)
            best = self._draw(logits, slots, rows)
        return [row.append(token) for row, token in zip(rows, best, strict=True)]

    def take_back(self, slot: int, tokens: Sequence[int]) -> None:
        """Remove the last tokens of a row, which :meth:`draft` sampled."""
        self._row(slot).take_back(tokens)

    def are_plain(self, slots: Sequence[int]) -> bool:
        """Whether each of these rows takes the argmax and asks for nothing else."""
        return all(self._row(slot).plain for slot in slots)

    def prompt_logprobs(self, logits: torch.Tensor, tokens: Sequence[int], asked: Alternatives) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens.

        Args:
            logits: [n, V] float32, contiguous.
            tokens: the token that followed each of the n positions.
            asked: the alternatives of each.
        """
        return self._read_logprobs(logits, list(range(len(tokens))), list(tokens), [asked] * len(tokens))

    def _row(self, slot: int) -> SampledRow:
        row = self._rows[slot]
        if row is None:
            raise ValueError(f"slot {slot} holds no row; add one before sampling from it")
        return row

    def _raw_of_edited(
        self, logits: torch.Tensor, rows: list[SampledRow], slots: Sequence[int], masks: SlotMasks
    ) -> dict[int, torch.Tensor]:
        """Copies [1, V], by position, of logits that will change but are needed unchanged."""
        return {
            position: logits[position : position + 1].clone()
            for position, row in enumerate(rows)
            if row.logprobs is not None and not row.logprobs.processed and (row.edits or slots[position] in masks)
        }

    def _processed(self, logits: torch.Tensor, rows: list[SampledRow], slots: Sequence[int]) -> dict[int, torch.Tensor]:
        """Logits [1, V], by position, of the distributions that rows sample from, where they ask for theirs."""
        at = [p for p, row in enumerate(rows) if row.logprobs is not None and row.logprobs.processed]
        if not at:
            return {}
        of_rows = torch.tensor([slots[position] for position in at], device=self._device)
        made = sampling.processed(logits[at], self._slot_params.of(of_rows))
        return dict(zip(at, made.split(1), strict=True))

    def _edit(self, logits: torch.Tensor, rows: list[SampledRow], slots: Sequence[int], masks: SlotMasks) -> None:
        """Apply penalties, then bias and bans, then allowed tokens or a mask, to the rows that have them."""
        penalised, biased, restricted = _Edits([], []), _Edits([], []), _Edits([], [])
        strengths: list[tuple[float, float, float]] = []
        for position, row in enumerate(rows):
            if not row.edits:
                continue
            if row.seen is not None:
                penalised.rows.append(position)
                penalised.parts.append(row.seen.lists())
                strengths.append(row.strengths)
            if (bias := row.bias()) is not None:
                biased.rows.append(position)
                biased.parts.append(bias)
            if row.allowed is not None and slots[position] not in masks:
                restricted.rows.append(position)
                restricted.parts.append((row.allowed,))
        if penalised.rows:
            powers = torch.tensor(strengths, dtype=torch.float32, device=self._device)
            sampling.penalise_(logits, powers, *penalised.flat(self._device))
        if biased.rows:
            sampling.add_bias_(logits, *biased.flat(self._device))
        if restricted.rows:
            sampling.restrict_(logits, *restricted.flat(self._device))
        if masks:
            masked = [position for position, slot in enumerate(slots) if slot in masks]
            if masked:
                restrict_rows_(logits, masked, [masks[slots[position]] for position in masked])

    def _draw(self, logits: torch.Tensor, slots: Sequence[int], rows: list[SampledRow]) -> list[int]:
        if all(row.greedy for row in rows):
            sampled_token_ids = sampling.argmax(logits)
        else:
            sampled_token_ids = sampling.draw(
                logits,
                torch.tensor(slots, device=self._device),
                torch.tensor([row.index for row in rows], device=self._device),
                self._slot_params,
            )
        tokens: list[int] = sampled_token_ids.tolist()
        return tokens

    def _agreed(self, sampled_token_ids: list[int]) -> list[int]:
        """The tokens that every rank takes, since ranks must not diverge."""
        return sampled_token_ids if self._ranks is None else self._ranks.broadcast_list(sampled_token_ids)

    def _logprobs(
        self, logits: torch.Tensor, own_logits: dict[int, torch.Tensor], rows: list[SampledRow], tokens: list[int]
    ) -> list[TokenLogprobs | None]:
        """Of each row under its line of ``logits``, or under ``own_logits`` [1, V] of its position."""
        found: list[TokenLogprobs | None] = [None] * len(rows)
        asked = {p: row.logprobs for p, row in enumerate(rows) if row.logprobs is not None}
        wanted = [p for p in asked if p not in own_logits]
        read = self._read_logprobs(logits, wanted, [tokens[p] for p in wanted], [asked[p] for p in wanted])
        for position, entry in zip(wanted, read, strict=True):
            found[position] = entry
        for position, own in own_logits.items():
            found[position] = self._read_logprobs(own, [0], [tokens[position]], [asked[position]])[0]
        return found

    def _read_logprobs(
        self, logits: torch.Tensor, rows: list[int], tokens: list[int], asked: list[Alternatives]
    ) -> list[TokenLogprobs]:
        if not rows:
            return []
        top, ids = widest(asked)
        of_rows, of_tokens = (torch.tensor(each, device=self._device) for each in (rows, tokens))
        given = torch.tensor(ids, dtype=torch.int64, device=self._device)
        found = sampling.logprobs(logits, of_rows, of_tokens, top, given)
        if any(each.logits for each in asked):
            wanted = torch.tensor([each.logits for each in asked], device=self._device)
            found = with_logits(found, logits, of_rows, of_tokens, wanted)
        return logprob_entries(tokens, asked, found)
