"""Runs one pass of a model over rows: as a program, as a graph, or as a forward."""

import itertools
from collections.abc import Sequence

import msgspec
import torch
from msgspec.structs import replace

from stentor.kernels.forward import Step
from stentor.protocols.ipc.steps import RowStep

from ...layers.forward_batch import LayerCache, Taps
from ...layers.linear.adapters import AdapterRows, rows_among
from ...models.decoder import Decoder
from ...models.encoder_decoder import EncoderDecoder
from ...models.pooling_model import PoolingModel
from ...models.speech.framewise import FramewiseTranscriber
from ...models.speech.streamed import StreamedTranscriber
from ...models.transformers.decoder import TransformersDecoder
from ..rows.batch import build_batch, few_tokens, last_tokens
from ..rows.extras import ExtraResults, RowExtras
from ..rows.rows import RowTable
from .pass_graphs import PassGraphs, Replayed

ServedModel = Decoder | TransformersDecoder | EncoderDecoder | FramewiseTranscriber | StreamedTranscriber | PoolingModel


class PassResult(msgspec.Struct, frozen=True):
    """The results of a pass; tensors are valid until the next one."""

    logits: torch.Tensor | None = None
    """Logits of the last token of each row that samples, and of its drafts."""
    best: list[int] | None = None
    """The argmax of each, if it is known already."""
    states: tuple[Sequence[int], torch.Tensor] | None = None
    """Each row's first index in the hidden states, and the hidden states, if requested."""
    taps: torch.Tensor | None = None
    """float [tokens, layers · hidden]: the stream before the requested layers."""
    adapters: AdapterRows | None = None
    """Adapters of the hidden states, if rows have some."""
    findings: ExtraResults = msgspec.field(default_factory=ExtraResults)


class ModelPass:
    """A model over its caches. A pass runs in the first of these ways that computes all that its rows ask for:

    ======= ===================================================== ====================================================
    way     runs                                                  for
    ======= ===================================================== ====================================================
    program one native call, from the row tables to logits        a decoder that is a program without calls; rows with
                                                                  nothing but tokens, and adapters that it applies
    graph   the replay of a captured graph                        a model with ``graphs`` of the rows' size; rows with
                                                                  nothing but tokens, and no adapters
    paged   the model's forward, over blocks of the caches        all rows of a model with caches
    whole   the model's forward, over texts without caches        all rows of a model that caches nothing
    ======= ===================================================== ====================================================

    :meth:`_run` chooses. "Nothing but tokens": the row's :class:`.RowExtras` (media, states, log-probabilities of a
    prompt and others) have no part in the pass.
    """

    def __init__(
        self,
        model: ServedModel,
        caches: Sequence[LayerCache],
        rows: RowTable,
        device: torch.device,
        graphs: PassGraphs | None,
    ) -> None:
        """``graphs``: of this model over these caches."""
        self._model = model
        self._graphs = graphs
        self._caches = caches
        self._whole = isinstance(model, PoolingModel | FramewiseTranscriber) and not caches
        self._rows = rows
        self._device = device
        self._decodes_first = device.type != "cpu"
        """Whether rows of few tokens come before others, as one kernel attends to their keys and another to those of
        prompts."""
        self._has_adapters = isinstance(model, Decoder) and model.context.adapters is not None
        """Whether the model uses adapters; a draft model does not."""
        self._no_adapters = [-1] * len(rows.adapters)
        self._programs = model.programs(caches) if isinstance(model, Decoder) else None
        reads = model.programs(caches) if isinstance(model, PoolingModel) and caches else self._programs
        self._expands = reads is not None and reads.expands
        """Whether the products of long prompts expand coded weights, so that their rows come last."""
        self._tokens_per_row = 1.0 if reads is None else reads.tokens_per_row
        """Experts' products expand theirs for prompts that are longer by this factor; their rows come last of all."""
        self._step = (
            None if self._programs is None else self._programs.step_over(rows.tokens, rows.blocks, rows.block_size)
        )
        """The program from row tables to logits; None if the model is none, or makes calls."""

    @property
    def calls(self) -> list[str]:
        """Operations of a pass outside its program, in words."""
        return [] if self._programs is None else self._programs.calls

    def run(
        self,
        rows: Sequence[RowStep],
        extras: RowExtras | None = None,
        *,
        every: bool = False,
        taps: tuple[int, ...] = (),
    ) -> PassResult:
        """Run the rows.

        Args:
            extras: of the rows, besides tokens.
            every: return the hidden states of all tokens.
            taps: return the stream before these layers.
        """
        order, forms = self._order(rows)
        if order == list(range(len(rows))):
            return self._run(rows, forms, extras, every=every, taps=taps)
        passed = self._run([rows[at] for at in order], forms, extras, every=every, taps=taps)
        return _in_order(passed, rows, order)

    def _order(self, rows: Sequence[RowStep]) -> tuple[list[int], tuple[int, int]]:
        """The order in which the rows are computed, and how many of the first multiply by coded weights of dense
        layers, and of experts, without expanding them.

        Those come first; among them, and among the others, the rows of few tokens, where that matters.
        """
        expands = [self._expansions(row) for row in rows]
        many = [self._decodes_first and not few_tokens(row) for row in rows]
        order = list(range(len(rows)))
        if self._expands or self._decodes_first:
            order.sort(key=lambda at: (expands[at], many[at]))
        return order, (expands.count(0), len(rows) - expands.count(2))

    def _expansions(self, row: RowStep) -> int:
        """0 if no product of the row expands coded weights, 1 if those of dense layers do, 2 if all do."""
        if not self._expands:
            return 0
        return self._rows.expands(row) + self._rows.expands(row, self._tokens_per_row)

    def _run(
        self,
        rows: Sequence[RowStep],
        forms: tuple[int, int],
        extras: RowExtras | None,
        *,
        every: bool,
        taps: tuple[int, ...],
    ) -> PassResult:
        """Run rows in their order, in one of the ways of the class.

        ``forms``: how many of the first rows multiply by coded weights of dense layers, and of experts, without
        expanding them.
        """
        only_tokens = extras is None or not extras.concerns(rows)
        adapted = self._has_adapters and self._rows.any_adapted(rows)
        if only_tokens and not taps and self._step is not None and (not adapted or self._program_adapts(rows)):
            return self._run_program(self._step, rows, forms, every=every)
        graphs = self._graphs
        if only_tokens and not adapted and graphs is not None and (graphs.keeps_hidden or not every):
            replayed = graphs.run(rows)
            if replayed is not None:  # there is a graph of this size
                return self._result_of(replayed, rows)
        return self._run_forward(rows, forms, extras, every=every, taps=taps)

    def _program_adapts(self, rows: Sequence[RowStep]) -> bool:
        """Whether the program computes all that the rows' adapters change."""
        assert isinstance(self._model, Decoder)
        assert self._programs is not None
        return self._programs.adapts and not self._model.adapted_beside(self._rows.adapters[row.slot] for row in rows)

    def _run_forward(
        self,
        rows: Sequence[RowStep],
        forms: tuple[int, int],
        extras: RowExtras | None,
        *,
        every: bool,
        taps: tuple[int, ...],
    ) -> PassResult:
        """Run the model's forward over blocks of the caches, or over whole texts."""
        batch = build_batch(rows, self._rows, None if self._whole else self._caches, self._device)
        if self._expands:
            coded, coded_experts = (sum(row.count for row in rows[:count]) for count in forms)
            batch = replace(batch, forward=replace(batch.forward, coded=coded, coded_experts=coded_experts))
        if extras is not None:
            batch = replace(batch, forward=extras.extend(batch.forward, rows))
        tapped = Taps(taps)
        if taps:
            batch = replace(batch, forward=replace(batch.forward, taps=tapped))
        hidden = self._model.forward(batch.forward)
        adapters, last = batch.forward.adapter_rows, batch.last
        of_last = rows_among(adapters, last, len(hidden)) if len(last) else None
        return PassResult(
            logits=self.logits(hidden.index_select(0, last), of_last) if len(last) else None,
            states=(batch.starts, hidden) if every else None,
            taps=torch.cat(tapped.found, dim=1) if taps else None,
            adapters=adapters,
            findings=ExtraResults() if extras is None else extras.read(batch, rows, hidden),
        )

    def _result_of(self, replayed: Replayed, rows: Sequence[RowStep]) -> PassResult:
        """The result of a graph's replay over the rows."""
        starts = list(itertools.accumulate((row.count for row in rows), initial=0))
        last = last_tokens(rows, starts[1:])
        logits = replayed.logits
        if 0 < len(last) < len(logits):
            logits = logits.index_select(0, torch.tensor(last, dtype=torch.int64, device=self._device))
        return PassResult(
            logits=logits if last else None,
            states=None if replayed.hidden is None else (starts[:-1], replayed.hidden),
            taps=replayed.taps,
        )

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """float32 [rows, vocabulary] of hidden states [rows, hidden]; ``adapters`` are those of the rows."""
        assert not isinstance(self._model, PoolingModel | FramewiseTranscriber), "a model that pools draws no tokens"
        if isinstance(self._model, Decoder):
            return self._model.logits(hidden, adapters=adapters)
        return self._model.logits(hidden)

    def _run_program(self, step: Step, rows: Sequence[RowStep], forms: tuple[int, int], *, every: bool) -> PassResult:
        """Run the whole pass as one call, from the row tables to logits."""
        assert self._programs is not None
        assert isinstance(self._model, Decoder)
        adapters = self._rows.adapters if self._has_adapters else self._no_adapters
        work = [
            (row.slot, row.start, row.count, 1 + row.num_drafts if row.sample else 0, adapters[row.slot])
            for row in rows
        ]
        found = step.run(work, every=every, coded=forms[0], coded_experts=forms[1])
        states = None
        if every:
            starts = list(itertools.accumulate((row.count for row in rows[:-1]), initial=0))
            states = starts, self._programs.last_hidden(sum(row.count for row in rows))
        if found is None:
            return PassResult(states=states)
        head = self._model.head
        logits, best = head.logits(found[0]), found[1]
        if head.finishes:
            return PassResult(head.finished(logits), states=states)
        return PassResult(logits, best.tolist(), states)


def _in_order(passed: PassResult, rows: Sequence[RowStep], order: Sequence[int]) -> PassResult:
    """Reorder a pass over ``rows`` in order ``order`` to their own; hidden states are not moved."""
    drawn: list[range] = [range(0)] * len(rows)
    starts = [0] * len(rows)
    first = 0
    for place, at in enumerate(order):
        count = 1 + rows[at].num_drafts if rows[at].sample else 0
        drawn[at] = range(first, first + count)
        first += count
        if passed.states is not None:
            starts[at] = passed.states[0][place]
    wanted = list(itertools.chain.from_iterable(drawn))
    return replace(
        passed,
        logits=None if passed.logits is None else passed.logits[wanted],
        best=None if passed.best is None else [passed.best[at] for at in wanted],
        states=None if passed.states is None else (starts, passed.states[1]),
    )
