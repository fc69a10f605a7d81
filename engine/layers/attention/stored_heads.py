"""How files store the products of an attention: in what order, and with which tensors that are not used."""

from functools import partial

import torch

from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.model import Backbone
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear, check_arranged
from ..linear.weights import WeightMap


def _projections(
    weights: WeightMap, at: str, spec: AttentionSpec, model: Backbone, context: LayerContext
) -> tuple[Linear, Linear]:
    """The product for queries, keys and values of the layer named ``at``, and the one for its output."""
    into, out, *_ = spec.projections(model.hidden_size)
    tasks = model.adapters
    # an adapter's B has its rows in the order of the stored weights
    adaptable = not (
        spec.by_group or spec.shards or spec.regrouped or spec.paired or spec.chunk or spec.chosen or spec.apart
    )
    made = (
        Linear.of(weights, at, into, context, adapters=tasks, adaptable=adaptable, dtype=context.dtype),
        Linear.of(
            weights, at, out, context, adapters=tasks, adaptable=not spec.chosen, dtype=context.stream, summed=True
        ),
    )
    if spec.output_bias:
        weights.alias(f"{at}.{spec.name}.{spec.out}_bias", f"{at}.{spec.name}.{spec.out}.bias")  # GPT-NeoX Japanese
    if spec.by_group or spec.shards:
        check_arranged(f"{at}.{spec.name}.{spec.into}", context)
        for name, shape in into.shapes(at):
            weights.arrange(name, shape, partial(_one_kind_after_another, spec))
    if spec.paired is not None:
        part = f"{at}.{spec.name}.{spec.paired[1]}"
        check_arranged(part, context)
        stored = 2 * spec.kv_size, model.hidden_size
        weights.arrange(f"{part}.weight", stored, partial(_keys_before_values, spec))
    if (chosen := spec.chosen) is not None:
        own, (hidden, inputs) = f"{at}.{spec.name}", (model.hidden_size, spec.kv_size)
        for part in (chosen.into, chosen.out):
            check_arranged(f"{own}.{part}", context)
        queries, outputs = (chosen.experts, inputs, hidden), (chosen.experts, hidden, inputs)
        weights.arrange(f"{own}.{chosen.into}.weight", queries, lambda each: each.flatten(0, 1))
        weights.arrange(f"{own}.{chosen.out}.weight", outputs, lambda each: each.transpose(0, 1).flatten(1))
        weights.alias(f"{own}.{chosen.bias}", f"{own}.{chosen.out}.bias")
    if spec.tied_values:
        weights.share(f"{at}.{spec.name}.k_proj", f"{at}.{spec.name}.v_proj")
    return made


def _pass_over_unused(weights: WeightMap, prefix: str, spec: AttentionSpec) -> None:
    """Name the stored tensors that this attention does not read."""
    weights.pass_over(f"{prefix}.bias", f"{prefix}.masked_bias")  # masks in old files
    weights.pass_over(*(f"{prefix}.{each}" for each in spec.unused))
    # scales of quantised queries and probabilities, which are not quantised here
    unused = ("q_scale", "q_proj.q_scale", "q_proj.output_scale", "prob_scale", "prob_output_scale")
    weights.pass_over(*(f"{prefix}.{name}" for name in unused))


def _one_kind_after_another(spec: AttentionSpec, stored: torch.Tensor) -> torch.Tensor:
    """Reorder rows stored as :attr:`AttentionSpec.by_group` or :attr:`AttentionSpec.shards` say to all queries, all
    keys, all values."""
    if spec.shards:
        queries, values, keys = stored.view(spec.shards, 3, -1, *stored.shape[1:]).unbind(1)
        return torch.cat([part.flatten(0, 1) for part in (queries, keys, values)])
    group = spec.heads // spec.kv_heads
    heads = stored.view(spec.kv_heads, group + 2, spec.head_dim, *stored.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in heads.split([group, 1, 1], dim=1)])


def _keys_before_values(spec: AttentionSpec, stored: torch.Tensor) -> torch.Tensor:
    """Reorder rows stored as in :attr:`AttentionSpec.paired` to all keys, all values."""
    return stored.view(spec.kv_heads, 2, spec.head_dim, -1).transpose(0, 1).reshape(stored.shape)
