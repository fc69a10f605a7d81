"""A decoder or an encoder split over workers. Torch-free.

Heads and inner dimensions are split; each worker has an equal part, but for inner units that are stored in blocks of
which there is no equal number. Experts are split so too, or are given out whole. What it computes of the residual
stream is summed over all behind each mixer and each network (Megatron-LM, arXiv:1909.08053). Embeddings, norms and the
head are whole in each.
"""

from typing import TypeVar

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.encoder import EncoderConfig
from ..spec.layer import LayerSpec
from ..spec.mlp import MoESpec
from ..spec.model import Backbone, ModelSpec
from .cuts import BlockOf, Cut, Rank
from .mixers import split_mixer
from .networks import split_network
from .recurrent import split_beside

B = TypeVar("B", bound=Backbone)


def split_model(spec: B, rank: Rank, block_of: BlockOf = lambda name, inputs: 1) -> tuple[B, dict[str, Cut]]:
    """The spec of a rank's part, as if it were a whole model, and the cuts of stored tensors by name.

    Tensors without a cut are read whole. ``block_of``: blocks of quantised weights. Raises :class:`ConfigError` for a
    model that cannot be split among so many ranks.
    """
    if type(spec) not in (ModelSpec, EncoderConfig):
        raise ConfigError(f"{spec.architecture} runs on transformers' modules, which are not split")
    if spec.adapters is not None:
        raise ConfigError(f"{spec.architecture} has adapters of its own, which are not split")
    if rank.whole_experts and not any(
        isinstance(network, MoESpec) for layer in spec.layers for network in layer.networks
    ):
        raise ConfigError(f"{spec.architecture} has no experts to give out; leave --enable-expert-parallel out")
    layers = []
    cuts: dict[str, Cut] = {}
    for number, layer in enumerate(spec.layers):
        part, own = _split_layer(layer, rank, spec.layer_prefix(number), spec.hidden_size, block_of)
        layers.append(part)
        cuts.update(own)
    if isinstance(spec, EncoderConfig) and spec.relative_buckets:  # a bias of each head
        heads = spec.layers[0].attention.heads
        cuts["relative.weight"] = Cut(1, heads, (rank.own(heads),))
    return replace(spec, layers=tuple(layers)), cuts


def _split_layer(
    layer: LayerSpec, rank: Rank, prefix: str, hidden: int, block_of: BlockOf
) -> tuple[LayerSpec, dict[str, Cut]]:
    if layer.block is not None:
        raise ConfigError("a block that several layers share is not split")
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
    if (shortcut := layer.shortcut) is not None:
        network, own = split_network(shortcut, rank, prefix, hidden, block_of)
        assert isinstance(network, MoESpec)
        shortcut = network
        cuts.update(own)
    return replace(layer, mixer=mixer, beside=beside, mlp=mlp, shortcut=shortcut), cuts
