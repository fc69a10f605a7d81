"""The decoders that the forward pass is tested with."""

import torch

from stentor.kernels.linear_packed import PackedKind, Scaling
from stentor.kernels.moe import Router
from stentor.tests.kernels.packed_weights import SIGNED, USUAL
from stentor.tests.kernels.programs import Shape

KINDS: tuple[tuple[tuple[PackedKind, Scaling], ...], ...] = (
    (("f32", USUAL),),
    (("bf16", USUAL),),
    (("q4", USUAL),),
    (("q4m", USUAL), ("q4m", USUAL), ("q8h", SIGNED)),
    (("q8", Scaling(torch.float32, 0)),),
    (("q4z", Scaling(torch.bfloat16, 32, zeros=True)), ("q8", USUAL)),
)
"""Of the parts of a layer."""
SHAPES = {
    "plain": Shape(),
    "biased": Shape(biased=True, kv_heads=4, activation="gelu"),
    "windowed": Shape(windows=(5, 0, 20), kv_heads=1, block_size=32),
    "gemma": Shape(norms="sandwich", qk_norm="head", windows=(8, 0), activation="gelu_tanh", dim=24, turned=24),
    "softcapped": Shape(norms="sandwich", softcap=5.0, windows=(8, 0), activation="gelu_tanh"),
    "sunk": Shape(windows=(8, 0), biased=True, sunk=True),
    "sloped": Shape(windows=(8, 0), kv_heads=4, sloped=True),
    "olmo": Shape(norms="post", qk_norm="full", kv_heads=4),
    "granite": Shape(residual_scale=0.3, hidden=33, inner=31),
    "partial": Shape(turned=6, dim=12, heads=6, kv_heads=3),
    "brain": Shape(kinds=(("bf16", USUAL),), cache=torch.bfloat16),
    "coded cache": Shape(cache=torch.int8, windows=(8, 0), softcap=5.0, sunk=True),
    "coded cache with slopes": Shape(cache=torch.int8, sloped=True),
    "coded cache of odd heads": Shape(cache=torch.int8, turned=6, dim=12, heads=6, kv_heads=3, qk_norm="head"),
    "float8 cache": Shape(cache=torch.float8_e4m3fn, windows=(8, 0), softcap=5.0, sunk=True),
    "float8 cache of odd heads": Shape(
        cache=torch.float8_e4m3fn, turned=6, dim=12, heads=6, kv_heads=3, qk_norm="head", kinds=(("bf16", USUAL),)
    ),
    "gated": Shape(inner=64, biased=True),
    "brain gated": Shape(kinds=(("bf16", USUAL),), cache=torch.bfloat16, inner=32, activation="gelu_tanh"),
    "starcoder": Shape(centred=True, biased=True, gated=False, activation="gelu_tanh", hidden=41),
    "opt": Shape(centred=True, biased=True, gated=False, activation="relu", learned=True, hidden=41),
    "brain opt": Shape(kinds=(("bf16", USUAL),), cache=torch.bfloat16, gated=False, activation="relu", learned=True),
    "nemotron": Shape(centred=True, norms="sandwich", gated=False, activation="relu2", turned=8, inner=64),
    "glm": Shape(interleaved=True, turned=10, norms="sandwich"),
    "hunyuan": Shape(qk_norm="head", rotated_first=True, scaled_queries=True),
    "brain nemotron": Shape(
        kinds=(("bf16", USUAL),), cache=torch.bfloat16, centred=True, gated=False, interleaved=True, scaled_queries=True
    ),
    "experts": Shape(hidden=48, inner=16, experts=7),
    "grouped experts": Shape(
        hidden=32,
        inner=64,
        experts=8,
        biased=True,
        router=Router(3, score="sigmoid", scale=2.5, groups=4, top_groups=2),
        kinds=(("bf16", USUAL),),
        cache=torch.bfloat16,
    ),
    "experts in codes": Shape(hidden=64, inner=96, experts=6, kinds=KINDS[3], biased=True, router=Router(4)),
    "mixed": Shape(kinds=KINDS[3], cache=torch.bfloat16, biased=True, hidden=64, inner=96),
}
