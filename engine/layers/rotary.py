"""Rotary tables: cosines and sines of every position, for each method of context extension.

RoPE is RoFormer's (arXiv:2104.09864); ``linear`` is position interpolation (arXiv:2306.15595), ``yarn``
arXiv:2309.00071, ``longrope`` arXiv:2402.13753, ``llama3`` the piecewise rule of Llama 3.1. With ``dynamic`` and
``longrope`` the sequence length determines the frequencies. Cached keys cannot change afterwards, so the length is
fixed to that of the longest sequence admitted.
"""

import math
from functools import partial

import torch

from ..model_config.spec.positions import DistanceBias, RopeConfig
from .linear.layer_context import LayerContext
from .linear.weights import WeightMap

_TWO_PI = 2 * math.pi


RotaryTable = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each float32 [positions, rotating pairs]."""


class RotaryTables:
    """The tables of a model, one for each rotation; layers share them."""

    def __init__(
        self,
        max_position: int,
        max_model_len: int,
        context: LayerContext,
        media_tokens: int = 0,
        weights: WeightMap | None = None,
    ) -> None:
        """``max_position``: the model's limit. ``max_model_len``: the longest sequence admitted. ``media_tokens``: most
        tokens of a pass with m-rope positions. ``weights``: has learned frequencies."""
        self._weights = weights
        self._media_tokens = media_tokens
        self._max_position, self._max_model_len, self._context = max_position, max_model_len, context
        self._made: dict[tuple[RopeConfig | None, int], RotaryTable] = {}
        self._scales: dict[tuple[float, float, int, int, bool], torch.Tensor] = {}
        self._biases: dict[DistanceBias, torch.Tensor] = {}
        self._roots: dict[tuple[float, ...], torch.Tensor] = {}
        self._axes: dict[RopeConfig, torch.Tensor] = {}
        """int64 [pairs]: the position axis of each pair; made once, since a pass must not wait."""

    def of(self, rope: RopeConfig | None, head_dim: int) -> RotaryTable:
        """The table of a rotation. Without ``rope`` a single pair that does not rotate, since kernels always rotate."""
        if (rope, head_dim) not in self._made:
            self._made[rope, head_dim] = self._make(rope, head_dim)
        return self._made[rope, head_dim]

    def place(self, positions: torch.Tensor) -> int:
        """Write the rotations of media tokens with positions int64 [tokens, axes] for the next pass.

        Returns the first of their lines in the tables, which stand behind those of all positions.
        """
        first, count = self._max_model_len, len(positions)
        if count > self._media_tokens:
            raise ValueError(f"a pass has {count} tokens of media, and room for {self._media_tokens}")
        for (rope, _), tables in self._made.items():
            if rope is None or not rope.axes:
                continue
            lines = positions[:, self._axes[rope]].clamp_(max=first - 1)  # [tokens, pairs]
            for table in tables:
                table[first : first + count] = table.gather(0, lines)
        return first

    def query_scales(
        self, beta: float, floor: int, first: int, power: float = 0.0, *, late: bool = False
    ) -> torch.Tensor:
        """float32 [positions]: the factors on queries, 1 + beta · log(1 + ⌊(position + first) / floor⌋) (Llama 4), with
        a ``power`` (1 + (position + first) / floor) ** power (Beam), or if ``late`` 1 + beta · log(max(1, (position +
        first) / floor)) (Inkling)."""
        if (key := (beta, power, floor, first, late)) not in self._scales:
            scales = self._context.empty(self._max_model_len, dtype=torch.float32)
            if not self._context.filled:
                counted = torch.arange(self._max_model_len, device=scales.device) + first
                if late:
                    scales.copy_(1 + beta * torch.log((counted.float() / floor).clamp(min=1.0)))
                elif power:
                    scales.copy_(torch.exp(power * torch.log1p(counted.float() / floor)))
                else:
                    scales.copy_(1 + beta * torch.log(1 + (counted // floor).float()))
            self._scales[key] = scales
        return self._scales[key]

    def distance_bias(self, bias: DistanceBias, heads: int) -> torch.Tensor:
        """float32 [heads, distances]: what scores get for keys that lie 0 to ``farthest`` tokens back; with
        ``both_ways`` for those from ``farthest`` tokens back to as many ahead."""
        if bias not in self._biases:
            assert self._weights is not None, "a model with biases by distance passes its weights"
            distances = torch.arange(-bias.farthest if bias.both_ways else 0, bias.farthest + 1)
            buckets = distance_buckets(
                distances if bias.both_ways else -distances, bias.buckets, bias.farthest, both_ways=bias.both_ways
            )
            table = self._context.empty(heads, len(distances), dtype=torch.float32)
            name, shape = f"{bias.stored}.weight", (bias.buckets, heads)
            self._weights.add(name, table, shape=shape, read=lambda stored: stored.float()[buckets.to(stored.device)].T)
            self._biases[bias] = table
        return self._biases[bias]

    def root_distances(self, slopes: tuple[float, ...]) -> torch.Tensor:
        """float32 [heads, distances]: what scores lose with the root of the distance to a key (Step 1)."""
        if slopes not in self._roots:
            table = self._context.empty(len(slopes), self._max_model_len, dtype=torch.float32)
            if not self._context.filled:
                roots = torch.arange(self._max_model_len, device=table.device).float().sqrt()
                table.copy_(-torch.tensor(slopes, device=table.device)[:, None] * roots)
            self._roots[slopes] = table
        return self._roots[slopes]

    def _make(self, rope: RopeConfig | None, head_dim: int) -> RotaryTable:
        context, length = self._context, self._max_model_len
        if rope is not None and rope.learned:
            return self._learned(rope, head_dim)
        if context.memory is None or context.shapes_only:
            return self._values(rope, head_dim)
        if rope is not None and rope.axes and self._media_tokens:
            return self._values(rope, head_dim)  # passes write it, and memory that outlives the worker is read-only
        pairs = 1 if rope is None else -(-(rope.rotary_dim or head_dim) // 2)
        cos, sin = (context.empty(length, pairs, dtype=torch.float32) for _ in range(2))
        if not context.filled:
            for table, values in zip((cos, sin), self._values(rope, head_dim), strict=True):
                table.copy_(values)
        return cos, sin

    def _learned(self, rope: RopeConfig, head_dim: int) -> RotaryTable:
        """Tables that are computed once the logarithms of the frequencies' factors are loaded."""
        assert self._weights is not None, "only a decoder has learned frequencies"
        context, length, pairs = self._context, self._max_model_len, (rope.rotary_dim or head_dim) // 2
        logarithms = context.empty(pairs, dtype=torch.float32)
        self._weights.add(rope.learned, logarithms)

        def made(which: int) -> torch.Tensor:
            factors = logarithms.cpu().exp()
            return rotary_table(rope, head_dim, self._max_position, length, context.place, factors)[which]

        cos, sin = (context.empty(length, pairs, dtype=torch.float32) for _ in range(2))
        for which, table in enumerate((cos, sin)):
            self._weights.derive(table, partial(made, which))
        return cos, sin

    def _values(self, rope: RopeConfig | None, head_dim: int) -> RotaryTable:
        length, device = self._max_model_len, self._context.place
        if rope is None:
            return torch.ones(length, 1, device=device), torch.zeros(length, 1, device=device)
        cos, sin = rotary_table(rope, head_dim, self._max_position, length, device)
        if rope.axes and self._media_tokens:
            self._axes[rope] = torch.tensor(rope.axes, device=device)
            room = (0, 0, 0, self._media_tokens)
            cos, sin = (torch.nn.functional.pad(table, room) for table in (cos, sin))
        return cos, sin


def rotary_table(
    rope: RopeConfig,
    head_dim: int,
    max_position: int,
    max_model_len: int,
    device: torch.device,
    factors: torch.Tensor | None = None,
) -> RotaryTable:
    """Cosines and sines, each float32 [max_model_len, rotary_dim / 2], times the attention factor.

    ``max_position``: the model's context limit, from which ``longrope`` derives its factor. ``factors``: float32
    [rotary_dim / 2], multiply the frequencies.
    """
    dim = rope.rotary_dim or head_dim
    apart = 0 if rope.kind == "proportional" else rope.rotating
    inverse, attention_factor = _inverse_frequencies(rope, apart or dim, max_position, max_model_len)
    inverse = inverse if factors is None else inverse * factors
    angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), inverse)
    if rope.backwards:
        angles = -angles
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    if apart:
        still = (dim - apart) // 2
        cos = torch.nn.functional.pad(cos, (0, still), value=1.0)
        sin = torch.nn.functional.pad(sin, (0, still))
    return cos.to(device), sin.to(device)


def _inverse_frequencies(
    rope: RopeConfig, dim: int, max_position: int, max_model_len: int
) -> tuple[torch.Tensor, float]:
    """Angle per position of each rotating pair, float32 [dim / 2], and the factor on cosines and sines."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    plain = 1.0 / rope.theta**exponents
    if rope.frequency_divisors:
        plain = plain / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    original = rope.original_max_position or max_position
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "proportional":
            turning = torch.arange(len(plain)) < rope.rotating // 2
            return torch.where(turning, plain / rope.factor, 0.0), 1.0
        case "dynamic":
            if max_model_len <= original:
                return plain, 1.0
            stretch = rope.factor * max_model_len / original - (rope.factor - 1)
            return 1.0 / (rope.theta * stretch ** (dim / (dim - 2))) ** exponents, 1.0
        case "llama3":
            return _llama3(rope, plain, original), 1.0
        case "yarn":
            return _yarn(rope, dim, plain, original)
        case "longrope":
            factors = rope.long_factor if max_model_len > original else rope.short_factor
            factor = rope.factor if rope.factor > 1.0 else max_position / original
            attention = rope.attention_factor
            if attention is None:
                attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
            return plain / torch.tensor(factors, dtype=torch.float32), attention


def _llama3(rope: RopeConfig, plain: torch.Tensor, original: int) -> torch.Tensor:
    """Divide long wavelengths by the factor, keep short ones, and blend between."""
    wavelength = _TWO_PI / plain
    long_limit = original / rope.low_freq_factor
    short_limit = original / rope.high_freq_factor
    divided = torch.where(wavelength > long_limit, plain / rope.factor, plain)
    blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = (1 - blend) * divided / rope.factor + blend * divided
    between = (wavelength >= short_limit) & (wavelength <= long_limit)
    return torch.where(between, smooth, divided)


def _yarn(rope: RopeConfig, dim: int, plain: torch.Tensor, original: int) -> tuple[torch.Tensor, float]:
    """Interpolate low frequencies and keep high ones, with a linear ramp between two rotation counts."""

    def correction_dim(rotations: float) -> float:
        return dim * math.log(original / (rotations * _TWO_PI)) / (2 * math.log(rope.theta))

    low, high = correction_dim(rope.beta_fast), correction_dim(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    inverse = plain / rope.factor * (1 - keep) + plain * keep

    def mscale(scale: float, strength: float) -> float:
        return 0.1 * strength * math.log(scale) + 1.0 if scale > 1 else 1.0

    attention = rope.attention_factor
    if attention is None:
        if rope.mscale and rope.mscale_all_dim:
            attention = mscale(rope.factor, rope.mscale) / mscale(rope.factor, rope.mscale_all_dim)
        else:
            attention = mscale(rope.factor, 1.0)
    return inverse, attention


def distance_buckets(distance: torch.Tensor, buckets: int, farthest: int, *, both_ways: bool = True) -> torch.Tensor:
    """The bucket of each distance (key minus query), near ones exact and far ones logarithmic (arXiv:1910.10683,
    section 2.1): half of the buckets for each direction, or all for keys that are not later than the query."""
    half = buckets // 2 if both_ways else buckets
    exact = half // 2
    away = distance.abs()
    far = exact + (torch.log(away.float().clamp(min=1) / exact) / math.log(farthest / exact) * (half - exact)).long()
    near = torch.where(away < exact, away, far.clamp(max=half - 1))
    return near + (distance > 0) * half if both_ways else near


def rotate_apart_(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool,
) -> None:
    """Rotate heads of q and k [tokens, heads, head_dim] in place, the two numbers of a pair by angles of their own.

    ``cos``, ``sin``: float32 [positions, head_dim], of the first numbers of all pairs before those of the second.
    ``interleaved``: a pair are neighbours, not numbers of both halves. Computed in float32, rounded once.
    """
    pairs = q.shape[2] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(pairs), slice(pairs, None))
    (cos_first, cos_second), (sin_first, sin_second) = (
        each[positions].unsqueeze(1).split(pairs, dim=2) for each in (cos, sin)
    )
    for heads in (q, k):
        a, b = heads[..., first].float(), heads[..., second].float()
        turned = a * cos_first - b * sin_first, b * cos_second + a * sin_second
        for part, values in zip((first, second), turned, strict=True):
            heads[..., part] = values.to(heads.dtype)
