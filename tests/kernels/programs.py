"""Small decoders as programs, and sequences over a shuffled paged cache to run them on."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stentor.kernels.activation import ActivationKind
from stentor.kernels.attention import AttentionBatch
from stentor.kernels.forward import (
    NONE,
    ActivationFormat,
    CachedHeads,
    Forward,
    Program,
    Rotation,
    Scores,
    activation_format_of,
)
from stentor.kernels.kv_cache import kv_scale_shape, make_kv_cache
from stentor.kernels.linear_packed import PackedKind, PackedWeight, Scaling
from stentor.kernels.moe import Router
from stentor.kernels.variants import Choice
from stentor.tests.kernels.helpers import normal
from stentor.tests.kernels.packed_weights import USUAL, packed_weight

VOCAB = 50
EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    """What a decoder is made of."""

    hidden: int = 40
    inner: int = 52
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    turned: int = 16
    """Dims of a head that turn with its position."""
    windows: tuple[int, ...] = (0, 0)
    """Of each layer; 0 sees all."""
    norms: Literal["pre", "post", "sandwich"] = "pre"
    qk_norm: Literal["none", "head", "full"] = "none"
    biased: bool = False
    softcap: float = 0.0
    sunk: bool = False
    """Heads have sinks."""
    sloped: bool = False
    """Heads have slopes."""
    centred: bool = False
    """Norms are LayerNorms, with a bias where products have one."""
    gated: bool = True
    interleaved: bool = False
    rotated_first: bool = False
    scaled_queries: bool = False
    residual_scale: float = 1.0
    activation: ActivationKind = "silu"
    cache: torch.dtype = torch.float32
    kinds: tuple[tuple[PackedKind, Scaling], ...] = (("f32", USUAL),)
    """Of the parts of each layer in turn, with how their scales are kept; all want their input in one form."""
    experts: int = 0
    """0: feed-forward layers are dense."""
    router: Router = Router(2)  # noqa: RUF009  # frozen
    learned: bool = False
    """What stands for a position is added to what stands for a token."""
    block_size: int = 16
    positions: int = 128

    @property
    def activation_format(self) -> ActivationFormat:
        return activation_format_of(self.kinds[0][0])

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.dim


class _Recorder:
    """Draws weights as they are needed."""

    def __init__(self, shape: Shape, program: Program) -> None:
        self.shape, self.program, self._drawn = shape, program, 0

    def _seed(self) -> int:
        self._drawn += 1
        return self._drawn

    def norm_weight(self, width: int) -> Tensor:
        return 1 + 0.3 * normal(width, seed=self._seed())

    def sinks(self) -> Tensor | None:
        return 2 * normal(self.shape.heads, seed=self._seed()) if self.shape.sunk else None

    def slopes(self) -> Tensor | None:
        return normal(self.shape.heads, seed=self._seed()).abs() if self.shape.sloped else None

    def linear(self, dst: int, inputs: int, *parts: int) -> None:
        column = 0
        for number, outputs in enumerate(parts):
            kind, scaling = self.shape.kinds[number % len(self.shape.kinds)]
            weight = packed_weight(kind, outputs, inputs, scaling=scaling, seed=self._seed())
            bias = 0.1 * normal(outputs, seed=self._seed()) if self.shape.biased else None
            self.program.linear(dst, weight, column=column, bias=bias)
            column += outputs

    def experts(self, logits: int, dst: int) -> None:
        shape = self.shape
        (kind, scaling), (last, last_scaling) = shape.kinds[0], shape.kinds[-1]
        self.linear(logits, shape.hidden, shape.experts)
        self.program.moe(
            logits,
            dst,
            shape.router,
            packed_weight(kind, shape.experts * 2 * shape.inner, shape.hidden, scaling=scaling, seed=self._seed()),
            packed_weight(last, shape.experts * shape.hidden, shape.inner, scaling=last_scaling, seed=self._seed()),
            shape.activation,
            score_bias=normal(shape.experts, seed=self._seed()) if shape.biased else None,
            gate_up_bias=0.1 * normal(shape.experts, 2 * shape.inner, seed=self._seed()) if shape.biased else None,
            down_bias=0.1 * normal(shape.experts, shape.hidden, seed=self._seed()) if shape.biased else None,
        )

    def norm_and_quantize(self, src: int, *, add: int = NONE, normed: bool = False) -> None:
        norm = self.norm_weight(self.shape.hidden) if normed else None
        scale = self.shape.residual_scale
        self.program.norm_and_quantize(
            src, self.shape.activation_format, add=add, scale=scale, norm=norm, eps=EPS, **self.centring(normed)
        )

    def centring(self, normed: bool = True) -> dict[str, Any]:
        """What makes a LayerNorm of a norm of hidden states."""
        if not (normed and self.shape.centred):
            return {}
        return {"centred": True, "bias": self.norm_weight(self.shape.hidden) if self.shape.biased else None}


def rotary_of(shape: Shape, positions: int) -> tuple[Tensor, Tensor]:
    inverse = 100.0 ** -(torch.arange(0, shape.turned, 2) / shape.turned)
    angles = torch.outer(torch.arange(positions).float(), inverse)
    return angles.cos(), angles.sin()


def make_program(shape: Shape) -> tuple[Program, int]:
    """The decoder, and the buffer that ends as its hidden states."""
    program = Program()
    q_size, kv_size = shape.heads * shape.dim, shape.kv_heads * shape.dim
    residual, delta = program.buffer(shape.hidden), program.buffer(shape.hidden)
    qkv, attended = program.buffer(q_size + 2 * kv_size), program.buffer(q_size)
    gate_up = program.buffer(shape.experts or (2 if shape.gated else 1) * shape.inner)
    scales = torch.linspace(1.0, 1.5, shape.positions) if shape.scaled_queries else None
    cache_scales = None
    if shape.cache == torch.float8_e4m3fn:
        cache_scales = torch.linspace(0.01, 0.02, shape.kv_heads), torch.linspace(0.03, 0.02, shape.kv_heads)
    recorder = _Recorder(shape, program)
    before, after = shape.norms != "post", shape.norms != "pre"
    program.embed(residual, embedding_of(shape), 1.5, positions_of(shape) if shape.learned else None)
    rotary = rotary_of(shape, shape.positions)
    for layer, window in enumerate(shape.windows):
        recorder.norm_and_quantize(residual, add=delta if layer else NONE, normed=before)
        recorder.linear(qkv, shape.hidden, q_size, kv_size, kv_size)
        norms = None
        if shape.qk_norm == "full":
            program.norm(qkv, recorder.norm_weight(q_size), EPS)
            program.norm(qkv, recorder.norm_weight(kv_size), EPS, column=q_size)
        elif shape.qk_norm == "head":
            norms = recorder.norm_weight(shape.dim), recorder.norm_weight(shape.dim)
        cache = CachedHeads(layer, *shape.sizes, scales=cache_scales)
        rotation = Rotation(*rotary, shape.interleaved, norms, EPS, shape.rotated_first, scales)
        program.rotate(qkv, cache, rotation)
        sinks, slopes = recorder.sinks(), recorder.slopes()
        scores = Scores(shape.dim**-0.5, window, softcap=shape.softcap, sinks=sinks, slopes=slopes)
        program.attend(qkv, attended, cache, scores)
        recorder.norm_and_quantize(attended)
        recorder.linear(delta, q_size, shape.hidden)
        if after:
            program.norm(delta, recorder.norm_weight(shape.hidden), EPS, **recorder.centring())
        recorder.norm_and_quantize(residual, add=delta, normed=before)
        if shape.experts:
            recorder.experts(gate_up, delta)
        else:
            recorder.linear(gate_up, shape.hidden, *([shape.inner] * (2 if shape.gated else 1)))
            program.activate(gate_up, shape.activation, shape.activation_format, gated=shape.gated)
            recorder.linear(delta, shape.inner, shape.hidden)
        if after:
            program.norm(delta, recorder.norm_weight(shape.hidden), EPS, **recorder.centring())
    program.add(residual, delta, shape.residual_scale)
    return program, residual


def embedding_of(shape: Shape) -> PackedWeight:
    return packed_weight(shape.kinds[0][0], VOCAB, shape.hidden, scaling=shape.kinds[0][1], seed=1000)


def positions_of(shape: Shape) -> PackedWeight:
    return packed_weight(shape.kinds[0][0], shape.positions, shape.hidden, scaling=shape.kinds[0][1], seed=1001)


Span = tuple[int, int, int]
"""A sequence, its first new token, and how many of them."""


class Sequences:
    """A program over sequences of known tokens. What nobody wrote into the cache is NaN for the native variant, or has
    scales that are."""

    def __init__(self, shape: Shape, lengths: Sequence[int], variant: Choice = "native") -> None:
        size, generator = shape.block_size, torch.Generator().manual_seed(7)
        counts = [-(-length // size) for length in lengths]
        blocks = sum(counts) + 2
        free = list(range(1, blocks))
        random.Random(5).shuffle(free)
        self.tables = torch.full((len(lengths), max(counts) + 1), -9, dtype=torch.int32)  # unused entries lead nowhere
        for s, count in enumerate(counts):
            self.tables[s, :count] = torch.tensor([free.pop() for _ in range(count)])
        self.ids = [torch.randint(0, VOCAB, (length,), generator=generator) for length in lengths]
        self.caches: list[tuple[Tensor, ...]] = [
            make_kv_cache(blocks, shape.kv_heads, shape.dim, size, shape.cache, "cpu") for _ in shape.windows
        ]
        if shape.cache == torch.int8:
            scales = kv_scale_shape(blocks, shape.kv_heads, size)
            self.caches = [(*cache, torch.zeros(scales), torch.zeros(scales)) for cache in self.caches]
        if variant == "native":
            for tensor in (tensor for cache in self.caches for tensor in cache if tensor.is_floating_point()):
                tensor.copy_(torch.tensor(torch.nan))
        program, self.hidden = make_program(shape)
        self.forward = Forward(program, self.caches, variant=variant)
        self.shape = shape

    def inputs(self, spans: Sequence[Span]) -> tuple[Tensor, Tensor, AttentionBatch]:
        """Ids, positions and the batch of a step."""
        size = self.shape.block_size
        ids = torch.cat([self.ids[s][start : start + count] for s, start, count in spans])
        places = [torch.arange(start, start + count) for _, start, count in spans]
        slots = [
            self.tables[s].long()[at // size] * size + at % size for (s, _, _), at in zip(spans, places, strict=True)
        ]
        counts, lengths = [count for _, _, count in spans], [start + count for _, start, count in spans]
        batch = AttentionBatch(
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor(lengths, dtype=torch.int32),
            self.tables[[s for s, _, _ in spans]].contiguous(),
            torch.cat(slots),
            max(counts),
            max(lengths),
        )
        return ids, torch.cat(places), batch

    def step(self, *spans: Span, coded: int | None = None, coded_experts: int | None = None) -> list[Tensor]:
        """Hidden states [count, hidden] of each span; rows before ``coded`` multiply codes as they are, and rows before
        ``coded_experts`` those of experts."""
        ids, positions, batch = self.inputs(spans)
        self.forward.run(len(ids), ids, positions, [batch], coded=coded, coded_experts=coded_experts)
        hidden = self.forward.buffer(self.hidden, len(ids)).clone()
        return list(hidden.split([count for _, _, count in spans]))

    def run(self, steps: Sequence[Sequence[Span]]) -> list[Tensor]:
        """Hidden states [length, hidden] of each sequence, over all steps."""
        found: list[list[Tensor]] = [[] for _ in self.ids]
        for spans in steps:
            for (s, _, _), hidden in zip(spans, self.step(*spans), strict=True):
                found[s].append(hidden)
        return [torch.cat(pieces) for pieces in found]


def whole(lengths: Sequence[int]) -> list[list[Span]]:
    """Each sequence in a step of its own."""
    return [[(s, 0, length)] for s, length in enumerate(lengths)]


def one_by_one(lengths: Sequence[int], start: int = 0) -> list[list[Span]]:
    """All sequences beside each other, a token a step once ``start`` tokens are there."""
    first: list[list[Span]] = [[(s, 0, min(start, length)) for s, length in enumerate(lengths)]] if start else []
    rest = [[(s, at, 1) for s, length in enumerate(lengths) if at < length] for at in range(start, max(lengths))]
    return first + rest


def shuffled(lengths: Sequence[int], seed: int, most: int) -> list[list[Span]]:
    """Chunks of up to ``most`` tokens of some of the sequences in any order."""
    rng = random.Random(seed)
    done = [0] * len(lengths)
    steps: list[list[Span]] = []
    while open_ := [s for s, length in enumerate(lengths) if done[s] < length]:
        spans = []
        for s in rng.sample(open_, rng.randint(1, len(open_))):
            count = rng.choice((1, rng.randint(1, most)))
            count = min(count, lengths[s] - done[s])
            spans.append((s, done[s], count))
            done[s] += count
        steps.append(spans)
    return steps
