"""Describes feed-forward networks as values: dense, or mixtures of experts. Torch-free."""

import math
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from ..config_fields import MOST_EXPERTS, ConfigError
from .expert_norms import ExpertNorms, PartNorms, SumNorm
from .projection import Projection
from .router_network import RouterNetworkSpec

Activation = Literal["silu", "gelu_tanh", "gelu", "quick_gelu", "relu", "relu2", "xielu", "swiglu_oai", "situ"]
"""``quick_gelu``: x · sigmoid(1.702 x). ``xielu``: has two learned numbers a layer (arXiv:2411.13010).
``swiglu_oai`` and ``situ``: as of experts."""
ExpertActivation = Literal[
    "silu", "gelu_tanh", "gelu", "relu", "relu2", "quick_gelu", "swiglu_oai", "swiglu_10", "silu_7", "situ"
]
"""``swiglu_oai``: gate · sigmoid(1.702 · gate) · (up + 1), both clamped at 7 (gpt-oss, arXiv:2508.10925).
``swiglu_10``: silu(gate) · up, both clamped at 10 (DeepSeek-V4). ``silu_7``: silu(gate) · up with silu(gate) and up
clamped at 7 (Step 3.5). ``situ``: 4 tanh(gate / 4) · sigmoid(gate) · 25 tanh(up / 25) (Kimi K3)."""
OWN_GATES: Final[tuple[ExpertActivation, ...]] = ("swiglu_oai", "swiglu_10", "silu_7", "situ")
"""Activations of experts that exist only with a gate."""
OWN_ACTIVATIONS: Final[tuple[Activation, ...]] = ("xielu", "swiglu_oai", "situ")
"""Activations with learned values or a gate of their own, which are no kernels' of single values."""
RouterScore = Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]
GroupScore = Literal["max", "top2"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Shapes of stored tensors, by name."""

SPLIT_MLP: Final = ("mlp.gate_proj", "mlp.up_proj")
FUSED_MLP: Final = ("mlp.gate_up_proj",)
"""Gate and up in one tensor (Phi-3)."""
UP_MLP: Final = ("mlp.up_proj",)
"""Without a gate."""


class MLPSpec(msgspec.Struct, frozen=True):
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    """Whether the projections to the activation have biases, and ``out`` unless ``out_bias`` is set."""
    into: tuple[str, ...] = SPLIT_MLP
    """Stored names of gate and up, or of both fused."""
    out: str = "mlp.down_proj"
    gated: bool = True
    gate_last: bool = False
    """Whether gate and up are fused with the gate behind the up (Moonshine)."""
    gate_scale: float = 1.0
    """Factor on the gate before its activation (Falcon-H1)."""
    gate_cutoff: float | None = None
    """Before activation, gates keep what they exceed this many standard deviations above their token's mean by, and are
    0 below (Gemma 3n)."""
    limit: float = 0.0
    """Gates are at most this, and ups between this and its negative (DeepSeek-V4); 0: no limit."""
    limits_active: bool = False
    """Whether gates have that limit behind their activation, not before it (Step 3.5)."""
    out_bias: bool | None = None
    act: str = "mlp.act_fn"
    """Stored name of the activation's learned values."""
    transposed: bool = False
    """Whether matrices are stored as [inputs, outputs] (GPT-2)."""
    norm: str = ""
    norm_weighted: bool = True
    """Stored name of an RMS norm of the last product's input (BitNet), and whether it has weights; "": none."""
    scales: tuple[str, str] | None = None
    """Stored names of learned factors on each gate and each up (Dory); None: none."""
    factor: str = ""
    """Stored name of a learned factor on its output (Inkling); "": none."""
    alternating: str = ""
    """Stored name of a matrix that files may have in place of gate and up, with a row of each in turn (Inkling)."""
    also: tuple[str, str] | None = None
    """A part of these names, and what files may have in its place (Kimi Linear and Hy4 as transformers saves them)."""

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """The projections to gate and up, and down."""
        each = (2 if self.gated else 1) * self.inner // len(self.into)
        into = tuple((name, each) for name in self.into)
        out_bias = self.bias if self.out_bias is None else self.out_bias
        return (
            Projection(into, hidden, self.bias, transposed=self.transposed),
            Projection(((self.out, hidden),), self.inner, out_bias, transposed=self.transposed),
        )

    def products(self, hidden: int) -> int:
        """Weights that a token is multiplied by."""
        return sum(projection.elements for projection in self.projections(hidden))

    def idle(self, hidden: int) -> int:
        """Parameters that a token does not use."""
        return 0

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        if self.activation == "xielu":
            yield from ((f"{prefix}.{self.act}.{which}", (1,)) for which in ("alpha_p", "alpha_n"))
        if self.norm and self.norm_weighted:
            yield f"{prefix}.{self.norm}.weight", (self.inner,)
        yield from ((f"{prefix}.{name}", (self.inner,)) for name in self.scales or ())
        if self.factor:
            yield f"{prefix}.{self.factor}", (1,)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if self.gate_last and (not self.gated or len(self.into) > 1):
            raise ConfigError("a gate that is stored behind what it gates, and not fused with it, is not known")
        if self.scales and (not self.gated or not self.norm):
            raise ConfigError("learned factors on gates and ups without a norm behind them are not known")
        if self.gated and self.activation == "xielu":
            raise ConfigError(f"a gated MLP with {self.activation} is not known")
        plain = self.gated and self.gate_scale == 1 and self.gate_cutoff is None and not self.limit
        if self.activation in ("swiglu_oai", "situ") and not plain:
            raise ConfigError(f"{self.activation} without a plain gate is not known")
        if not self.gated and self.gate_scale != 1:
            raise ConfigError(f"a gate is multiplied by {self.gate_scale} in an MLP that has none")
        if not self.gated and self.limit:
            raise ConfigError(f"gates are at most {self.limit} in an MLP that has none")
        if self.limits_active and (self.activation != "silu" or self.limit < 1):
            raise ConfigError(f"a limit of {self.limit} behind {self.activation} is not known")
        if not self.gated and self.gate_cutoff is not None:
            raise ConfigError(f"gates are cut off at {self.gate_cutoff} deviations in an MLP that has none")


class RouterSpec(msgspec.Struct, frozen=True):
    """How a token's experts and their weights follow from the router's product."""

    top_k: int
    score: RouterScore = "softmax"
    """``softmax`` over all experts, ``sigmoid`` of each, ``sqrtsoftplus`` of each, or ``sparsemixer``: for each choice,
    a softmax over the remaining experts near it (Phi-3.5-MoE)."""
    renormalize: bool = True
    """Whether weights are divided by their sum."""
    scale: float = 1.0
    """Factor on the weights."""
    groups: int = 1
    """Number of groups of experts, of which the best ``top_groups`` are considered (DeepSeek-V3, arXiv:2412.19437)."""
    top_groups: int = 1
    group_score: GroupScore = "top2"
    """A group's score: its best, or the sum of its two best."""
    corrects_logits: bool = False
    """Whether the correction is added to logits, not to scores (Kolibri 1)."""
    nearness: float = 0.0
    """``sparsemixer``'s threshold: see :class:`stentor.kernels.Router`."""
    softcap: float = 0.0
    """Scores are of c·tanh(x/c) of logits x (Grok 1, Laguna); 0: of logits."""


class ExpertTensor(NamedTuple):
    """A stored tensor of experts' matrices, and its destination."""

    name: str
    """Within the layer."""
    shape: tuple[int, ...]
    out: bool
    """Whether it belongs to the second product, not to gate and up."""
    expert: int | None
    """Its number among those that are described; None: of several."""
    first: int
    """First output that it fills."""
    outputs: int
    rows: int = 0
    """Rows of one expert, if all experts' are [experts · rows, columns]; 0: experts have a dimension."""
    of: range = range(0)
    """The experts that it is of, among those that are described, if it is of several."""


class ExpertNames(msgspec.Struct, frozen=True):
    """Stored names of the matrices of experts and their router.

    A name with ``{}`` is the matrix [outputs, inputs] of one expert; one without has all experts', [experts, outputs,
    inputs].
    """

    router: str = "mlp.gate"
    into: tuple[str, ...] = ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")
    """Gate and up, or both fused; only up without a gate."""
    out: str = "mlp.experts.{}.down_proj.weight"
    router_bare: bool = False
    """Whether its matrix is stored under this name without ``.weight``."""
    router_turned: bool = False
    """Whether its matrix is [hidden, experts]."""
    correction: str = "mlp.gate.e_score_correction_bias"
    """If the router has one."""
    correction_rows: int = 0
    """Rows of the stored tensor, [rows, experts]; 0: it is [experts]."""
    correction_at: int = 0
    """Its row; others are another mixture's."""
    first: int = 0
    """Number of the first expert in names of one expert's matrices."""
    transposed: bool = False
    """Whether matrices of all experts are [experts, inputs, outputs]."""
    out_transposed: bool = False
    """Whether those of the second product alone are."""
    flat: bool = False
    """Whether matrices of all experts are one, with the rows of one expert behind those of another (DBRX)."""
    interleaved: bool = False
    """Whether outputs of fused gate and up alternate."""
    always: tuple[tuple[str, ...], str] | None = None
    """Names of gate and up, and of the second matrix, of the experts that every token uses, which are stored apart."""

    def tensors(
        self, experts: range, inner: int, hidden: int, *, gated: bool, always: int = 0
    ) -> Iterator[ExpertTensor]:
        """The tensors of these experts, of which every token uses the last ``always``, in the order of these names;
        separate ones expert by expert."""
        chosen = range(len(experts) - always)
        yield from self._tensors(self.into, self.out, experts, chosen, inner, hidden, gated=gated)
        if self.always is not None:
            behind = range(len(chosen), len(experts))
            yield from self._tensors(*self.always, experts, behind, inner, hidden, gated=gated)

    def _tensors(
        self, into: tuple[str, ...], out: str, experts: range, of: range, inner: int, hidden: int, *, gated: bool
    ) -> Iterator[ExpertTensor]:
        """Those of the experts ``of`` these numbers among ``experts``."""
        each = (2 if gated else 1) * inner // len(into)
        parts = [(name, False, at * each, each, hidden) for at, name in enumerate(into)]
        parts.append((out, True, 0, hidden, inner))
        apart = [part for part in parts if "{}" in part[0]]
        for number in of:
            for name, is_out, first, outputs, inputs in apart:
                stored = name.format(self.first + experts[number])
                yield ExpertTensor(stored, (outputs, inputs), is_out, number, first, outputs)
        for name, is_out, first, outputs, inputs in parts:
            if "{}" not in name:
                rows, columns = (inputs, outputs) if self.turned(out=is_out) else (outputs, inputs)
                if self.flat:
                    flat = len(of) * rows, columns
                    yield ExpertTensor(name, flat, is_out, None, first, outputs, rows=rows, of=of)
                else:
                    yield ExpertTensor(name, (len(of), rows, columns), is_out, None, first, outputs, of=of)

    def turned(self, *, out: bool) -> bool:
        """Whether all experts' matrices of a product have inputs before outputs."""
        return self.transposed or (out and self.out_transposed)


APART: Final = ExpertNames()
"""Names in most checkpoints."""
STACKED: Final = ExpertNames(into=("mlp.experts.gate_up_proj",), out="mlp.experts.down_proj")
"""Names in transformers since version 5."""


class MoESpec(msgspec.Struct, frozen=True):
    """A mixture of experts: each token uses ``router.top_k`` of ``experts`` networks.

    The output is the sum of theirs with the router's weights, plus that of the shared experts, which all tokens use.
    """

    experts: int
    inner: int
    """Inner size of one expert."""
    router: RouterSpec
    activation: ExpertActivation = "silu"
    gated: bool = True
    latent: int = 0
    """Size of a projection of the token that experts work on, and that their output is projected back from (Nemotron 3
    Super); 0: they work on the token."""
    latent_names: tuple[str, str] = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")
    """Stored names of these projections."""
    norms: ExpertNorms | None = None
    """Norms of that projection and of what each expert makes of it."""
    sum_norm: SumNorm | None = None
    """That of the experts' sum before it is projected back; None: there is none."""
    logit_scale: float = 1.0
    """Factor on the router's product."""
    bias: bool = False
    """Whether both products of all experts have biases."""
    sum_bias: str = ""
    """Stored name of a bias of the experts' sum, whose weights add up to 1 (JetMoe); "": none."""
    router_bias: bool = False
    identities: int = 0
    """Experts behind the others that return their input, and have no matrices (LongCat)."""
    skips: int = 0
    """Experts behind the others that give nothing, and have no matrices (ZAYA)."""
    capacity: int = 0
    """Tokens of a whole text that one expert takes, the first ones; it gives nothing for others (Switch Transformers);
    0: all."""
    always: int = 0
    """The last of ``experts``, which every token uses besides those that it chooses from the others. Weights are
    divided by the sum of all of them (Inkling)."""
    factor: str = ""
    """Stored name of a learned factor on all weights; "": none."""
    network: RouterNetworkSpec | None = None
    """The router, if it is more than one product."""
    weight_input: bool = False
    """Whether the router's weights multiply the experts' input, not their output (Llama 4)."""
    correction: bool = False
    """Whether a number an expert is added to the scores for the choice, but not for the weights."""
    media_correction: str = ""
    """Stored name of numbers that take the place of the correction for tokens of media (DeepSeek V4.1); "": none."""
    table: int = 0
    """Tokens of a stored table of the experts that each uses, if scores only weight them (DeepSeek-V4); 0: none."""
    table_name: str = "mlp.gate.tid2eid"
    """Its stored name."""
    correction_stored: bool = True
    """Whether files must have it; else a missing one is 0 (A.X K1)."""
    names: tuple[ExpertNames, ...] = (APART, STACKED)
    """Possible stored names; the first is usual."""
    shared: MLPSpec | None = None
    """All shared experts together."""
    part_norms: PartNorms | None = None
    shared_scale: float = 1.0
    """Factor on the shared experts' output."""
    shared_gate: str = ""
    """Stored name of a matrix [1, hidden] whose product, through a sigmoid, gates the shared experts."""
    media: "MoESpec | None" = None
    """Experts, with a router, that tokens of media use in place of these (ERNIE 4.5 VL), as many each; shared ones are
    those of all tokens."""
    own: tuple[int, int] | None = None
    """The first expert, and the number of them, if several workers have some of the ``experts`` each; None: all."""

    def expert_tensors(self, hidden: int, names: ExpertNames | None = None) -> Iterator[ExpertTensor]:
        """The tensors of the matrices of its own experts, under its first names or ``names``."""
        names = names or self.names[0]
        width = self.width(hidden)
        return names.tensors(self.own_experts, self.inner, width, gated=self.gated, always=self.always)

    @property
    def choices(self) -> int:
        """Experts that the router has logits of."""
        return self.experts + self.identities + self.skips

    @property
    def corrected(self) -> int:
        """Experts whose scores have a correction: those that it chooses from."""
        return self.choices - self.always

    @property
    def own_experts(self) -> range:
        """The experts that it has."""
        first, count = self.own or (0, self.experts)
        return range(first, first + count)

    @property
    def into(self) -> int:
        """Outputs of an expert's first product."""
        return (2 if self.gated else 1) * self.inner

    def width(self, hidden: int) -> int:
        """Input and output size of experts."""
        return self.latent or hidden

    def latents(self, hidden: int) -> tuple[Projection, ...]:
        """The projections to the experts' input and back; empty without."""
        if not self.latent:
            return ()
        there, back = self.latent_names
        return (
            Projection(((there, self.latent),), hidden, bias=False),
            Projection(((back, hidden),), self.latent, bias=False),
        )

    def expert_biases(self, hidden: int, names: ExpertNames | None = None) -> Iterator[ExpertTensor]:
        """The tensors of experts' biases, named like the matrices with another ending."""
        for tensor in self.expert_tensors(hidden, names) if self.bias else ():
            stem = tensor.name.removesuffix(".weight")
            name = f"{stem}_bias" if stem == tensor.name else f"{stem}.bias"
            experts = (len(self.own_experts),) if tensor.expert is None else ()
            yield tensor._replace(name=name, shape=(*experts, tensor.outputs))

    def products(self, hidden: int) -> int:
        """Weights that a token is multiplied by, with the experts that it uses: of those of several workers, its part
        if a token uses all equally often."""
        shared = self.shared.products(hidden) if self.shared else 0
        gate = hidden if self.shared_gate else 0
        of_one = (self.into + self.inner) * self.width(hidden)
        latents = sum(projection.elements for projection in self.latents(hidden))
        routed = of_one * (self.router.top_k + self.always) * len(self.own_experts) // self.experts
        products = (each.elements for each in self.network.projections(hidden, self.choices)) if self.network else ()
        return (sum(products) or self.choices * hidden) + routed + latents + shared + gate

    def idle(self, hidden: int) -> int:
        """Parameters of the experts that a token does not use."""
        tensors = (*self.expert_tensors(hidden), *self.expert_biases(hidden))
        of_one = sum(math.prod(tensor.shape) for tensor in tensors) // self.experts
        of_media = 0 if self.media is None else sum(math.prod(shape) for _, shape in self.media.shapes("", hidden))
        return of_one * (self.experts - self.always - self.router.top_k) + of_media

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Shapes of its stored tensors, by name."""
        names = self.names[0]
        if self.router_bias:
            yield f"{prefix}.{names.router}.bias", (self.choices,)
        router = f"{prefix}.{names.router}" if names.router_bare else f"{prefix}.{names.router}.weight"
        if self.network is not None:
            yield from self.network.shapes(prefix, hidden, self.choices)
        else:
            yield router, (hidden, self.choices) if names.router_turned else (self.choices, hidden)
        if self.table:
            yield f"{prefix}.{self.table_name}", (self.table, self.router.top_k)
        if self.correction and not names.correction_at:
            rows = (names.correction_rows,) if names.correction_rows else ()
            yield f"{prefix}.{names.correction}", (*rows, self.corrected)
        if self.media_correction:
            yield f"{prefix}.{self.media_correction}", (self.corrected,)
        if self.factor:
            yield f"{prefix}.{self.factor}", (1,)
        if self.sum_bias:
            yield f"{prefix}.{self.sum_bias}", (hidden,)
        for tensor in (*self.expert_biases(hidden), *self.expert_tensors(hidden)):
            yield f"{prefix}.{tensor.name}", tensor.shape
        for projection in self.latents(hidden):
            yield from projection.shapes(prefix)
        for norm in (self.norms.into, self.norms.out) if self.norms else ():
            yield f"{prefix}.{norm}.weight", (self.latent,)
        if self.sum_norm is not None:
            yield f"{prefix}.{self.sum_norm.name}.weight", (self.latent,)
        if self.shared is not None:
            yield from self.shared.shapes(prefix, hidden)
        if self.media is not None:
            yield from self.media.shapes(prefix, hidden)
        if self.shared_gate:
            yield f"{prefix}.{self.shared_gate}.weight", (1, hidden)
        if norms := self.part_norms:
            for name in (norms.experts_in, norms.experts_out, norms.shared_in, norms.shared_out):
                yield f"{prefix}.{name}.weight", (hidden,)
            yield f"{prefix}.{norms.router_scale}", (hidden,)
            yield f"{prefix}.{norms.expert_scale}", (self.experts,)

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        router, experts = self.router, self.choices
        if not self.gated and self.activation in OWN_GATES:
            raise ConfigError(f"experts without a gate with {self.activation} are not known")
        if self.table and (self.correction or router.score in ("softmax", "sparsemixer")):
            raise ConfigError(f"experts by token with corrected scores, or scores by {router.score}, are not known")
        if self.media_correction and (not self.correction or self.media):
            raise ConfigError("a correction for tokens of media without one for others, or for experts of their own")
        others = self.identities or self.skips or self.media or self.own
        if self.always and (others or router.score != "sigmoid" or self.table or self.part_norms):
            raise ConfigError("experts that every token uses, beside ones of other kinds, are not known")
        if self.capacity and router.top_k > 1:
            raise ConfigError("experts that take so many tokens, of which a token chooses several, are not known")
        if self.sum_bias and (self.bias or self.latent or not router.renormalize or router.scale != 1.0):
            raise ConfigError("a bias of a sum of experts whose weights do not add up to 1 is not known")
        if (self.norms or self.sum_norm) and not self.latent:
            raise ConfigError("experts with norms that work on the token are not known")
        if self.part_norms and self.shared is None:
            raise ConfigError("experts with norms of their own stand beside no network")
        if self.shared_gate and self.shared_scale != 1.0:
            raise ConfigError("shared experts with a gate and a factor are not known")
        if self.skips and (self.identities or self.latent or self.media or self.part_norms):
            raise ConfigError("experts that give nothing beside ones of other kinds are not known")
        if self.identities and (self.latent or self.media or self.part_norms or self.weight_input):
            raise ConfigError("experts that return their input beside ones that take another are not known")
        if self.media is not None:
            self.media.check()
            if self.part_norms or self.latent or self.media.router.top_k != router.top_k:
                raise ConfigError("experts of media beside experts with norms, latents or another number are not known")
        if experts > MOST_EXPERTS:
            raise ConfigError(f"it has {experts} experts in a layer, expected at most {MOST_EXPERTS}")
        experts -= self.always
        if experts % router.groups or router.top_groups > router.groups:
            raise ConfigError(
                f"{experts} experts do not divide into {router.groups} groups, of which {router.top_groups} are looked "
                "at"
            )
        looked_at = experts // router.groups * router.top_groups
        if router.top_k > looked_at:
            raise ConfigError(f"a token takes {router.top_k} experts of the {looked_at} that are looked at")
        if router.group_score == "top2" and router.groups > 1 and experts // router.groups < 2:
            raise ConfigError(f"a group of {experts // router.groups} expert has no two best scores")


class OpaqueSpec(msgspec.Struct, frozen=True):
    """A network in another library's modules, of which only the output is known."""

    def products(self, hidden: int) -> int:
        """Unknown: 0."""
        return 0

    def idle(self, hidden: int) -> int:
        """Unknown: 0."""
        return 0

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Unknown: none."""
        return iter(())

    def check(self) -> None:
        """Nothing to check."""


FeedForwardSpec = MLPSpec | MoESpec | OpaqueSpec
