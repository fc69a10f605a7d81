"""What the engine asks of a worker for one step, and what comes back.

The engine sends only what changed. A worker keeps one *row* per slot (its tokens, block table and
sampling parameters) from the step that names it in ``new`` until the step that names it in
``freed``. Sampled tokens stay on the worker: a decode row's next input is the token that the
worker itself drew, so step N+1 may be sent before the result of N has been read.

What a row with a grammar may draw is known only once its token before is: the plan names it in ``masked``, and the
worker draws the tokens of that step when its :class:`Masks` have come. The engine sends them before the next plan.

A step may add several tokens to a row: with ``num_drafts`` d it computes the row's last token and up to d draft tokens
behind it, and gains the drafts that are accepted and one token more, 1 to 1 + d. How many is known on the worker first,
and the engine learns it from ``counts``; a step that is planned meanwhile begins on the worker where the row really
ends.
"""

import msgspec

from .audio import AlignmentOutput, PromptProbe
from .inputs import ArenaRef
from .pooling import Pooled, Pooling
from .sampling import SamplingParams


class RowSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Media of a row, as :class:`.inputs.InputSpan` has them."""

    encoder_slot: int
    """Where what was encoded lies from the step on that first reads it; -1: nobody is to read it, all its positions are
    in the cache already."""
    start: int
    length: int
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0


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
    """Whether the engine may restrict its draws. Its ``min_tokens`` is then 0: the engine sees to it."""
    spans: list[RowSpan] = []
    """Media that positions of the row read which have yet to be computed; all of the prompt, where their grids say
    where later positions stand."""
    probe: PromptProbe | None = None
    """Wanted of the steps that compute the positions."""
    pooling: Pooling | None = None
    state: int = -1
    """The slot of the recurrent state that it begins from, which it does not write; -1: it begins with none."""
    adapter: int = -1
    """The slot of its adapter; -1: it has none."""
    domain: bytes = b""
    """What it draws may be proposed to rows with the same alone: names its cache salt and its adapter."""


class ForkedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row that enters together with another of its request, and has all that is not named here from that one."""

    origin: int
    """Index in the plan's ``new`` of the row that brings prompt and parameters for both."""
    slot: int
    outputs: list[int]
    """What follows the prompt."""
    seed: int
    blocks: list[int]
    state: int = -1


class RowStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The work of one row in one step: tokens at positions [start, start + count), and drafts behind them.

    ``start`` is exact where all earlier results of the row had been taken when the step was planned. Where a step with
    drafts was in flight, it is the least: the position if that step gained one token. The worker then computes from the
    row's last token on, which is ``count`` 1 before its end. The block table covers every position that the row may
    reach.
    """

    slot: int
    start: int
    count: int
    new_blocks: list[int]
    """Appended to the row's block table before the step."""
    sample: bool
    """Whether a token is drawn after the last position (false for all but the last prefill chunk)."""
    num_drafts: int = 0
    """Draft tokens that the step may compute behind the last one, at most; only where ``sample`` and ``count`` is 1."""
    state: int = -1
    """The slot that gets the row's recurrent state in this step and from now on; -1: the one that it reads. What it has
    left behind stays as it is."""


class EncodeJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Media to be encoded before the rows of its step run."""

    encoder_slot: int
    """Where the result is kept; what was there is overwritten. Where all positions attend to media, slots are in [0,
    ``capacity / window`` of the group of kind ``cross``)."""
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
    """See :attr:`.inputs.Streamed.pieces`."""
    ended: bool
    """Whether nothing follows; what its last position lacks is silence."""


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
    """Slots of rows whose token may be restricted: where there are any, none is drawn before the step's :class:`Masks`
    have come."""
    encode: list[EncodeJob] = []
    inputs: list[RowInput] = []
    """Handed to their rows before these run."""
    forks: list[ForkedRow] = []
    forgotten: list[int] = []
    """Encoder slots whose content nobody finds any more, before ``encode`` fills any."""
    copies: list[tuple[int, int]] = []
    """Blocks that are copied in order, from and to, before anything of the step is computed; below 0 stand places in
    host memory, -1 is the first. So what the pool gives away goes to the host tier, and what lies there comes back. And
    a row that enters goes on within a block that others know."""
    adapters: list[tuple[int, int]] = []
    """Slots of adapters that get another one, and the number of each; before rows enter."""
    state_copies: list[tuple[int, int]] = []
    """The same as ``copies`` of slots of recurrent states: only to host memory and back."""


class RowMask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one row may draw at one position; its own allowed and banned tokens are taken into account already."""

    slot: int
    ids: list[int]
    """The tokens, where they are few; otherwise none."""
    bits: int
    """Which of the masks' ``bits`` says so; -1 where ``ids`` do. Without ``ids``, -1 means that nothing is restricted:
    between positions that are."""


class Masks(msgspec.Struct, frozen=True, array_like=True, tag="masks", gc=False):
    """For a step with masked rows. Those that are not named here may draw what they could without, and gain one token.

    A row with drafts has a mask for each position, in order: the first for its one token, each further one for the
    token after one more of the drafts that it has told (:class:`RowDrafts`). It gains at most as many tokens as it has
    masks: none follow a draft that may not be drawn.
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
    """What one row of the step has brought of :class:`.audio.AlignmentOutput`."""

    slot: int
    alignment: AlignmentOutput


class RowPooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was made of the prompt of one row, in the step that computed the end of it."""

    slot: int
    pooled: Pooled


class PooledPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """More of what is made of the prompt of one row: of :attr:`.pooling.Pooled.data`, and after it of ``ids``."""

    slot: int
    data: bytes


class RowDrafts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the worker will propose for the next step of one row, as far as that has drafts."""

    slot: int
    tokens: list[int]


class ExpertShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is told of a position where experts are told: numbers of experts, the best first, of each layer that has
    any."""

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
    """What one row has brought cannot be computed: its request ends, and all others go on."""

    slot: int
    message: str


class StepPart(msgspec.Struct, frozen=True, array_like=True, tag="part", gc=False):
    """Some of the next :class:`StepResult`, which is large: it comes without."""

    prompt_logprobs: list[PromptLogprobs]
    pooled: list[PooledPart]
    routed: list[RowExperts] = []


class StepResult(msgspec.Struct, frozen=True, array_like=True, tag="result", gc=False):
    """``tokens``, ``logprobs`` and ``counts`` follow the order of the plan's rows whose ``sample`` is true; the tokens
    of one row stand together."""

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
    """Tokens that each row has gained, 1 to 1 + its drafts; None where each has gained one and no row had drafts."""
    drafts: list[RowDrafts] = []
    """Of rows that may be masked, once they have drawn a token: masks of their next step need them. A row that is not
    named proposes nothing in that step, if it is masked."""
    routed: list[RowExperts] = []
    """Of rows that ask for them."""
    faults: list[RowFault] = []
    encoded: list[int] = []
    """Encoder slots that slices have completed."""
    media_room: int = 0
    """Tokens of prompts with media that steps are to compute at most beside rows that decode, from now on; 0: as many
    as before."""
    drafted: list[int] | None = None
    """Drafts that each row was verified with, at most its ``num_drafts``; None where ``counts`` is."""
