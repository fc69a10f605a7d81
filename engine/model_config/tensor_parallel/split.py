"""A decoder split over workers. Torch-free.

Heads and inner dimensions are split; each worker has an equal part, but for inner units that are stored in blocks of
which there is no equal number. What it computes of the residual stream is
summed over all behind each mixer and each network (Megatron-LM, arXiv:1909.08053). Embeddings, norms and the head are
whole in each.
"""

from dataclasses import dataclass, replace

from ..config_fields import ConfigError
from ..model_spec import LayerSpec, ModelSpec
from .cuts import BlockOf, Cut, Rank
from .mixers import split_mixer
from .networks import split_network
from .recurrent import split_beside


@dataclass(frozen=True)
class SplitModel:
    """One rank's part of a decoder."""

    spec: ModelSpec
    """As of a model of its own."""
    cuts: dict[str, Cut]
    """By the names of stored tensors; the others are taken whole."""


def split_model(spec: ModelSpec, rank: int, size: int, block_of: BlockOf = lambda name, inputs: 1) -> SplitModel:
    """``block_of`` is of quantised weights. Raises :class:`ConfigError` for a model that cannot be split so."""
    if type(spec) is not ModelSpec:
        raise ConfigError(f"{spec.architecture} runs on transformers' modules, which are not split")
    layers = []
    cuts: dict[str, Cut] = {}
    for number, layer in enumerate(spec.layers):
        part, own = _split_layer(layer, Rank(rank, size), f"{spec.prefix}.{number}", spec.hidden_size, block_of)
        layers.append(part)
        cuts.update(own)
    return SplitModel(replace(spec, layers=tuple(layers)), cuts)


def _split_layer(
    layer: LayerSpec, rank: Rank, prefix: str, hidden: int, block_of: BlockOf
) -> tuple[LayerSpec, dict[str, Cut]]:
    if layer.cross is not None:
        raise ConfigError("attention to audio is not split")
    cuts: dict[str, Cut] = {}
    if (mixer := layer.mixer) is not None:
        mixer, own = split_mixer(mixer, rank, prefix, hidden)
        cuts.update(own)
    if (beside := layer.beside) is not None:
        beside, own = split_beside(beside, rank, prefix, hidden)
        cuts.update(own)
    if (mlp := layer.mlp) is not None:
        mlp, own = split_network(mlp, rank, prefix, hidden, block_of)
        cuts.update(own)
    return replace(layer, mixer=mixer, beside=beside, mlp=mlp), cuts
