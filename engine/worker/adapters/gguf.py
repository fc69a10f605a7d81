"""Reads adapters in llama.cpp's GGUF format."""

import re
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Final

import torch

from ...layers.linear.adapters import AdapterPlace, AdapterPlaces
from ...loading.errors import CheckpointError
from ...loading.gguf.adapter import GGUFAdapterFile, GGUFPair, alpha_of, pairs_of
from ...loading.gguf.tensors import stored_part
from ...loading.gguf_weights import TensorReader, permuted_heads
from ...model_config.config_fields import ConfigError
from ...model_config.gguf.config import gguf_architecture
from ...model_config.spec.mlp import MoESpec
from ...model_config.spec.model import ModelSpec
from ...model_config.spec.recurrent import GatedDeltaSpec
from .addition import Addition, Matrices, check_rank, not_adapted

_TABLE: Final = "token_embd.weight"
"""Its A is stored by token."""
_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.(.+)")


def gguf_additions(file: GGUFAdapterFile, places: AdapterPlaces, max_rank: int) -> list[Addition]:
    """The additions of the file. Raises :class:`...loading.errors.CheckpointError` if it does not fit the model."""
    spec = places.spec
    if spec is None:
        raise CheckpointError("it is a GGUF file, which is read of adapters of decoders alone; save it with PEFT")
    with file.header() as gguf:
        alpha, pairs = alpha_of(gguf), pairs_of(gguf)
        try:
            permuted = gguf_architecture(gguf.metadata).permuted
        except ConfigError as error:
            raise CheckpointError(str(error)) from error
    return [_addition(file, pair, alpha, spec, places, max_rank, permuted=permuted) for pair in pairs]


def _addition(
    file: GGUFAdapterFile,
    pair: GGUFPair,
    alpha: float,
    spec: ModelSpec,
    places: AdapterPlaces,
    max_rank: int,
    *,
    permuted: bool,
) -> Addition:
    own = _places(pair.name, spec, places)
    if not own:
        raise not_adapted(pair.name)
    check_rank(pair.name, pair.rank, max_rank)
    experts = len(own) if len(own) > 1 else len(own[0].linears)
    sizes, outputs = (own[0].stored_inputs, pair.rank), own[0].stored_outputs
    is_table = pair.name == _TABLE
    for tensor, shape in ((pair.down, sizes[::-1] if is_table else sizes), (pair.up, (pair.rank, outputs))):
        wanted = shape if experts == 1 else (*shape, experts)
        if tensor.shape != wanted:
            raise CheckpointError(f"{tensor.name} is {list(tensor.shape)}, expected {list(wanted)}")
    heads = permuted_heads(pair.name, spec) if permuted else 0

    def read() -> list[list[Matrices]]:
        with FileIO(file.descriptor, closefd=False) as stream:
            reader = TensorReader(Path("the adapter"), stream)
            down, up = reader.read(pair.down, torch.float32, 0, 0.0), reader.read(pair.up, torch.float32, heads, 0.0)
        if experts == 1:
            return [[own[0].own(down.T if is_table else down, up)]]
        places = own if len(own) > 1 else [own[0]] * experts
        each = [place.own(*one) for place, *one in zip(places, down.unbind(), up.unbind(), strict=True)]
        return [[one] for one in each] if len(own) > 1 else [each]

    return Addition(pair.name, own, alpha / pair.rank if alpha else 1.0, read)


def _places(name: str, spec: ModelSpec, places: AdapterPlaces) -> Sequence[AdapterPlace]:
    """The places of a tensor, named as in the model's own file: one, or one an expert. Empty if it cannot be
    adapted."""
    block = _BLOCK.fullmatch(name)
    if block is not None and int(block[1]) < len(spec.layers):
        layer = spec.layers[int(block[1])]
        if any(isinstance(mixer, GatedDeltaSpec) for mixer in layer.mixers) and not block[2].startswith("ffn_"):
            return ()  # the order of its heads differs between files
    part = stored_part(name, spec)
    if len(part.names) != 1 or part.change:
        return ()
    stored = part.names[0].removesuffix(".weight")
    if "{}" not in stored:
        return [places.by_name[stored]] if stored in places.by_name else ()
    assert block is not None
    mlp = spec.layers[int(block[1])].mlp
    assert isinstance(mlp, MoESpec)
    return [places.by_name[stored.format(expert)] for expert in range(mlp.experts)]
