"""The decoders that the forward pass is tested with."""

import torch

from stentor.kernels.linear_packed import PackedKind
from stentor.kernels.moe import Router
from stentor.tests.kernels.programs import Shape

KINDS: tuple[tuple[tuple[PackedKind, bool], ...], ...] = (
    (("f32", False),),
    (("bf16", False),),
    (("q4", False),),
    (("q4m", False), ("q4m", False), ("q8h", False)),
    (("q8", True),),
    (("q4m", True), ("q8", False)),
)
"""Of the parts of a layer."""
SHAPES = {
    "plain": Shape(),
    "biased": Shape(biased=True, kv_heads=4, activation="gelu"),
    "windowed": Shape(windows=(5, 0, 20), kv_heads=1, block_size=32),
    "gemma": Shape(norms="sandwich", qk_norm="head", windows=(8, 0), activation="gelu_tanh", dim=24, turned=24),
    "softcapped": Shape(norms="sandwich", softcap=5.0, windows=(8, 0), activation="gelu_tanh"),
    "sunk": Shape(windows=(8, 0), biased=True, sunk=True),
    "olmo": Shape(norms="post", qk_norm="full", kv_heads=4),
    "granite": Shape(residual_scale=0.3, hidden=33, inner=31),
    "partial": Shape(turned=6, dim=12, heads=6, kv_heads=3),
    "brain": Shape(kinds=(("bf16", False),), cache=torch.bfloat16),
    "gated": Shape(inner=64, biased=True),
    "brain gated": Shape(kinds=(("bf16", False),), cache=torch.bfloat16, inner=32, activation="gelu_tanh"),
    "experts": Shape(hidden=48, inner=16, experts=7),
    "grouped experts": Shape(
        hidden=32,
        inner=64,
        experts=8,
        biased=True,
        router=Router(3, score="sigmoid", scale=2.5, groups=4, top_groups=2),
        kinds=(("bf16", False),),
        cache=torch.bfloat16,
    ),
    "experts in codes": Shape(hidden=64, inner=96, experts=6, kinds=KINDS[3], biased=True, router=Router(4)),
    "mixed": Shape(kinds=KINDS[3], cache=torch.bfloat16, biased=True, hidden=64, inner=96),
}
