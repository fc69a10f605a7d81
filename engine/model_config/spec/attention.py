"""Describes attention mixers as values, and the cache of their layers. Torch-free."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from .attention_checks import check_attention
from .attention_parts import (
    AddedConvSpec,
    BlockIndexSpec,
    BlockSumsSpec,
    ChosenHeadsSpec,
    ConvolvedSpec,
    DifferenceSpec,
    DistanceSpec,
    LoopSpec,
    QueryLatentSpec,
    RegionIndexSpec,
    ValueExpertsSpec,
)
from .cache import CacheSpec, seen_pairs
from .positions import DistanceBias, RopeConfig
from .projection import Projection
from .recurrent import StateTensor

QKNorm = Literal["none", "head", "head_own", "full", "layer", "layer_own", "layer_own_biased", "clip"]
"""``head``: RMS norm over each head (Qwen3, Gemma-3). ``head_own``: the same with weights of each (K2 Horizon).
``full``: over the whole projection (OLMo-2). ``layer``: layer norm over each head (Phi). ``layer_own``: the same
without a bias, with weights of each head (Command R+); ``layer_own_biased``: and with a bias of each (Chameleon).
``clip``: a factor on each number of each head, then scaled down to a length (Inkling 2)."""
_OF_HEADS: Final = "layer", "head_own", "clip"
"""Beginnings of the kinds that norm each head, and have no instruction in programs."""


class AttentionSpec(msgspec.Struct, frozen=True):
    """Attention of ``heads`` queries to ``kv_heads`` keys and values, of ``head_dim`` dimensions each."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor on q·k; usually head_dim ** -0.5."""
    rope: RopeConfig | None = msgspec.field(default_factory=RopeConfig)
    """None: no positions."""
    window: int = 0
    """Tokens that a token sees, itself included; 0: all before it. Within whole texts, see ``ahead``."""
    answer_window: int = 0
    """Tokens of an answer that a token of it sees, itself included, besides the whole prompt (Unlimited-OCR); 0: all
    before it."""
    ahead: int = -1
    """Tokens behind it that a token of a whole text sees if there is a window (Moonshine Streaming); -1: as many as
    before it."""
    chunked: bool = False
    """Whether the window is a chunk: a token sees from the last multiple of ``window`` on (Llama 4)."""
    loop: LoopSpec | None = None
    """Of layers that run several times: what it attends to besides, without a window; None: nothing."""
    index: BlockIndexSpec | RegionIndexSpec | None = None
    """Chooses the blocks, or regions, of tokens that are seen; None: all before the current one."""
    causal: bool = False
    """Whether tokens within whole texts see only those before them (CLIP)."""
    whole_spans: bool = False
    """Whether the tokens of a picture see each other in both directions (Gemma 3; Gemma 4 in layers with a window)."""
    windowed_spans: bool = False
    """Whether the window also bounds how far back they see within the picture (Gemma 4)."""
    convolved: ConvolvedSpec | None = None
    """Mixes queries, keys and values with those of the last tokens."""
    key_convs: AddedConvSpec | None = None
    """A convolution of keys and values before their norms, all keys before all values."""
    distances: DistanceSpec | None = None
    """What is added to scores by distance."""
    chosen: ChosenHeadsSpec | None = None
    """Which experts' queries and outputs there are."""
    difference: DifferenceSpec | None = None
    """How the outputs of heads are subtracted."""
    query_latent: QueryLatentSpec | None = None
    """What queries are made of, if not of the layer's input."""
    value_experts: ValueExpertsSpec | None = None
    """What values are made by, if not by one product."""
    softcap: float = 0.0
    """Soft cap of q·k; 0: none."""
    v_dim: int = 0
    """Dimensions of a head's value, if fewer than of its key (MiMo-V2); 0: as many. The cache has zeros for the
    rest."""
    sinks: bool = False
    """Whether each head has a learned score without a value in its softmax (gpt-oss, arXiv:2508.10925)."""
    sinks_name: str = "sinks"
    """Stored name of these scores."""
    clip: float = 0.0
    """Most that a projected query, key or value may be in magnitude (MPT); 0: any."""
    slopes: tuple[float, ...] = ()
    """Of each head, times the distance back to a key, taken from its score (ALiBi, arXiv:2108.12409); empty: none."""
    slopes_of_roots: bool = False
    """Whether the square root of the distance takes its place (Step 1)."""
    distance_bias: DistanceBias | None = None
    """What scores get by the distance to a key (T5); None: nothing."""
    block_sums: BlockSumsSpec | None = None
    """What tokens of a whole text see besides their window; None: nothing."""
    qk_norm: QKNorm = "none"
    qk_norm_names: tuple[str, str] | None = ("q_norm", "k_norm")
    """None: the norms have no weights (Llama 4); "": that one has none (Domyn Edge)."""
    longest: float = 0.0
    """Length of a head that ``clip`` scales longer ones down to."""
    rotated_first: bool = False
    """Whether heads are normed after the rotation (HunYuan)."""
    v_norm: bool = False
    """Whether values are normed by head, without weights (Gemma 4)."""
    tied_values: bool = False
    """Whether values equal keys before norm and rotation, without a stored ``v_proj`` (Gemma 4)."""
    shares: int = -1
    """The layer whose keys and values it uses (Gemma 4); -1: its own."""
    gated: bool = False
    """Whether the query projection has query and gate of each head in turn; the gate's activation multiplies the head's
    output (Qwen3-Next)."""
    gate: str = ""
    """Stored name of the gates of all heads if separate (Trinity)."""
    gate_first: bool = False
    """Whether gates stand before queries in a fused matrix that has them too (HRM)."""
    gate_by_head: bool = False
    """Whether a head has one such gate instead of one for each of its dimensions (LFM3)."""
    gate_bias: str = ""
    """Stored name of a bias for the gates of each head (Beam); "": none."""
    gate_scales: str = ""
    """Stored name of a learned r of each number of a separate gate, which is multiplied by (``gate_rate`` · r)² (Dory);
    "": none."""
    gate_rate: float = 1.0
    query_scales: str = ""
    """Stored name of a learned r of each number of the queries, which are multiplied by (``query_rate`` · r)² behind
    rotation and norms (Dory); "": none."""
    query_rate: float = 1.0
    gate_activation: Literal["sigmoid", "softplus", "softplus2", "silu"] = "sigmoid"
    """Of all gates (Laguna: softplus); softplus2: log2(1 + 2^x) (K2 Horizon)."""
    temperature_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta · log(1 + ⌊(p + first) / floor⌋) (Llama 4)."""
    temperature_power: float = 0.0
    """Queries at position p are multiplied by (1 + (p + first) / floor) ** power (Beam)."""
    temperature_floor: int = 0
    temperature_first: int = 0
    temperature_late: bool = False
    """Whether ``temperature_beta`` multiplies log(max(1, (p + first) / floor)): nothing changes up to position floor -
    first; and what is added by distance is multiplied too (Inkling)."""
    qkv_bias: bool = False
    key_bias: bool = True
    """Whether ``qkv_bias`` includes keys."""
    output_bias: bool = False
    fused: bool = False
    """Whether queries, keys and values are stored as one (Phi-3)."""
    into: str = "qkv_proj"
    """Stored name if fused."""
    by_group: bool = False
    """Whether the fused matrix has, group by group, the queries of a key-value head, its key and its value (GPT-NeoX,
    Falcon)."""
    shards: int = 0
    """Equal parts of the fused matrix, each of the queries, then the values, then the keys of some heads (CodeGen); 0:
    it has none."""
    paired: tuple[str, str] | None = None
    """Stored names of queries, and of keys and values, if these are one matrix with each head's key before its value
    (TeleChat)."""
    chunk: tuple[int, int, int] | None = None
    """Rows of queries, keys and values in each of the chunks that float8 files store the fused matrix in, with blocks
    of scales of its own (MiMo-V2.5); None: such files are not read."""
    regrouped: bool = False
    """Whether it was stored by group when adapters were made, and is stored as all queries, keys and values here
    (GGUF)."""
    transposed: bool = False
    """Whether matrices are stored as [inputs, outputs] (GPT-2)."""
    inputs: int = 1
    """Inputs of queries, keys and values in hidden sizes: 2 with an embedding before the hidden state (EAGLE-3)."""
    apart: bool = False
    """Whether keys, values, and queries with all else, each take an input of their own: these lie side by side, that of
    queries first (Inkling 2)."""
    merged: bool = False
    """Whether tokens of a decoder also see what an encoder made, in the same softmax, with the same projections and
    norms and without rotation (T5Gemma 2)."""
    encoded: int = 0
    """Size of the encoder's states, of which cross-attention makes keys and values; 0: the hidden size."""
    name: str = "self_attn"
    """Prefix of its tensors' names."""
    unused: tuple[str, ...] = ()
    """Stored tensors that nothing is computed with: those of an index that chooses all tokens (Qwen4)."""
    head_out_norm: bool = False
    """Whether each head's output is normed without weights, before gates (Muse Spark)."""
    out: str = "o_proj"
    out_norm: str = ""
    """Stored name of an RMS norm of all heads' output before ``out`` (BitNet); "": none."""
    out_norm_weighted: bool = True
    """Whether it has weights."""

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        return self.v_dim or self.head_dim

    @property
    def gates(self) -> int:
        """The number of gates of all heads; 0 without gates."""
        if not self.gated:
            return 0
        return self.heads if self.gate_by_head else self.q_size

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """The projections to queries, keys and values, from the heads' output, and from a latent to queries."""
        q, kv, name, values = self.q_size, self.kv_size, self.name, self.kv_heads * self.value_dim
        found, out = self.heads * self.value_dim, self.out
        if self.difference is not None:
            q, kv, values, found = (size // 2 for size in (q, kv, values, found))
        latent = self.query_latent
        asked = q + self.gates if latent is None else latent.size
        gates = ((f"{name}.{self.gate}", self.gates),) if self.gate else ()
        queries = ((f"{name}.q_proj", asked - sum(size for _, size in gates)), *gates)
        made = ((f"{name}.v_proj", values),) if self.value_experts is None else self.value_experts.parts(name, values)
        apart = (*queries, (f"{name}.k_proj", kv), *made)
        if self.convolved is not None:
            own = f"{name}.{self.convolved.into}"
            halves = ((f"{own}.v_proj_{which}", values // 2) for which in ("current", "delayed"))
            apart = ((f"{own}.q_proj", q), (f"{own}.k_proj", kv), *halves)
        into = ((f"{name}.{self.into}", asked + kv + values),) if self.fused else apart
        if self.paired is not None:
            into = (f"{name}.{self.paired[0]}", q), (f"{name}.{self.paired[1]}", kv + values)
        if (chosen := self.chosen) is not None:
            found, out = chosen.experts * kv, chosen.out
            into = (f"{name}.{chosen.into}", found), (f"{name}.{chosen.keys}", 2 * kv)
            into = (*into, (f"{name}.{chosen.router}", chosen.experts))
        into = queries if self.shares >= 0 else into
        into = (*into, *(part.sized for part in (self.index.parts(name, self.kv_heads) if self.index else ())))
        sources = (*(0 for _ in queries), 1, 2) if self.apart else ()
        if self.distances is not None:
            into = (*into, *self.distances.parts(name, self.heads))
            sources += (0,) * (len(into) - len(sources)) if self.apart else ()
        if self.key_convs is not None and self.key_convs.heads:
            into = (*into, *((f"{name}.{part}", size) for part, size in self.key_convs.taps))
            sources += (1, 2) if self.apart else ()
        unbiased = [self.gate, "" if self.key_bias else "k_proj"]
        if self.value_experts is not None:
            unbiased += [part.removeprefix(f"{name}.") for part, _ in made]
        return (
            Projection(
                into,
                hidden * self.inputs,
                self.qkv_bias,
                tuple(f"{name}.{part}" for part in unbiased if part),
                self.transposed,
                sources,
            ),
            Projection(
                ((f"{name}.{out}", hidden),),
                found,
                self.output_bias,
                transposed=self.transposed,
            ),
            *(() if latent is None else (Projection(((f"{name}.{latent.out}", q),), latent.size, bias=False),)),
        )

    def shapes(self, prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        values = (f"{prefix}.{self.name}.v_proj.weight", f"{prefix}.{self.name}.v_proj.bias")
        for projection in self.projections(hidden):
            made = projection.shapes(prefix)
            if self.chosen is not None:
                made = self.chosen.stored(made, f"{prefix}.{self.name}", self.kv_size)
            for name, shape in made:
                if not self.tied_values or name not in values:
                    yield name, shape
        names = (self.qk_norm_names or ())[: 1 if self.shares >= 0 else None]
        for which, size in zip(names, self.qk_norm_sizes or (), strict=False):
            if which:
                yield f"{prefix}.{self.name}.{which}.weight", (size,)
        if self.index:
            yield from self.index.shapes(prefix, self.name)
        for which, heads in self.norms_of_heads:
            name = f"{prefix}.{self.name}.{which}"
            if self.qk_norm == "head_own":
                yield f"{name}.weight", (heads * self.head_dim,)
            elif self.qk_norm == "clip":
                if which:
                    yield f"{name}.scale", (heads, self.head_dim)
            elif self.qk_norm == "layer":
                yield f"{name}.bias", (self.head_dim,)
                yield f"{name}.weight", (self.head_dim,)
            elif "{}" in which:
                yield from ((f"{name.format(head)}.weight", (self.head_dim,)) for head in range(heads))
            else:
                yield f"{name}.weight", (heads, self.head_dim)
                if self.qk_norm == "layer_own_biased":
                    yield f"{name}.bias", (heads, self.head_dim)
        if self.loop is not None:
            yield f"{self.loop.gate}.weight", (self.heads, self.head_dim)
            yield f"{self.loop.gate}.bias", (self.heads,)
        if self.value_experts is not None and self.value_experts.correction:
            yield f"{prefix}.{self.name}.{self.value_experts.router}.bias", (self.value_experts.experts,)
        if self.query_latent is not None:
            yield f"{prefix}.{self.name}.{self.query_latent.norm}.weight", (self.query_latent.size,)
        if self.difference is not None:
            yield from ((f"{prefix}.{self.name}.{each}", (self.head_dim,)) for each in self.difference.names)
        if self.sinks:
            yield f"{prefix}.{self.name}.{self.sinks_name}", (self.heads,)
        if self.convolved is not None:
            at, channels = f"{prefix}.{self.name}", self.q_size + self.kv_size
            yield from self.convolved.shapes(at, channels, self.head_dim, self.kv_heads)
        if self.key_convs is not None:
            yield from self.key_convs.shapes(f"{prefix}.{self.name}")
        if self.distances is not None:
            yield from self.distances.shapes(f"{prefix}.{self.name}", self.heads)
        if self.gate_bias:
            yield f"{prefix}.{self.name}.{self.gate_bias}", (self.heads,)
        if self.distance_bias is not None:
            yield f"{self.distance_bias.stored}.weight", (self.distance_bias.buckets, self.heads)
        if self.block_sums is not None:
            yield from self.block_sums.shapes(f"{prefix}.{self.name}", hidden, self.heads)
        for which in filter(None, (self.gate_scales, self.query_scales)):
            yield f"{prefix}.{self.name}.{which}", (self.q_size,)
        if self.out_norm and self.out_norm_weighted:
            yield f"{prefix}.{self.name}.{self.out_norm}.weight", (self.heads * self.value_dim,)

    @property
    def norms_each_head(self) -> bool:
        """Whether norms of queries and keys are over each head, and have no instruction in programs."""
        return self.qk_norm.startswith(_OF_HEADS)

    @property
    def norms_of_heads(self) -> tuple[tuple[str, int], ...]:
        """Names of what norms each head of queries and keys, but for RMS norms with weights that all heads share, with
        their numbers of heads."""
        if not self.norms_each_head or self.qk_norm_names is None:
            return ()
        q, k = self.qk_norm_names
        return (q, self.heads), (k, self.kv_heads)

    @property
    def qk_norm_sizes(self) -> tuple[int, int] | None:
        """Sizes of the RMS norms of queries and keys; None without."""
        match self.qk_norm:
            case "none" | "head_own" | "layer" | "layer_own" | "layer_own_biased" | "clip":
                return None
            case "head":
                return self.head_dim, self.head_dim
            case "full":
                return self.q_size, self.kv_size

    def work(self, tokens: int, context: int) -> int:
        """Multiplications and additions, besides projections, of ``tokens`` behind ``context`` others."""
        most = self.index.most if self.index else 0
        pairs = seen_pairs(tokens, context, most) if most else self.pairs(tokens, context)
        pairs += 0 if self.loop is None else seen_pairs(tokens, context)
        attended = 2 * self.heads * (self.head_dim + self.value_dim) * pairs
        if self.index is None or tokens + context <= most:
            return attended
        return attended + self.index.work(self.kv_heads, seen_pairs(tokens, context))

    def pairs(self, tokens: int, context: int) -> int:
        """Total number of keys seen by ``tokens`` behind ``context`` others, each token's own included."""
        if self.chunked:
            return self._chunked_pairs(context + tokens) - self._chunked_pairs(context)
        return seen_pairs(tokens, context, self.window)

    def _chunked_pairs(self, tokens: int) -> int:
        """Total number of keys seen by the first ``tokens`` of a sequence."""
        chunks, rest = divmod(tokens, self.window)
        return chunks * self.window * (self.window + 1) // 2 + rest * (rest + 1) // 2

    @property
    def keeps(self) -> "CacheSpec | None":
        """The cache of one such layer; None if it uses another's. A window covers a chunk."""
        if self.shares >= 0:
            return None
        kind: Literal["full", "window"] = "window" if self.window else "full"
        found = CacheSpec(kind, (), self.window, self.kv_heads, self.head_dim, by_prompt=self.answer_window > 0)
        if (index := self.index) is None:
            return found
        every = index.every if index.every > 1 else 0
        return msgspec.structs.replace(found, index_dim=index.head_dim, index_block=index.size, index_every=every)

    def states(self, hidden: int) -> tuple[StateTensor, ...]:
        """The last inputs of convolutions, or of an index; otherwise attention has no state."""
        if self.index is not None:
            return self.index.states()
        if self.key_convs is not None:
            return (self.key_convs.state,)
        if self.convolved is None:
            return ()
        channels = self.q_size + self.kv_size + self.kv_size // 2
        return (StateTensor((self.convolved.before, channels), recurrent=False),)

    def check(self) -> None:
        """Raise :class:`..config_fields.ConfigError` for contradictory fields."""
        check_attention(self)
