"""Reads the config.json of HRM: two stacks of layers that run in turn, each on the sum of what both made last
(hierarchical reasoning model, arXiv:2506.21734)."""

from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.layer import PRE
from ..spec.mlp import FUSED_MLP
from ..spec.model import Blend, ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.token_input import TokenInputSpec
from .common import common, expect, with_defaults

_DEVIATION: Final = 0.02
"""Of initial weights; embeddings are divided by it."""


def hrm(fields: Fields, name: str) -> ModelSpec:
    """The low stack runs ``L_cycles`` times, then the high one once, and all of that ``H_cycles`` times; each run has
    keys and values of its own."""
    expect(fields, {"attention_bias": False, "mlp_bias": False})
    heads = fields.integer("num_attention_heads", 12)
    fields = with_defaults(fields, head_dim=128, num_hidden_layers=16)
    low, high = (fields.integer(field, default, most=64) for field, default in (("L_cycles", 3), ("H_cycles", 2)))
    each = fields.integer("num_layers_per_stack", fields.integer("num_hidden_layers"))
    if each * (low + 1) * high > MOST_LAYERS:
        raise ConfigError(f"{each} layers run {(low + 1) * high} times, expected at most {MOST_LAYERS} in all")
    # heads do not share keys, and num_hidden_layers counts every run in newer files
    spec = common(Fields({**fields.values, "num_key_value_heads": heads, "num_hidden_layers": each}), name)
    spec = with_mixers(spec, name="attn", into="gqkv_proj", fused=True, gated=True, gate="gate_proj", gate_first=True)
    spec = with_layers(spec, norms=replace(PRE, weighted=False), mlp=replace(dense_mlp(spec), into=FUSED_MLP))
    scale = fields.positive("embedding_scale", 1 / fields.positive("initializer_range", _DEVIATION))
    spec = replace(
        _cycled(spec, low, high),
        stacks=("model.L_module.layers", "model.H_module.layers"),
        start="model.z_L_init",
        input=TokenInputSpec(scale=scale),
    )
    if not fields.flag("prefix_lm", True):
        return spec
    return replace(with_mixers(spec, whole_spans=True), whole_prompts=True)


def _cycled(spec: ModelSpec, low: int, high: int) -> ModelSpec:
    """The spec with both stacks in the order in which they run."""
    each, runs = len(spec.layers), [stack for _ in range(high) for stack in (*[0] * low, 1)]
    starts = [run * each for run in range(len(runs))]
    blends = []
    made = [0, 0]
    """Before which layer the stream is what each stack made last: the high one's is the embedding at first."""
    for run, stack in enumerate(runs[:-1]):
        made[stack] = starts[run + 1]
        blends.append(Blend(starts[run + 1], made[1 - stack], 0.5, summed=True))
    return replace(
        spec,
        layers=spec.layers * len(runs),
        runs=tuple(stack * each + layer for stack in runs for layer in range(each)),
        normed_before=tuple(starts[1:]),
        blends=tuple(blends),
    )
