"""A step between engine and worker: the plan and the result.

The engine sends only changes. A worker keeps one *row* for each slot (its tokens, block table and sampling parameters)
from the step that names it in ``new`` until the step that names it in ``freed``. Sampled tokens stay on the worker: a
decode row's next input is the token that the worker sampled, so step N+1 may be sent before the result of N has been
read.

The allowed tokens of a row with a grammar are known only when its previous token is. The plan names such rows in
``masked``, and the worker samples the step's tokens when its :class:`Masks` have arrived. The engine sends them before
the next plan.

A step may add several tokens to a row. With ``num_drafts`` d it computes the row's last token and up to d draft tokens
behind it, and gains the accepted drafts and one token more, 1 to 1 + d. The worker knows the number first; the engine
learns it from ``counts``. A step that is planned meanwhile begins at the row's real end on the worker.
"""

import msgspec

from .audio import AlignmentOutput, PromptProbe
from .inputs import ArenaRef
from .pooling import Pooled, Pooling
from .sampling import SamplingParams


class RowSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Media of a row, as :class:`.inputs.InputSpan` has them."""

    encoder_slot: int
    """Slot of the encoding, from the step on that first reads it; -1: not read, since all its positions are in the
    cache."""
    start: int
    length: int
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0
    causal: bool = False


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row enters a slot: for the first time, or again after a preemption."""

    slot: int
    tokens: list[int]
    """Prompt and everything generated so far."""
    prompt_len: int
    params: SamplingParams
    seed: int
    """Unsigned 64 bits; noise is keyed by (seed, output index)."""
    blocks: list[int]
    """Block table so far, shared prefix blocks included."""
    request: str = ""
    """The name of its request in logs."""
    masked: bool = False
    """Whether the engine may restrict its tokens. ``min_tokens`` is then 0, and the engine enforces it."""
    spans: list[RowSpan] = []
    """Media of positions that have yet to be computed; all media of the prompt, if their grids determine later
    positions."""
    probe: PromptProbe | None = None
    """Wanted of the steps that compute the positions."""
    pooling: Pooling | None = None
    state: int = -1
    """The slot of the recurrent state that it begins from, which it does not write; -1: it begins with none."""
    adapter: int = -1
    """The slot of its adapter; -1: it has none."""
    domain: bytes = b""
    """Digest of its cache salt and adapter. Its tokens may be proposed only to rows with the same domain."""


class ForkedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row that enters together with another of its request, and has all that is not named here from that one."""

    origin: int
    """Index in the plan's ``new`` of the row with the prompt and parameters of both."""
    slot: int
    outputs: list[int]
    """Tokens behind the prompt."""
    seed: int
    blocks: list[int]
    state: int = -1


class RowStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Work of one row in one step: tokens at positions [start, start + count), and drafts behind them.

    ``start`` is exact if all earlier results of the row had arrived when the step was planned. While a step with drafts
    is in flight, it is the least: the position if that step gained one token. The worker then computes from the row's
    last token on, which is ``count`` 1 before its end. The block table covers every position that the row may reach.
    """

    slot: int
    start: int
    count: int
    new_blocks: list[int]
    """Appended to the row's block table before the step."""
    sample: bool
    """Whether a token is sampled after the last position (false for all but the last prefill chunk)."""
    num_drafts: int = 0
    """Draft tokens that the step may compute behind the last one, at most; only where ``sample`` and ``count`` is 1."""
    state: int = -1
    """Slot that the row's recurrent state is written to, from this step on; -1: the slot that it reads. The slot left
    behind does not change."""


class EncodeJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Media to be encoded before the rows of its step run."""

    encoder_slot: int
    """Slot of the result; its content is overwritten. If all positions attend to media, slots are in [0, ``capacity /
    window`` of the group of kind ``cross``)."""
    data: ArenaRef
    sliced: bool = False
    """Only a part of it: no row of the step reads it, and ``StepResult.encoded`` says when it is done. False: all, or
    all that is left."""
    adapter: int = -1
    """The slot of the adapter with which it is encoded, where all positions attend to it; -1: with none."""


class RowInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """More audio for a row with streamed audio, after all that it has been given since it entered."""

    slot: int
    pieces: list[ArenaRef]
    """The audio, in order (:attr:`.inputs.Streamed.pieces`)."""
    ended: bool
    """Whether no audio follows; missing audio of the last position is silence."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, tag="step", gc=False):
    """One step. ``freed`` is applied first, then ``new`` and ``forks``; then blocks are copied, the media of ``encode``
    are encoded and ``inputs`` handed out, and ``rows`` run as one batch.

    The prompt and the parameters of a request travel once a plan, however many of its sequences enter.
    """

    epoch: int
    step: int
    freed: list[int]
    new: list[NewRow]
    rows: list[RowStep]
    masked: list[int] = []
    """Slots of rows with restricted tokens. If there are any, no token is sampled before the step's :class:`Masks`
    arrive."""
    encode: list[EncodeJob] = []
    inputs: list[RowInput] = []
    """Handed to their rows before these run."""
    forks: list[ForkedRow] = []
    forgotten: list[int] = []
    """Encoder slots whose content is no longer used, freed before ``encode`` fills any."""
    copies: list[tuple[int, int]] = []
    """Blocks to copy in order, (from, to), before the step is computed. Numbers below 0 are places in host memory, from
    -1 on. Displaced blocks go to the host tier and found ones come back; a new row continues in a copy of a known
    block."""
    adapters: list[tuple[int, int]] = []
    """Slots of adapters that get another one, and the number of each; before rows enter."""
    state_copies: list[tuple[int, int]] = []
    """The same as ``copies`` of slots of recurrent states: only to host memory and back."""


class RowMask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Allowed tokens of one row at one position; its own allowed and banned tokens are already applied."""

    slot: int
    ids: list[int]
    """The tokens, where they are few; otherwise none."""
    bits: int
    """Which of the masks' ``bits`` says so; -1 where ``ids`` do. Without ``ids``, -1 means that nothing is restricted:
    between positions that are."""


class Masks(msgspec.Struct, frozen=True, array_like=True, tag="masks", gc=False):
    """Masks of a step with masked rows. Other rows sample without a mask and gain one token.

    A row with drafts has a mask for each position, in order: the first for its one token, each further one for the
    token after one more of its announced drafts (:class:`RowDrafts`). It gains at most as many tokens as it has masks:
    none follow a draft that is not allowed.
    """

    epoch: int
    step: int
    rows: list[RowMask]
    bits: list[bytes]
    """Distinct sets of tokens: token t is bit t % 8 of byte t // 8, and 32-bit words are whole. Tokens beyond are not
    allowed."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities (natural logarithm, of the raw logits: before penalties and temperature) at one position."""

    token: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """The most likely alternatives, best first."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of prompt tokens [start, start + len(positions)) of one row."""

    slot: int
    start: int
    positions: list[TokenLogprobs]


class RowAlignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row's result for :class:`.audio.AlignmentOutput`."""

    slot: int
    alignment: AlignmentOutput


class RowPooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Output made of one row's prompt, in the step that computed the prompt's end."""

    slot: int
    pooled: Pooled


class PooledPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A further part of one row's pooled output: of :attr:`.pooling.Pooled.data`, then of ``ids``."""

    slot: int
    data: bytes


class RowDrafts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Drafts that the worker will propose for one row's next step, as far as that has drafts."""

    slot: int
    tokens: list[int]


class ExpertShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Experts of a position, if returned: expert numbers, best first, of each layer with experts."""

    layers: int
    top_k: int
    width: int
    """Bytes of the number of an expert, unsigned, little-endian: 1 or 2."""

    @property
    def token_bytes(self) -> int:
        return self.layers * self.top_k * self.width


class RowExperts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The experts that have computed positions [start, start + count) of one row, where its parameters ask for them."""

    slot: int
    start: int
    count: int
    data: bytes
    """[count, layers, top_k], see :class:`ExpertShape`."""


class RowFault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row cannot be computed: its request ends, and all others continue."""

    slot: int
    message: str
    start: int = -1
    """Where in the prompt the medium begins that cannot be encoded; -1: the request is not at fault."""


class StepPart(msgspec.Struct, frozen=True, array_like=True, tag="part", gc=False):
    """Some of the next :class:`StepResult`, which is large: it comes without."""

    prompt_logprobs: list[PromptLogprobs]
    pooled: list[PooledPart]
    routed: list[RowExperts] = []


class StepResult(msgspec.Struct, frozen=True, array_like=True, tag="result", gc=False):
    """``tokens``, ``logprobs`` and ``counts`` follow the order of the plan's rows whose ``sample`` is true; the tokens
    of one row are adjacent."""

    epoch: int
    step: int
    tokens: list[int]
    logprobs: list[TokenLogprobs | None] | None
    """None when no row asked; otherwise one entry per token."""
    prompt_logprobs: list[PromptLogprobs]
    seconds: float
    """Time that the worker spent on the step."""
    alignments: list[RowAlignment] = []
    pooled: list[RowPooled] = []
    counts: list[int] | None = None
    """Tokens that each row gained, 1 to 1 + its drafts; None if each gained one and no row had drafts."""
    drafts: list[RowDrafts] = []
    """For rows that may be masked, after a token: masks of their next step need them. A masked row without an entry
    proposes nothing in that step."""
    routed: list[RowExperts] = []
    """For rows that request experts."""
    faults: list[RowFault] = []
    encoded: list[int] = []
    """Encoder slots that slices have completed."""
    media_room: int = 0
    """Tokens of prompts with media that steps are to compute at most beside rows that decode, from now on; 0: as many
    as before."""
    drafted: list[int] | None = None
    """Drafts that each row was verified with, at most its ``num_drafts``; None if ``counts`` is None."""
