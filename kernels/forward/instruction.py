"""An instruction of a program: what it does, and the struct that the native interpreter reads."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..linear_packed import ACTIVATION_FORMATS, ActivationFormat, PackedStruct, PackedWeight
from ..low_rank import AdapterSlots
from ..moe import ACTIVATIONS, ExpertActivation, Router, RouterStruct, router_struct

Op = Literal[
    "embed",
    "norm_and_quantize",
    "add",
    "norm",
    "linear",
    "rotate",
    "attend",
    "activate",
    "gate_up_activate",
    "moe",
    "add_low_rank",
    "call",
]
OPS: tuple[Op, ...] = (
    "embed",
    "norm_and_quantize",
    "add",
    "norm",
    "linear",
    "rotate",
    "attend",
    "activate",
    "gate_up_activate",
    "moe",
    "add_low_rank",
)
NONE = -1
MAX_PHASES = 4
"""The most phases of an instruction: loops over its rows, each ended by all threads together. The same in program.h."""

DENSE, EXPERTS = 1, 2
"""Who reads a prepared input: program.h's Reader."""

CACHE_TYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)
"""The dtypes that caches may have, in the order of program.h's CacheType."""

_P, _I, _D = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class InstructionStruct(ctypes.Structure):
    """``Instruction`` of program.h."""

    _fields_ = (
        *(
            (name, _I)
            for name in ("kind", "src", "dst", "add", "activation_format", "column", "width", "groups", "activation")
        ),
        ("scratch_slot", _I),
        ("readers", _I),
        ("phases", _I),
        *((name, _I) for name in ("heads", "kv_heads", "dim", "half", "window", "blocks", "block_size")),
        ("cache_type", _I),
        ("table_rows", _I),
        ("group", _I),
        *((name, _I) for name in ("centred", "gated", "interleaved", "rotated_first")),
        *((name, _D) for name in ("scale", "eps", "softcap")),
        *((name, _P) for name in ("norm", "second_norm", "bias", "second_bias", "cos", "sin")),
        *((name, _P) for name in ("sinks", "slopes", "query_scales", "k_cache", "v_cache", "k_scales", "v_scales")),
        ("weight", PackedStruct),
        ("second_weight", PackedStruct),
        ("router", RouterStruct),
        ("weight_input", _I),
        ("adapters", _P),
    )


class CachedHeads(NamedTuple):
    """The heads of a layer with attention, and where their keys and values are cached."""

    layer: int
    """The layer whose cache it is."""
    heads: int
    """Query heads."""
    kv_heads: int
    dim: int
    group: int = 0
    """The group of layers that share block tables."""
    scales: tuple[Tensor, Tensor] | None = None
    """float32 [kv_heads] each: the scales of the keys and values of a float8 cache."""


class Rotation(NamedTuple):
    """What happens to the heads of q and k before they are cached and attend."""

    cos: Tensor
    """float32 [positions, half of the rotated dims], as ``sin``."""
    sin: Tensor
    interleaved: bool = False
    """Dimension 2i is rotated with 2i + 1, not i with i + half of the rotated dims."""
    norms: tuple[Tensor, Tensor] | None = None
    """Weights of the norms of heads of q and of k."""
    eps: float = 0.0
    rotated_first: bool = False
    """Heads are normed after the rotation."""
    query_scales: Tensor | None = None
    """float32 [positions]: factors of the queries."""


class Scores(NamedTuple):
    """How scores are made of queries and keys; see :func:`stentor.kernels.paged_attention`."""

    scale: float
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None


@dataclass(frozen=True)
class Instruction:
    """One instruction; fields that its kind does not use keep their defaults.

    ================= ==================================================================================================
    embed             ``dst`` = scale · weight[token id] + second weight[position], if there is a second one
    norm_and_quantize ``src`` += scale · ``add`` (if given); the next linears' input = norm(``src``), or ``src``
                      without a norm, in ``activation_format``
    add               ``src`` += scale · ``add``
    norm              each of ``groups`` stretches of ``width`` from ``column`` of ``src`` is normed in place
    linear            ``dst``[column:] = input · weightᵀ + bias
    rotate            ``src`` holds q | k | v: the heads of q and k are normed if norms are given, and rotated, in
                      this order or the other; q is scaled if scales are given, and stays; k and v go to the cache
    attend            ``dst`` = attention of the queries in ``src`` over the cache
    activate          the next linears' input = activation(gate) · up in ``activation_format``; ``src`` holds
                      gate | up, ``width`` each, or the activation's input if there is no gate
    gate_up_activate  the same, with gate = input · weightᵀ + bias and up = input · second weightᵀ + second bias;
                      ``adapters`` add to gate | up as ``add_low_rank`` does
    moe               ``dst`` = the weighted sum of the experts that ``router`` chooses for each token; ``src`` holds
                      the logits from ``column``; the experts take the input, with ``weight`` (gates and ups),
                      ``second_weight`` and their biases
    add_low_rank      ``dst`` += ``adapters`` applied to the input, ``width`` long, for the rows that have one
    call              ``dst`` = ``run``(``src``), or ``run``(``src``, ``add``) if ``add`` is given: an operation that
                      has no instruction, between two native stretches of the program
    ================= ==================================================================================================
    """

    op: Op
    src: int = NONE
    dst: int = NONE
    add: int = NONE
    activation_format: ActivationFormat = "f32"
    column: int = 0
    width: int = 0
    groups: int = 1
    activation: ExpertActivation = "silu"
    scratch_slot: int = 0
    """Where a linear finds its input: 0 is the output of ``norm_and_quantize`` and ``activate``, 1 that of
    ``gate_up_activate``. ``moe`` writes its intermediate there too."""
    readers: int = 0
    """Who reads what it prepares: :data:`DENSE` (products of dense layers), :data:`EXPERTS`, or both."""
    phases: int = 1
    """The phases it may have, at most :data:`MAX_PHASES`; the native interpreter reserves memory for them."""
    heads: int = 0
    kv_heads: int = 0
    dim: int = 0
    window: int = 0
    """Tokens of the sliding window; below 0: chunks of that many tokens."""
    scale: float = 1.0
    eps: float = 0.0
    softcap: float = 0.0
    norm: Tensor | None = None
    """float32 [width]: the norm's weight."""
    second_norm: Tensor | None = None
    bias: Tensor | None = None
    """float32; of a product or of a LayerNorm."""
    centred: bool = False
    """The norm subtracts the mean first: a LayerNorm."""
    gated: bool = True
    """The activation's output multiplies ``up``."""
    second_bias: Tensor | None = None
    rotary: tuple[Tensor, Tensor] | None = None
    """cos, sin: float32 [positions, half of the rotated dims]."""
    interleaved: bool = False
    """Dimension 2i is rotated with 2i + 1, not i with i + half of the rotated dims."""
    rotated_first: bool = False
    """Heads are normed after the rotation."""
    query_scales: Tensor | None = None
    """float32 [positions]: factors of the queries."""
    sinks: Tensor | None = None
    """float32 [heads]: attention sinks, a score per head that takes part in its softmax and has no value."""
    slopes: Tensor | None = None
    """float32 [heads]: ALiBi's, see :func:`stentor.kernels.paged_attention`."""
    layer: int = NONE
    """The layer whose cache it uses."""
    cache_scales: tuple[Tensor, Tensor] | None = None
    """float32 [kv_heads] each: the scales of the keys and values of a float8 cache."""
    group: int = 0
    """The group of layers that share block tables."""
    weight: PackedWeight | None = None
    second_weight: PackedWeight | None = None
    router: Router | None = None
    score_bias: Tensor | None = None
    """float32 [experts]: see :func:`stentor.kernels.route`."""
    weight_input: bool = False
    """See :func:`stentor.kernels.packed_experts_mlp`."""
    adapters: AdapterSlots | None = None
    what: str = ""
    """The name of the call, in words."""
    run: Callable[..., Tensor] | None = None

    @property
    def experts(self) -> int:
        """The number of experts that a ``moe`` chooses from."""
        assert self.weight is not None
        assert self.second_weight is not None
        return self.second_weight.shape[0] // self.weight.shape[1]

    def writes(self, buffer: int, column: int, width: int) -> bool:
        """Whether it writes to any of these columns."""
        match self.op:
            case "norm":
                end = self.column + self.groups * self.width
                return buffer == self.src and self.column < column + width and column < end
            case "add" | "rotate":
                return buffer == self.src
            case "norm_and_quantize":
                return buffer == self.src and self.add != NONE
            case _:
                return buffer == self.dst

    def call(self, buffers: Sequence[Tensor], rows: int, besides: object) -> None:
        """Runs a ``call`` over the first rows of its buffers."""
        assert self.run is not None
        taken = [buffers[number][:rows] for number in (self.src, self.add) if number != NONE]
        buffers[self.dst][:rows].copy_(self.run(*taken, besides))

    @property
    def buffers(self) -> tuple[int, ...]:
        """The buffers that it reads or writes."""
        return tuple(buffer for buffer in (self.src, self.dst, self.add) if buffer != NONE)


def struct_of(i: Instruction, caches: Sequence[tuple[Tensor, ...]]) -> InstructionStruct:
    """Returns the interpreter's struct over these caches: K and V of each layer, followed by their scales if int8.

    The struct does not keep the tensors alive.
    """
    cos, sin = i.rotary or (None, None)
    k_cache, v_cache, *scales = caches[i.layer] if i.layer != NONE else (None, None)
    k_scales, v_scales = scales or i.cache_scales or (None, None)
    return InstructionStruct(
        kind=OPS.index(i.op) if i.op != "call" else NONE,  # a call is not run natively
        src=i.src,
        dst=i.dst,
        add=i.add,
        activation_format=ACTIVATION_FORMATS.index(i.activation_format),
        column=i.column,
        width=i.width,
        groups=i.groups,
        activation=ACTIVATIONS.index(i.activation),
        scratch_slot=i.scratch_slot,
        readers=i.readers,
        phases=i.phases,
        heads=i.heads,
        kv_heads=i.kv_heads,
        dim=i.dim,
        half=0 if cos is None else cos.shape[1],
        window=i.window,
        blocks=0 if k_cache is None else len(k_cache),
        block_size=0 if k_cache is None else k_cache.shape[3],
        cache_type=0 if k_cache is None else CACHE_TYPES.index(k_cache.dtype),
        table_rows=0 if cos is None else len(cos),
        group=i.group,
        centred=i.centred,
        gated=i.gated,
        interleaved=i.interleaved,
        rotated_first=i.rotated_first,
        scale=i.scale,
        eps=i.eps,
        softcap=i.softcap,
        norm=_pointer(i.norm),
        second_norm=_pointer(i.second_norm),
        bias=_pointer(i.bias),
        second_bias=_pointer(i.second_bias),
        cos=_pointer(cos),
        sin=_pointer(sin),
        sinks=_pointer(i.sinks),
        slopes=_pointer(i.slopes),
        query_scales=_pointer(i.query_scales),
        k_cache=_pointer(k_cache),
        v_cache=_pointer(v_cache),
        k_scales=_pointer(k_scales),
        v_scales=_pointer(v_scales),
        weight=i.weight.struct if i.weight is not None else PackedStruct(),
        second_weight=i.second_weight.struct if i.second_weight is not None else PackedStruct(),
        router=_router_struct(i),
        weight_input=i.weight_input,
        adapters=None if i.adapters is None else ctypes.addressof(i.adapters.struct),
    )


def _router_struct(i: Instruction) -> RouterStruct:
    if i.router is None or i.weight is None:
        return RouterStruct()
    return router_struct(i.router, i.experts, i.score_bias)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
