"""The batch that all layers of a forward pass get: its tokens, caches and states.

The worker makes it (:mod:`stentor.engine.worker.passes.model_pass`), and models hand it to every layer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec
import torch

from stentor import kernels
from stentor.kernels.forward import TracedTokens

from ..model_config.spec.recurrent import StateTensor
from .linear.adapters import AdapterRows
from .linear.quantized import Stream
from .varlen_batch import Padded, VarlenBatch

CacheScales = tuple[torch.Tensor | None, torch.Tensor | None]
"""Scales of keys and of values as kernels take them; None without scales."""


class LayerCache(msgspec.Struct, frozen=True, dict=True):
    """The cache of one layer, in the layout that ``kernels`` defines."""

    tensors: tuple[torch.Tensor, ...]
    """Keys and values, with scales behind int8 ones; or latents. The keys of an index, if there is one, are last."""
    group: int = 0
    """The cache group, which selects the block tables."""
    block: int = 0
    """Tokens of a block, where an entry is of several tokens."""

    @cached_property
    def k(self) -> torch.Tensor:
        return self.tensors[0]

    @cached_property
    def v(self) -> torch.Tensor:
        return self.tensors[1]

    @property
    def latents(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def index(self) -> torch.Tensor:
        return self.tensors[-1]

    def scales(self, stored: tuple[torch.Tensor, torch.Tensor]) -> CacheScales:
        """Scales of keys and of values: ``stored`` ones for float8, those of each token for int8."""
        if self.k.dtype == torch.int8:
            return self.tensors[2], self.tensors[3]
        return stored if self.k.dtype == torch.float8_e4m3fn else (None, None)


class Texts(msgspec.Struct, frozen=True):
    """Whole sequences without a KV cache, of encoders and media towers: each token may attend to its whole sequence."""

    varlen: VarlenBatch
    cu_seqlens: torch.Tensor
    """int32 [texts + 1], on the device: text t has the tokens [cu_seqlens[t], cu_seqlens[t + 1])."""
    layout: kernels.KeyLayout | None
    """Layout of the keys, on a CPU."""
    query_starts: torch.Tensor | None = None
    """int32 [texts + 1]: where each text's queries begin, if only some of the tokens have any."""
    bias: torch.Tensor | None = None
    """float32 [heads, longest, longest]: added to scores by query and key."""
    padded: Sequence[Padded] = ()
    """The texts padded, if there is a bias."""
    seen: torch.Tensor | None = None
    """int64, ascending: the tokens that have keys, which ``cu_seqlens`` counts; None: all tokens."""


class Encoded(msgspec.Struct, frozen=True):
    """The encoded audio that tokens attend to."""

    attention: kernels.AttentionBatch
    """Each token is a row over all keys of its encoder slot."""
    caches: Sequence[LayerCache]
    """One a layer."""
    queries: dict[int, torch.Tensor] | None = None
    """Filled with the queries [tokens, heads, head_dim] of each layer, if given."""


Mix = Callable[[torch.Tensor, "ForwardBatch"], torch.Tensor]
"""The part of a recurrent mixer between its projections, which alone changes the state."""


class MixerInputs(msgspec.Struct, frozen=True):
    """Recorded inputs of recurrent mixers for some tokens of a pass, from which the states can be computed again."""

    tokens: torch.Tensor | None
    """int64 [n], ascending: the recorded tokens; None: all."""
    found: list[tuple[Mix, torch.Tensor]] = msgspec.field(default_factory=list)
    """For each mixer, after the pass: its function and inputs [n, all parts]."""
    buffers: list[torch.Tensor] | None = None
    """By mixer: [most tokens, all parts], to which a pass that is a CUDA graph writes the inputs of all tokens. Mixers
    beyond the list get a new buffer, as large as the pass."""

    def record(self, mix: Mix, parts: torch.Tensor) -> None:
        """Record a mixer's inputs [tokens, all parts]."""
        if self.tokens is not None:
            parts = parts.index_select(0, self.tokens)
        if self.buffers is not None:
            if len(self.buffers) == len(self.found):
                self.buffers.append(torch.empty_like(parts))
            buffer = self.buffers[len(self.found)]
            buffer.narrow(0, 0, len(parts)).copy_(parts)
            parts = buffer
        self.found.append((mix, parts))

    def rows_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rows of the recorded inputs that belong to these tokens, int64 [m], all of which are recorded."""
        return tokens if self.tokens is None else torch.searchsorted(self.tokens, tokens)


class StateBatch(msgspec.Struct, frozen=True):
    """The recurrent states of a pass's rows."""

    rows: kernels.StateRows
    of_layer: Mapping[int, Sequence[torch.Tensor]]
    """By layer: [slots, ...] of each part of a state, see :class:`..model_config.spec.recurrent.StateTensor`."""
    inputs: MixerInputs | None = None
    """Records the mixers' inputs, if given."""

    @classmethod
    def of_whole(cls, texts: Texts, states: Mapping[int, Sequence[StateTensor]], dtype: torch.dtype) -> "StateBatch":
        """For whole texts: states begin as zeros and are kept nowhere. ``states`` by layer; ``dtype``: that of inputs
        of convolutions."""
        device = texts.cu_seqlens.device
        nowhere = torch.full((len(texts.varlen.lengths),), -1, device=device)
        rows = kernels.StateRows(texts.cu_seqlens, nowhere, nowhere.clone(), texts.varlen.max_seqlen)
        kept = {
            layer: [
                torch.zeros(1, *part.shape, dtype=torch.float32 if part.recurrent else dtype, device=device)
                for part in parts
            ]
            for layer, parts in states.items()
        }
        return cls(rows, kept)

    def note(self, mix: Mix, parts: torch.Tensor) -> None:
        """Record a mixer's inputs [tokens, all parts]."""
        if self.inputs is not None:
            self.inputs.record(mix, parts)


class SeenMedia(msgspec.Struct, frozen=True):
    """Tokens [first, first + count) of a pass, which attend to the same media."""

    first: int
    count: int
    keys: Sequence[Mapping[int, torch.Tensor]]
    """Of each medium, by layer: :meth:`.picture_layer.PictureLayer.keys_and_values`."""


class MediaBatch(msgspec.Struct, frozen=True):
    """Media embeddings of a pass; while it is recorded, their possible kinds."""

    layers: Sequence[int] = ()
    """Layers behind which something may be added."""
    sees_whole: bool = False
    """Whether there may be spans whose tokens attend to each other."""
    places: torch.Tensor | None = None
    """int64 [n]: indices of media tokens in the pass."""
    embeddings: torch.Tensor | None = None
    """[n, hidden]"""
    behind: Mapping[int, torch.Tensor] = msgspec.field(default_factory=dict)
    """By layer: [n, hidden], added to the stream behind it."""
    spans: Sequence[kernels.WholeSpan] = ()
    expert_places: tuple[torch.Tensor, torch.Tensor] | None = None
    """int64 each: indices of tokens that use the experts of text, and of those that use media's, or choose theirs as
    media; None: there are none of the latter."""
    seen: Sequence[SeenMedia] = ()
    """For layers of cross-attention to media."""
    added: bool = False
    """Whether media embeddings are added to those of their tokens, in place of standing there (Molmo 2)."""

    def put(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """x [tokens, hidden] with media embeddings times ``scale`` in place of their tokens, or added to them."""
        if self.places is None or self.embeddings is None:
            return x
        values = (self.embeddings * scale).to(x.dtype)
        return x.index_add(0, self.places, values) if self.added else x.index_copy(0, self.places, values)

    def named(self, tokens: torch.Tensor, token: int) -> torch.Tensor:
        """The tokens, int64 [tokens], with media tokens replaced by ``token``."""
        return tokens if self.places is None else tokens.index_fill(0, self.places, token)

    def add(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden] behind this layer, with its additions for media."""
        if self.places is None or (features := self.behind.get(layer)) is None:
            return x
        return x.index_add(0, self.places, features.to(x.dtype))


class Taps(msgspec.Struct, frozen=True):
    """Copies the stream before some layers, for a draft head."""

    layers: tuple[int, ...]
    """Copy before these layers; ascending. Behind the last one: several streams, before they are narrowed."""
    found: list[torch.Tensor] = msgspec.field(default_factory=list)
    """The copies [tokens, hidden] after the pass; of several streams [tokens, streams · hidden]."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Copy x, and return it."""
        self.found.append(x.clone())
        return x


class ChosenTokens(msgspec.Struct):
    """The tokens chosen by an index, for its layer and later layers that share it."""

    positions: torch.Tensor | None = None
    """int32 [tokens, top_k], see :func:`stentor.kernels.top_tokens`, or int64 for entries; None: each token sees all
    before it. Every layer with an index overwrites it."""
    blocks: torch.Tensor | None = None
    """int64 [tokens, blocks]: of entries, among which later indexes choose; -1: none."""


class Carried(msgspec.Struct):
    """Values that layers hand on besides the residual stream."""

    output: Stream | None = None
    """[tokens, hidden], from one layer's experts to the next layer, which adds it to the stream."""
    router: torch.Tensor | None = None
    """float32 [tokens, size]: what a router computed, for that of the next layer."""
    words: Stream | None = None
    """[tokens, hidden]: the embeddings, for shared blocks."""
    mix: Stream | None = None
    """float32 [tokens, weights of streams], from one part of a layer to the next; None before the first."""
    kept: dict[int, Stream] = msgspec.field(default_factory=dict)
    """[tokens, hidden]: the stream before each of these layers, for blends."""
    distances: torch.Tensor | None = None
    """float32 [tokens, heads, distances]: what scores get in all layers with a window of an answer."""


class ForwardBatch(msgspec.Struct, frozen=True):
    """The tokens of a pass, sequences concatenated; or placeholders while a pass is recorded.

    Either tokens attend causally over ``caches``, to which they are added (``attention``), or to their whole text,
    without caches (``texts``).
    """

    tokens: torch.Tensor | TracedTokens
    """int64 [tokens]"""
    positions: torch.Tensor
    """int64 [tokens]"""
    caches: Sequence[LayerCache] = ()
    """One for each layer with attention, in order."""
    attention: Sequence[kernels.AttentionBatch] = ()
    """By cache group; groups differ in block tables and slots."""
    texts: Texts | None = None
    routed: list[torch.Tensor] | None = None
    """If rows ask for their experts: each mixture of experts appends int32 [tokens, top_k]."""
    added: torch.Tensor | None = None
    """[tokens, hidden], added to the token embeddings."""
    media: MediaBatch | None = None
    """None: no token is a medium."""
    encoded: Encoded | None = None
    """For cross-attention."""
    states: StateBatch | None = None
    """For recurrent mixers."""
    chosen: ChosenTokens = msgspec.field(default_factory=ChosenTokens)
    """For sparse attention to latents or entries."""
    carried: Carried = msgspec.field(default_factory=Carried)
    """For experts beside two layers, and for shared blocks."""
    token_types: torch.Tensor | None = None
    """int64 [tokens], for encoders with token types; None: all 0."""
    tasks: Sequence[int] = ()
    """The task adapter of each text, -1 for none; empty: no text has one."""
    adapter_rows: AdapterRows | None = None
    """The adapter of each row, of a task or a request; None: no row has one."""
    rotation: tuple[torch.Tensor, torch.Tensor] | None = None
    """Cosines and sines that replace the layers' rotary tables, float32 [positions, rotating pairs] each,
    or [positions, head_dim] for :func:`.rotary.rotate_apart_`."""
    taps: Taps | None = None
    """None: nothing is copied."""
    drafted: Sequence[kernels.WholeSpan] = ()
    """The blocks of tokens that are drafted, if these are all tokens: they see the caches, to which they are not added,
    and each other, as the layers' ``whole_spans`` says."""
    drawn: Sequence[bool] = ()
    """For each sequence of a pass on a CPU, whether all its tokens are behind its prompt."""
    prompt_lens: Sequence[int] = ()
    """For each sequence of a pass on a CPU, the tokens of its prompt."""
    coded: int | None = None
    """Tokens before this index multiply codes as they are, see :meth:`kernels.forward.Forward.run`; None: all do."""
    coded_experts: int | None = None
    """The same of codes of experts."""
    after_layer: Callable[[], None] | None = None
    """Called behind every layer of whole texts, so that others may use the device."""

    @classmethod
    def whole(
        cls,
        tokens: torch.Tensor,
        varlen: VarlenBatch,
        *,
        token_types: torch.Tensor | None = None,
        tasks: Sequence[int] = (),
        after_layer: Callable[[], None] | None = None,
    ) -> "ForwardBatch":
        """A batch of whole texts, concatenated."""
        cu_seqlens, positions = varlen.to(tokens.device)
        texts = Texts(varlen, cu_seqlens, kernels.lay_out_keys(cu_seqlens))
        return cls(tokens, positions, texts=texts, token_types=token_types, tasks=tasks, after_layer=after_layer)

    @classmethod
    def traced(
        cls,
        tokens: TracedTokens,
        caches: Sequence[LayerCache],
        media: MediaBatch | None = None,
        adapter_rows: AdapterRows | None = None,
        taps: Taps | None = None,
    ) -> "ForwardBatch":
        """A batch for recording a pass over these caches.

        ``media``: the kinds of media that may occur. ``adapter_rows``: set if rows may have adapters. ``taps``: stream
        copies.
        """
        positions = torch.empty(0, dtype=torch.int64)
        return cls(tokens, positions, caches, media=media, adapter_rows=adapter_rows, taps=taps)
