"""A decoder whose layers are given out to workers, each of which has some that follow each other: a stage. Torch-free.

A worker's spec has all layers, of which those of other stages have no parts: they leave the stream as it is.
Embeddings, the last norm and the head are whole in each.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from .config_fields import ConfigError
from .spec.attention import AttentionSpec
from .spec.latent_attention import LatentAttentionSpec
from .spec.layer import LayerSpec
from .spec.mlp import MoESpec
from .spec.model import ModelSpec


def stage_ends(spec: ModelSpec, size: int) -> dict[int, int]:
    """The last layer of each stage, with the stage's number; the first stages may have a layer more. Raises
    :class:`ConfigError` for a model that is not cut into ``size`` stages."""
    if type(spec) is not ModelSpec:
        raise ConfigError(f"{spec.architecture} runs on transformers' modules, which are not given out")
    if spec.runs or spec.blends:
        raise ConfigError("layers that run several times, or use the stream of earlier ones, are not given out")
    if len(spec.layers) < size:
        raise ConfigError(f"{len(spec.layers)} layers are fewer than {size} workers")
    if spec.streams is not None or spec.per_layer is not None:
        raise ConfigError("layers with embeddings of their own are not given out")
    if any(layer.cross is not None for layer in spec.layers):
        raise ConfigError("layers that attend to media are not given out")
    if any(map(_needs_others, spec.layers)):
        raise ConfigError(
            "layers that use keys of earlier ones, their choice of them, their experts or their weights, are not given "
            "out"
        )
    ends = {-(-(number + 1) * len(spec.layers) // size) - 1: number for number in range(size)}
    for number in range(1, size):
        if _kept(part_of(spec, ends, number)) != _kept(part_of(spec, ends, 0)):
            raise ConfigError(f"the layers of worker {number} keep something else of a token than those of worker 0")
    return ends


def part_of(spec: ModelSpec, ends: Mapping[int, int], own: int) -> ModelSpec:
    """A stage, as of a model of its own."""
    layers, stage = [], 0
    for number, layer in enumerate(spec.layers):
        layers.append(layer if stage == own else _without_parts(layer))
        stage += number in ends
    return replace(spec, layers=tuple(layers))


def _without_parts(layer: LayerSpec) -> LayerSpec:
    return LayerSpec(None, None, layer.norms.of_no_part())


def _kept(part: ModelSpec) -> object:
    """The cache groups and number of states of a stage. They must be equal in all stages, since the engine has one list
    for all."""
    return [replace(group, layers=()) for group in part.cache_groups], len(part.states)


def _needs_others(layer: LayerSpec) -> bool:
    if layer.shortcut is not None or layer.block is not None:
        return True
    if isinstance(layer.mlp, MoESpec) and layer.mlp.network is not None:
        return True
    match layer.mixer:
        case AttentionSpec(shares=shared):
            return shared >= 0
        case LatentAttentionSpec(index=index, shares=shared):
            return shared >= 0 or (index is not None and index.shared)
    return False
