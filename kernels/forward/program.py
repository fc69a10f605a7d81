"""A model's forward pass as a list of instructions over numbered buffers, built once and run with one call per step."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..activation import ActivationKind
from ..linear_packed import BLOCK, ActivationFormat, PackedWeight, activation_format_of, prepared_stride
from ..low_rank import AdapterSlots
from ..moe import ExpertActivation, Router, check_gate, packed_experts
from .instruction import (
    DENSE,
    EXPERTS,
    MAX_PHASES,
    NONE,
    CachedHeads,
    Instruction,
    InstructionStruct,
    Op,
    Rotation,
    Scores,
    struct_of,
)

_PREPARING: tuple[Op, ...] = ("norm_and_quantize", "activate")
_MAKING: tuple[Op, ...] = (*_PREPARING, "gate_up_activate")
_Product = tuple[PackedWeight, Tensor | None]
"""A weight and its bias."""
_GatedPair = tuple[_Product, _Product, AdapterSlots | None]
"""The products of gate and of up, and the adapters that add to both."""


@dataclass
class Program:
    """Instructions, and the width of each buffer that they use (float32 [tokens, width])."""

    instructions: list[Instruction] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    _input: tuple[ActivationFormat, int] | None = None
    """The format and width of the input that is prepared for the next linears."""
    _scratch_slot: int = 0
    """The scratch slot of that input."""
    _prepared: object = None
    """The value it was prepared from, as the caller noted it."""

    def buffer(self, width: int) -> int:
        """Adds a buffer; returns its number."""
        self.widths.append(width)
        return len(self.widths) - 1

    def embed(self, dst: int, weight: PackedWeight, scale: float, positions: PackedWeight | None = None) -> None:
        """Embeds the token ids; with ``positions`` adds the row of each token's position."""
        for table in filter(None, (weight, positions)):
            self._check(dst, table.shape[1])
        self._append(Instruction("embed", dst=dst, weight=weight, scale=scale, second_weight=positions))

    def norm_and_quantize(
        self,
        src: int,
        activation_format: ActivationFormat,
        *,
        add: int = NONE,
        scale: float = 1.0,
        norm: Tensor | None = None,
        eps: float = 0.0,
        centred: bool = False,
        bias: Tensor | None = None,
    ) -> None:
        """Prepares the next linears' input. ``centred``: the norm is a LayerNorm, with or without a ``bias``."""
        width = self.widths[src]
        last = self.instructions[-1] if self.instructions else None
        if add == NONE and last is not None and last.op == "add" and last.src == src:  # one pass over the rows
            add, scale = last.add, last.scale
            del self.instructions[-1]
        if add != NONE:
            self._check(add, width)
        for weight in (norm, bias):
            if weight is not None:
                _check_norm(weight, width)
        self._append(
            Instruction(
                "norm_and_quantize",
                src=src,
                activation_format=activation_format,
                add=add,
                scale=scale,
                width=width,
                norm=norm,
                eps=eps,
                centred=centred,
                bias=bias,
            )
        )

    def add(self, src: int, add: int, scale: float = 1.0) -> None:
        self._check(add, self.widths[src])
        self._append(Instruction("add", src=src, add=add, scale=scale, width=self.widths[src]))

    def norm(
        self,
        src: int,
        weight: Tensor,
        eps: float,
        *,
        column: int = 0,
        groups: int = 1,
        centred: bool = False,
        bias: Tensor | None = None,
    ) -> None:
        """Norms columns in place. ``centred`` and ``bias`` as for :meth:`norm_and_quantize`."""
        self._check(src, column + groups * len(weight))
        if bias is not None:
            _check_norm(bias, len(weight))
        self._append(
            Instruction(
                "norm",
                src=src,
                norm=weight,
                eps=eps,
                column=column,
                groups=groups,
                width=len(weight),
                centred=centred,
                bias=bias,
            )
        )

    def linear(self, dst: int, weight: PackedWeight, *, column: int = 0, bias: Tensor | None = None) -> None:
        """Multiplies the prepared input by a weight. Raises ValueError if the weight does not take that input, or if
        the outputs exceed their buffer."""
        wanted = activation_format_of(weight.kind), weight.shape[1]
        if self._input != wanted:
            raise ValueError(
                f"program: a {weight.kind} weight {weight.shape} takes {wanted}, prepared is {self._input}"
            )
        self._check(dst, column + weight.shape[0])
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"program: bias {tuple(bias.shape)} does not fit a weight {weight.shape}")
        self._note_reader(DENSE)
        self._append(
            Instruction("linear", dst=dst, weight=weight, column=column, bias=bias, scratch_slot=self._scratch_slot)
        )

    def add_low_rank(self, dst: int, adapters: AdapterSlots) -> None:
        """Adds adapters to ``dst``, just after the linears that wrote it, while their input is still there.

        Raises ValueError for adapters that do not take that input, or do not fit ``dst``.
        """
        if self._input is None or self._input[1] != adapters.inputs or self.widths[dst] != adapters.outputs:
            raise ValueError(
                f"program: adapters of {adapters.inputs} inputs and {adapters.outputs} outputs do not fit buffer {dst} "
                f"of {self.widths[dst]}, prepared is {self._input}"
            )
        activation_format, width = self._input
        self._append(
            Instruction(
                "add_low_rank",
                dst=dst,
                activation_format=activation_format,
                width=width,
                scratch_slot=self._scratch_slot,
                phases=2,  # A for all rows, then B
                adapters=adapters,
            )
        )

    def rotate(self, src: int, cache: CachedHeads, rotation: Rotation) -> None:
        """Rotates q and k and writes k and v to the cache."""
        dim, (cos, sin) = cache.dim, rotation[:2]
        self._check(src, (cache.heads + 2 * cache.kv_heads) * dim)
        if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > dim:
            raise ValueError(
                f"program: rotary tables {tuple(cos.shape)} and {tuple(sin.shape)} do not fit heads of {dim} dims"
            )
        q_norm, k_norm = rotation.norms or (None, None)
        for norm in rotation.norms or ():
            _check_norm(norm, dim)
        scales = rotation.query_scales
        if scales is not None and scales.shape != cos.shape[:1]:
            raise ValueError(f"program: scales of queries {tuple(scales.shape)} do not fit {len(cos)} positions")
        self._append(
            Instruction(
                "rotate",
                src=src,
                layer=cache.layer,
                heads=cache.heads,
                kv_heads=cache.kv_heads,
                dim=dim,
                rotary=(cos, sin),
                norm=q_norm,
                second_norm=k_norm,
                eps=rotation.eps,
                interleaved=rotation.interleaved,
                rotated_first=rotation.rotated_first,
                query_scales=scales,
                cache_scales=cache.scales,
                group=cache.group,
            )
        )

    def attend(self, src: int, dst: int, cache: CachedHeads, scores: Scores) -> None:
        """Attends the queries in ``src`` over the cache.

        Raises ValueError if the query heads are no multiple of the kv heads, or ``dst``, sinks or slopes do not fit.
        """
        heads, kv_heads, dim = cache.heads, cache.kv_heads, cache.dim
        self._check(src, heads * dim)
        if heads % kv_heads:
            raise ValueError(f"program: {heads} query heads are no multiple of {kv_heads} kv heads")
        if self.widths[dst] != heads * dim:
            raise ValueError(f"program: {heads} heads of {dim} dims do not fill buffer {dst} of {self.widths[dst]}")
        for name, each in (("sinks", scores.sinks), ("slopes", scores.slopes)):
            if each is not None and each.shape != (heads,):
                raise ValueError(f"program: {name} {tuple(each.shape)} do not fit {heads} query heads")
        self._append(
            Instruction(
                "attend",
                src=src,
                dst=dst,
                layer=cache.layer,
                phases=2,  # long rows are split, then their parts joined
                heads=heads,
                kv_heads=kv_heads,
                dim=dim,
                scale=scores.scale,
                window=scores.window or -scores.chunk,
                softcap=scores.softcap,
                sinks=scores.sinks,
                slopes=scores.slopes,
                cache_scales=cache.scales,
                group=cache.group,
            )
        )

    def activate(
        self, src: int, activation: ActivationKind, activation_format: ActivationFormat, *, gated: bool = True
    ) -> None:
        """Prepares activation(gate) · up as input if ``src`` holds gate | up, or activation(``src``) without a gate.

        If the linears just before wrote gate | up, they are fused with the activation, and ``src`` is never written.
        """
        width = self.widths[src] // (2 if gated else 1)
        if not gated or (pair := self._gated_pair(src, width)) is None:
            self._append(
                Instruction(
                    "activate",
                    src=src,
                    activation=activation,
                    activation_format=activation_format,
                    width=width,
                    gated=gated,
                )
            )
            return
        (weight, bias), (second_weight, second_bias), adapters = pair
        self._append(
            Instruction(
                "gate_up_activate",
                phases=1 if adapters is None else 2,
                adapters=adapters,
                activation=activation,
                activation_format=activation_format,
                width=width,
                weight=weight,
                bias=bias,
                second_weight=second_weight,
                second_bias=second_bias,
            )
        )

    def moe(
        self,
        src: int,
        dst: int,
        router: Router,
        gate_up: PackedWeight,
        down: PackedWeight,
        activation: ExpertActivation,
        *,
        column: int = 0,
        score_bias: Tensor | None = None,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        weight_input: bool = False,
    ) -> None:
        """Adds a mixture of experts. ``src`` holds the router's logits from ``column``; weights and biases are as in
        :func:`stentor.kernels.packed_experts_mlp`.

        Raises ValueError for weights that do not take the prepared input or do not fit each other or ``dst``, and for a
        router that cannot choose among the experts.
        """
        gate_up_bias, down_bias, score_bias = _plain(gate_up_bias), _plain(down_bias), _plain(score_bias)
        experts = packed_experts(gate_up, down, gate_up_bias, down_bias)
        check_gate("program", activation, gated=gate_up.shape[0] != experts * down.shape[1])
        wanted = activation_format_of(gate_up.kind), gate_up.shape[1]
        if self._input != wanted or self._scratch_slot:
            raise ValueError(
                f"program: experts of {gate_up.kind} {gate_up.shape} take {wanted}, prepared is {self._input}"
            )
        router.check(experts, score_bias)
        self._check(src, column + experts)
        if self.widths[dst] != gate_up.shape[1]:
            raise ValueError(
                f"program: experts of {gate_up.shape[1]} outputs do not fill buffer {dst} of {self.widths[dst]}"
            )
        if score_bias is not None and score_bias.shape != (experts,):
            raise ValueError(f"program: a score bias {tuple(score_bias.shape)} does not fit {experts} experts")
        self._note_reader(EXPERTS)
        self._append(
            Instruction(
                "moe",
                src=src,
                dst=dst,
                column=column,
                phases=4,  # routing, sorting by expert, and two products
                width=down.shape[1],
                activation=activation,
                activation_format=activation_format_of(down.kind),
                weight=gate_up,
                bias=gate_up_bias,
                second_weight=down,
                second_bias=down_bias,
                router=router,
                score_bias=score_bias,
                weight_input=weight_input,
            )
        )

    def call(self, src: int, dst: int, what: str, run: Callable[..., Tensor], also: int = NONE) -> None:
        """Adds a call of ``run``, which takes the rows of ``src``, those of ``also`` if it is given, and the
        ``besides`` of the run, and returns those of ``dst``."""
        self._append(Instruction("call", src=src, dst=dst, add=also, what=what, run=run))

    @property
    def calls(self) -> list[str]:
        """The names of its calls, in order."""
        return [instruction.what for instruction in self.instructions if instruction.op == "call"]

    def note_prepared(self, value: object) -> None:
        """Notes which value the input for the next linears has just been prepared from."""
        self._prepared = value

    def note_written(self, value: object) -> None:
        """Notes that a value has been overwritten: an input prepared from it is out of date."""
        if self._prepared is value:
            self._prepared = None

    def is_prepared(self, value: object, activation_format: ActivationFormat) -> bool:
        """Whether the input prepared from a value is still there in this format."""
        return self._prepared is value and self._input is not None and self._input[0] == activation_format

    def written_since(self, at: int, buffer: int, column: int, width: int) -> bool:
        """Whether an instruction from number ``at`` on writes to these columns."""
        return any(instruction.writes(buffer, column, width) for instruction in self.instructions[at:])

    def compact(self, kept: Sequence[int]) -> list[int]:
        """Lets buffers of one width share memory if no two are needed at a time; changes the program.

        ``kept`` are needed before and after the program. Returns the new number of each buffer, -1 for one that no
        instruction uses.
        """
        lives: dict[int, tuple[int, int]] = dict.fromkeys(kept, (-1, len(self.instructions)))
        for at, instruction in enumerate(self.instructions):
            for buffer in instruction.buffers:
                first, last = lives.get(buffer, (at, at))
                lives[buffer] = first, max(last, at)
        numbers = [NONE] * len(self.widths)
        widths: list[int] = []
        free_from: list[int] = []
        """By new number: the first instruction that no longer needs it."""
        for buffer, (first, last) in sorted(lives.items(), key=lambda each: each[1][0]):
            width = self.widths[buffer]
            number = next(
                (n for n, until in enumerate(free_from) if until <= first and widths[n] == width), len(widths)
            )
            if number == len(widths):
                widths.append(width)
                free_from.append(0)
            free_from[number] = last + 1
            numbers[buffer] = number

        def renumbered(buffer: int) -> int:
            return NONE if buffer == NONE else numbers[buffer]

        self.widths = widths
        self.instructions = [
            replace(i, src=renumbered(i.src), dst=renumbered(i.dst), add=renumbered(i.add)) for i in self.instructions
        ]
        return numbers

    def _gated_pair(self, src: int, width: int) -> _GatedPair | None:
        """Removes the linears that wrote gate | up to ``src``, and the adapters that added to it, and returns them all;
        None: leaves everything."""
        if width % BLOCK or self._scratch_slot:
            return None
        end = len(self.instructions)
        adapters = None
        if end and self.instructions[end - 1].op == "add_low_rank" and self.instructions[end - 1].dst == src:
            end -= 1
            adapters = self.instructions[end].adapters
        first = end
        while first and self.instructions[first - 1].op == "linear" and self.instructions[first - 1].dst == src:
            first -= 1
        products: list[_Product] = []
        column = 0
        for linear in self.instructions[first:end]:
            assert linear.weight is not None
            if linear.column != column or (outputs := linear.weight.shape[0]) % width:
                return None
            for row in range(0, outputs, width):
                bias = None if linear.bias is None else linear.bias[row : row + width]
                products.append((linear.weight.rows(row, width), bias))
            column += outputs
        if len(products) != 2:
            return None
        del self.instructions[first:]
        return products[0], products[1], adapters

    def _note_reader(self, reader: int) -> None:
        """Notes who reads the input that is prepared for the next linears."""
        if self._scratch_slot:  # of which only dense layers read
            return
        at = next(at for at in reversed(range(len(self.instructions))) if self.instructions[at].op in _PREPARING)
        self.instructions[at] = replace(self.instructions[at], readers=self.instructions[at].readers | reader)

    def _check(self, buffer: int, width: int) -> None:
        if width > self.widths[buffer]:
            raise ValueError(f"program: {width} columns do not fit buffer {buffer} of {self.widths[buffer]}")

    @property
    def prepared_bytes(self) -> tuple[int, int, int]:
        """The most bytes of one token's prepared input, in each area: the third has that of experts whose codes are
        not expanded, beside that of dense layers whose codes are."""
        sizes = [
            [
                prepared_stride(i.activation_format, i.width) * (1 if i.router is None else i.router.top_k)
                for i in self.instructions
                if i.op in ops
            ]
            for ops in (_PREPARING, ("gate_up_activate", "moe"))
        ]
        weights = [i.weight for i in self.instructions if i.op == "moe" and i.weight is not None]
        formats = [(activation_format_of(weight.kind), weight.shape[1]) for weight in weights]
        apart = [prepared_stride(format, width) for format, width in formats if format == "int8"]
        return max(sizes[0], default=0), max(sizes[1], default=0), max(apart, default=0)

    def structs(self, caches: Sequence[tuple[Tensor, ...]]) -> "ctypes.Array[InstructionStruct]":
        """Returns the instructions as the native interpreter reads them, over these caches:
        :func:`.instruction.struct_of`."""
        return (InstructionStruct * len(self.instructions))(*(struct_of(i, caches) for i in self.instructions))

    def _append(self, instruction: Instruction) -> None:
        """Appends it; tensors that the native interpreter reads through a pointer are made contiguous float32.

        Raises ValueError for more phases than :data:`.instruction.MAX_PHASES`.
        """
        if not 1 <= instruction.phases <= MAX_PHASES:
            raise ValueError(
                f"program: {instruction.op} declares {instruction.phases} phases; 1 to {MAX_PHASES} can be run"
            )
        if instruction.op in _MAKING:
            self._prepared = None
            self._input = instruction.activation_format, instruction.width
            self._scratch_slot = int(instruction.op == "gate_up_activate")
        rotary = instruction.rotary
        if rotary is not None:
            rotary = rotary[0].float().contiguous(), rotary[1].float().contiguous()
        self.instructions.append(
            replace(
                instruction,
                norm=_plain(instruction.norm),
                second_norm=_plain(instruction.second_norm),
                bias=_plain(instruction.bias),
                second_bias=_plain(instruction.second_bias),
                sinks=_plain(instruction.sinks),
                slopes=_plain(instruction.slopes),
                query_scales=_plain(instruction.query_scales),
                rotary=rotary,
            )
        )


def _check_norm(weight: Tensor, width: int) -> None:
    if weight.shape != (width,):
        raise ValueError(f"program: a norm's weight {tuple(weight.shape)} does not fit {width} columns")


def _plain(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()
