"""Feed-forward networks as values: one for all tokens, or experts of which each token takes a few. Torch-free."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from .config_fields import MOST_EXPERTS, ConfigError
from .projection import Projection

Activation = Literal["silu", "gelu_tanh", "gelu", "quick_gelu", "relu", "relu2", "xielu"]
"""``quick_gelu`` is x · sigmoid(1.702 x), ``xielu`` has two learned numbers a layer (arXiv:2411.13010)."""
ExpertActivation = Literal["silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "swiglu_oai"]
"""``swiglu_oai``: gate · sigmoid(1.702 · gate) · (up + 1), both clamped at 7 (gpt-oss, arXiv:2508.10925)."""
RouterScore = Literal["softmax", "sigmoid", "sparsemixer"]
GroupScore = Literal["max", "top2"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Of stored tensors, by name."""

SPLIT_MLP: Final = ("mlp.gate_proj", "mlp.up_proj")
FUSED_MLP: Final = ("mlp.gate_up_proj",)
"""As Phi-3 stores it."""
UP_MLP: Final = ("mlp.up_proj",)
"""Without a gate."""


@dataclass(frozen=True)
class MLPSpec:
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    """Of what goes into the activation, and of ``out`` unless ``out_bias`` says otherwise."""
    into: tuple[str, ...] = SPLIT_MLP
    """The names that gate and up are stored under, or that of both together."""
    out: str = "mlp.down_proj"
    gated: bool = True
    gate_scale: float = 1.0
    """Multiplies the gate before it is activated (Falcon-H1)."""
    gate_cutoff: float | None = None
    """Of the gates of a token those that are not so many deviations above their mean are 0 before they are activated,
    and the others what they are above it (Gemma 3n)."""
    out_bias: bool | None = None
    act: str = "mlp.act_fn"
    """The name that what is learned of the activation is stored under."""
    transposed: bool = False
    """Matrices are stored as [inputs, outputs] (GPT-2)."""
    also: str = ""
    """What some files say in place of ``mlp`` (Kimi Linear's, as transformers writes them)."""

    def projections(self, hidden: int) -> tuple[Projection, Projection]:
        """Into gate and up; and down."""
        each = (2 if self.gated else 1) * self.inner // len(self.into)
        into = tuple((name, each) for name in self.into)
        out_bias = self.bias if self.out_bias is None else self.out_bias
        return (
            Projection(into, hidden, self.bias, transposed=self.transposed),
            Projection(((self.out, hidden),), self.inner, out_bias, transposed=self.transposed),
        )

    def products(self, hidden: int) -> int:
        """Elements of the matrices that a token is multiplied with."""
        return sum(projection.elements for projection in self.projections(hidden))

    def idle(self, hidden: int) -> int:
        """Parameters that a token does not use."""
        return 0

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        for projection in self.projections(hidden):
            yield from projection.shapes(prefix)
        if self.activation == "xielu":
            yield from ((f"{prefix}.{self.act}.{which}", (1,)) for which in ("alpha_p", "alpha_n"))

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if self.gated and self.activation == "xielu":
            raise ConfigError(f"a gated MLP with {self.activation} is not known")
        if not self.gated and self.gate_scale != 1:
            raise ConfigError(f"a gate is multiplied by {self.gate_scale} in an MLP that has none")
        if not self.gated and self.gate_cutoff is not None:
            raise ConfigError(f"gates are cut off at {self.gate_cutoff} deviations in an MLP that has none")


@dataclass(frozen=True)
class RouterSpec:
    """Which experts a token takes and what their outputs are multiplied by, of the product with the router's matrix."""

    top_k: int
    score: RouterScore = "softmax"
    """Over all experts, of each alone, or for each choice over the experts left that come near it (Phi-3.5-MoE)."""
    renormalize: bool = True
    """Weights are divided by their sum."""
    scale: float = 1.0
    """Multiplies the weights."""
    groups: int = 1
    """Experts stand in so many groups, of which ``top_groups`` are looked at (DeepSeek-V3, arXiv:2412.19437)."""
    top_groups: int = 1
    group_score: GroupScore = "top2"
    """A group's best score, or the sum of its two best."""
    nearness: float = 0.0
    """What ``sparsemixer`` calls near: see :class:`stentor.kernels.Router`."""


class ExpertTensor(NamedTuple):
    """One stored tensor of experts' matrices: where it goes."""

    name: str
    """Within the layer."""
    shape: tuple[int, ...]
    out: bool
    """Of the second product; else of gate and up."""
    expert: int | None
    """None: it has all of them."""
    first: int
    """Of the outputs that it fills."""
    outputs: int


@dataclass(frozen=True)
class ExpertNames:
    """What the matrices of experts, and of their router, are stored under.

    A name with ``{}`` is that of the matrix [outputs, inputs] of the expert of this number; one without holds those of
    all experts, [experts, outputs, inputs].
    """

    router: str = "mlp.gate"
    into: tuple[str, ...] = ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")
    """Gate and up, or both together; or up alone, where there is no gate."""
    out: str = "mlp.experts.{}.down_proj.weight"
    correction: str = "mlp.gate.e_score_correction_bias"
    """Of a router that has one."""
    correction_row: bool = False
    """It is [1, experts]."""
    transposed: bool = False
    """Those of all experts are [experts, inputs, outputs]."""
    interleaved: bool = False
    """Outputs of gate and up take turns where both are stored together."""

    def tensors(self, experts: int, inner: int, hidden: int, *, gated: bool) -> Iterator[ExpertTensor]:
        """All of them, in the order of their names here; those stored apart, expert by expert."""
        each = (2 if gated else 1) * inner // len(self.into)
        parts = [(name, False, at * each, each, hidden) for at, name in enumerate(self.into)]
        parts.append((self.out, True, 0, hidden, inner))
        apart = [part for part in parts if "{}" in part[0]]
        for expert in range(experts):
            for name, out, first, outputs, inputs in apart:
                yield ExpertTensor(name.format(expert), (outputs, inputs), out, expert, first, outputs)
        for name, out, first, outputs, inputs in parts:
            if "{}" not in name:
                matrix = (inputs, outputs) if self.transposed else (outputs, inputs)
                yield ExpertTensor(name, (experts, *matrix), out, None, first, outputs)


APART: Final = ExpertNames()
"""As most checkpoints have them."""
STACKED: Final = ExpertNames(into=("mlp.experts.gate_up_proj",), out="mlp.experts.down_proj")
"""As transformers holds them since version 5."""


@dataclass(frozen=True)
class PartNorms:
    """What is stored where router, experts and shared experts each norm the stream for themselves (Gemma 4)."""

    experts_in: str
    experts_out: str
    shared_in: str
    shared_out: str
    router_scale: str
    """Multiplies what the router takes, [hidden], normed without weights and divided by √hidden."""
    expert_scale: str
    """Multiplies an expert's output, [experts]."""


@dataclass(frozen=True)
class MoESpec:
    """A mixture of experts: each token takes ``router.top_k`` of ``experts`` networks.

    The sum of their outputs, by the router's weights, and of that of the shared experts, which all tokens take.
    """

    experts: int
    inner: int
    """Of one expert."""
    router: RouterSpec
    activation: ExpertActivation = "silu"
    gated: bool = True
    latent: int = 0
    """Experts take so many numbers made of a token, and what they give is brought back (Nemotron 3 Super); 0: they take
    the token."""
    latent_names: tuple[str, str] = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")
    """Of the matrices that do so."""
    bias: bool = False
    """Of both products of all experts."""
    router_bias: bool = False
    weight_input: bool = False
    """The router's weights multiply what experts take, not what they give (Llama 4)."""
    correction: bool = False
    """A number an expert is added to the scores where experts are chosen, and not where they are weighed."""
    names: tuple[ExpertNames, ...] = (APART, STACKED)
    """As checkpoints store them; a checkpoint that has those of another than the first is read as well."""
    shared: MLPSpec | None = None
    """All shared experts together."""
    part_norms: PartNorms | None = None
    shared_scale: float = 1.0
    """Multiplies what the shared experts give."""
    shared_gate: str = ""
    """The name of a matrix [1, hidden], the sigmoid of whose product multiplies the shared experts' output."""

    def expert_tensors(self, hidden: int, names: ExpertNames | None = None) -> Iterator[ExpertTensor]:
        """Of the matrices of experts, under the first of its names or those given."""
        return (names or self.names[0]).tensors(self.experts, self.inner, self.width(hidden), gated=self.gated)

    @property
    def into(self) -> int:
        """Outputs of the first product of one expert."""
        return (2 if self.gated else 1) * self.inner

    def width(self, hidden: int) -> int:
        """Of what experts take and give."""
        return self.latent or hidden

    def latents(self, hidden: int) -> tuple[Projection, ...]:
        """To what experts take, and back; none where that is the token itself."""
        if not self.latent:
            return ()
        there, back = self.latent_names
        return (
            Projection(((there, self.latent),), hidden, bias=False),
            Projection(((back, hidden),), self.latent, bias=False),
        )

    def expert_biases(self, hidden: int, names: ExpertNames | None = None) -> Iterator[ExpertTensor]:
        """Of their biases, under the names of the matrices with another ending."""
        for tensor in self.expert_tensors(hidden, names) if self.bias else ():
            stem = tensor.name.removesuffix(".weight")
            name = f"{stem}_bias" if stem == tensor.name else f"{stem}.bias"
            experts = (self.experts,) if tensor.expert is None else ()
            yield tensor._replace(name=name, shape=(*experts, tensor.outputs))

    def products(self, hidden: int) -> int:
        """Elements of the matrices that a token is multiplied with: of the experts that it takes."""
        shared = self.shared.products(hidden) if self.shared else 0
        gate = hidden if self.shared_gate else 0
        of_one = (self.into + self.inner) * self.width(hidden)
        latents = sum(projection.elements for projection in self.latents(hidden))
        return self.experts * hidden + of_one * self.router.top_k + latents + shared + gate

    def idle(self, hidden: int) -> int:
        """Parameters that a token does not use: those of the experts that it does not take."""
        tensors = (*self.expert_tensors(hidden), *self.expert_biases(hidden))
        of_one = sum(math.prod(tensor.shape) for tensor in tensors) // self.experts
        return of_one * (self.experts - self.router.top_k)

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it."""
        names = self.names[0]
        if self.router_bias:
            yield f"{prefix}.{names.router}.bias", (self.experts,)
        yield f"{prefix}.{names.router}.weight", (self.experts, hidden)
        if self.correction:
            yield f"{prefix}.{names.correction}", (1, self.experts) if names.correction_row else (self.experts,)
        for tensor in (*self.expert_biases(hidden), *self.expert_tensors(hidden)):
            yield f"{prefix}.{tensor.name}", tensor.shape
        for projection in self.latents(hidden):
            yield from projection.shapes(prefix)
        if self.shared is not None:
            yield from self.shared.shapes(prefix, hidden)
        if self.shared_gate:
            yield f"{prefix}.{self.shared_gate}.weight", (1, hidden)
        if norms := self.part_norms:
            for name in (norms.experts_in, norms.experts_out, norms.shared_in, norms.shared_out):
                yield f"{prefix}.{name}.weight", (hidden,)
            yield f"{prefix}.{norms.router_scale}", (hidden,)
            yield f"{prefix}.{norms.expert_scale}", (self.experts,)

    def check(self) -> None:
        """Raises :class:`ConfigError` where its parts contradict each other."""
        router, experts = self.router, self.experts
        if not self.gated and self.activation == "swiglu_oai":
            raise ConfigError("experts without a gate with swiglu_oai are not known")
        if self.part_norms and self.shared is None:
            raise ConfigError("experts with norms of their own stand beside no network")
        if self.shared_gate and self.shared_scale != 1.0:
            raise ConfigError("shared experts with a gate and a factor are not known")
        if experts > MOST_EXPERTS:
            raise ConfigError(f"it has {experts} experts in a layer, expected at most {MOST_EXPERTS}")
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


@dataclass(frozen=True)
class OpaqueSpec:
    """A network of another library's modules, of which only its output is known."""

    def products(self, hidden: int) -> int:
        """Elements of the matrices that a token is multiplied with: none that are known."""
        return 0

    def idle(self, hidden: int) -> int:
        """Parameters that a token does not use: none that are known."""
        return 0

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        """Of what a checkpoint stores of it: its modules say."""
        return iter(())

    def check(self) -> None:
        """It has no parts that could contradict each other."""


FeedForwardSpec = MLPSpec | MoESpec | OpaqueSpec
