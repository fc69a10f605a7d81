"""What all layers are told of the tokens that they compute."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stentor import kernels
from stentor.kernels.forward import TracedTokens

from .adapters import AdapterRows
from .varlen_batch import Padded, VarlenBatch

CacheScales = tuple[torch.Tensor | None, torch.Tensor | None]
"""Of keys and of values, as the kernels take them; None for caches without any."""


@dataclass(frozen=True)
class LayerCache:
    """Blocks of one layer, in the layout that ``kernels`` owns."""

    tensors: tuple[torch.Tensor, ...]
    """Keys and values, and behind int8 ones their scales; or latents, and behind them the keys of an index, if there is
    one."""
    group: int = 0
    """Of layers that share block tables: which of a batch's are this layer's."""

    @property
    def k(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def v(self) -> torch.Tensor:
        return self.tensors[1]

    @property
    def latents(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def index(self) -> torch.Tensor:
        return self.tensors[1]

    def scales(self, stored: tuple[torch.Tensor, torch.Tensor]) -> CacheScales:
        """Of keys and of values: those that the layer has ``stored`` for float8, those of each token of int8."""
        if self.k.dtype == torch.int8:
            return self.tensors[2], self.tensors[3]
        return stored if self.k.dtype == torch.float8_e4m3fn else (None, None)


@dataclass(frozen=True)
class Texts:
    """Where texts begin that see themselves whole."""

    varlen: VarlenBatch
    cu_seqlens: torch.Tensor
    """int32 [texts + 1], on the device: text t has the tokens [starts[t], starts[t + 1])."""
    layout: kernels.KeyLayout | None
    """Of the keys, where the CPU attends to them."""
    query_starts: torch.Tensor | None = None
    """As ``cu_seqlens``, where queries come of some of the tokens only."""
    bias: torch.Tensor | None = None
    """float32 [heads, longest, longest], on scores by query and key."""
    padded: Sequence[Padded] = ()
    """The texts again, where there is a bias."""
    seen: torch.Tensor | None = None
    """int64, ascending: the tokens whose keys are seen, which ``cu_seqlens`` counts; None: those of all tokens."""


@dataclass(frozen=True)
class Encoded:
    """What the tokens see of audio that was encoded before."""

    paged: kernels.AttentionBatch
    """Each token is a row of its own over all keys of its encoder slot."""
    caches: Sequence[LayerCache]
    """One a layer."""
    queries: dict[int, torch.Tensor] | None = None
    """By layer: filled with its queries [tokens, heads, head_dim], where this is given."""


Mix = Callable[[torch.Tensor, "ForwardBatch"], torch.Tensor]
"""What a mixer with a recurrent state does between its projections; nothing else changes the state."""


@dataclass(frozen=True)
class MixerInputs:
    """What such mixers were given of some tokens of a pass: from the same state they bring another to the same."""

    tokens: torch.Tensor
    """int64 [n]: which of the pass's."""
    found: list[tuple[Mix, torch.Tensor]] = field(default_factory=list)
    """Of each mixer, once the pass has run; the inputs are [n, all parts]."""


@dataclass(frozen=True)
class StateBatch:
    """Where the rows of a pass keep their recurrent states."""

    rows: kernels.StateRows
    of_layer: Mapping[int, Sequence[torch.Tensor]]
    """By layer: [slots, ...] of each part of a state, see :class:`..model_config.recurrent_spec.StateTensor`."""
    inputs: MixerInputs | None = None
    """Where what mixers are given is to be kept."""

    def note(self, mix: Mix, parts: torch.Tensor) -> None:
        """A mixer is given these, [tokens, all parts]."""
        if self.inputs is not None:
            self.inputs.found.append((mix, parts.index_select(0, self.inputs.tokens)))


@dataclass(frozen=True)
class MediaBatch:
    """What stands in place of tokens of a pass; while it is recorded, what may."""

    layers: Sequence[int] = ()
    """Behind which something may be added."""
    sees_whole: bool = False
    """There may be spans whose tokens see each other."""
    places: torch.Tensor | None = None
    """int64 [n]: which of the pass's tokens."""
    embeddings: torch.Tensor | None = None
    """[n, hidden]"""
    behind: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """By layer: [n, hidden], added to the stream behind it."""
    spans: Sequence[kernels.WholeSpan] = ()

    def put(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """x [tokens, hidden], where media times ``scale`` stand in place of tokens."""
        if self.places is None or self.embeddings is None:
            return x
        return x.index_copy(0, self.places, (self.embeddings * scale).to(x.dtype))

    def named(self, tokens: torch.Tensor, token: int) -> torch.Tensor:
        """The tokens, int64 [tokens], where this one stands for all media."""
        return tokens if self.places is None else tokens.index_fill(0, self.places, token)

    def add(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden] behind this layer, with what belongs there."""
        if self.places is None or (features := self.behind.get(layer)) is None:
            return x
        return x.index_add(0, self.places, features.to(x.dtype))


@dataclass(frozen=True)
class Taps:
    """Where a pass's stream is taken on the way, for a head that drafts."""

    layers: tuple[int, ...]
    """Ascending: before these."""
    found: list[torch.Tensor] = field(default_factory=list)
    """Of each [tokens, hidden], once the pass has run."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """x, of which a copy is kept."""
        self.found.append(x.clone())
        return x


@dataclass
class ChosenTokens:
    """What an index chose, for itself and for layers behind it that share it."""

    positions: torch.Tensor | None = None
    """int32 [tokens, top_k], see :func:`stentor.kernels.top_tokens`; None: each token sees all before it. Each layer
    with an index writes its own."""


@dataclass(frozen=True)
class ForwardBatch:
    """The tokens of a pass, of all its sequences one after another; or what stands for them while it is recorded.

    Tokens see those before them, over ``caches`` to which they are added (``paged``), or all of their own text, of
    which nothing is kept (``texts``).
    """

    tokens: torch.Tensor | TracedTokens
    """int64 [tokens]"""
    positions: torch.Tensor
    """int64 [tokens]"""
    caches: Sequence[LayerCache] = ()
    """One for each layer that attends, in their order."""
    paged: Sequence[kernels.AttentionBatch] = ()
    """Of each group of layers; they differ in block tables and slots."""
    texts: Texts | None = None
    routed: list[torch.Tensor] | None = None
    """Where rows ask for their experts: each mixture of experts appends its tokens', int32 [tokens, top_k]."""
    added: torch.Tensor | None = None
    """[tokens, hidden], added to the tokens' embeddings."""
    media: MediaBatch | None = None
    """Where some tokens are media; None: none are."""
    encoded: Encoded | None = None
    """For layers with cross-attention."""
    states: StateBatch | None = None
    """For layers with a recurrent state."""
    chosen: ChosenTokens = field(default_factory=ChosenTokens)
    """For latent attention that is sparse."""
    token_types: torch.Tensor | None = None
    """int64 [tokens], for encoders that tell tokens apart; None: all 0."""
    tasks: Sequence[int] = ()
    """Of each text the number of its task's adapter, -1 for none; empty: none has one."""
    adapter_rows: AdapterRows | None = None
    """Which rows have which adapter, of their task or of their request; None: none has one."""
    turns: tuple[torch.Tensor, torch.Tensor] | None = None
    """Cosines and sines by which queries and keys turn in place of those of the layers' tables, float32
    [positions, rotating pairs] each."""
    taps: Taps | None = None
    """None: nothing is taken on the way."""
    drawn: Sequence[bool] = ()
    """Of each sequence of a pass on a CPU, whether all its tokens are behind its prompt."""
    coded: int | None = None
    """Tokens before this one multiply codes as they are, see :meth:`kernels.forward.Forward.run`; None: all do."""
    after_layer: Callable[[], None] | None = None
    """Called behind every layer that sees whole texts: others may compute on the device then."""

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
        """Texts that see themselves whole, one after another."""
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
        """For a pass over these caches that is to be recorded; ``media`` says what may stand in place of tokens,
        ``adapter_rows`` whether some may have adapters, ``taps`` where the stream is taken."""
        positions = torch.empty(0, dtype=torch.int64)
        return cls(tokens, positions, caches, media=media, adapter_rows=adapter_rows, taps=taps)
