"""Reads adapters in PEFT's format."""

from collections.abc import Sequence
from typing import Final

import msgspec
import torch

from ...layers.linear.adapters import AdapterPlace, AdapterPlaces
from ...loading.adapter_config import AdapterConfig
from ...loading.adapter_files import WEIGHTS, AdapterFiles
from ...loading.errors import CheckpointError
from ...loading.safetensors_index import StoredTensor
from .addition import Addition, Matrices, check_rank, not_adapted

_BASE: Final = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_ENDINGS: Final = {_DOWN: _DOWN, _UP: _UP, ".lora_embedding_A": _DOWN, ".lora_embedding_B": _UP}
"""Name endings of A and B; embeddings have their own."""
_OUTER: Final = ("embed_tokens", "lm_head")
_WRAPPED: Final = ".base_layer"
"""PEFT wraps the second parameter of a module around the first."""
_FLOATS: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_TEXT_PARTS: Final = (
    "",
    "model.",
    "language_model.",
    "model.language_model.",
    "language_model.model.",
    "model.model.",
    "backbone.",
)
"""Prefixes of the layers of a language model in various model classes."""


class _Pair(msgspec.Struct, frozen=True):
    """A and B of a module of the adapter."""

    module: str
    down: StoredTensor
    """A"""
    up: StoredTensor
    """B"""


def peft_additions(files: AdapterFiles, places: AdapterPlaces, max_rank: int) -> list[Addition]:
    """The additions of the files. Raises :class:`...loading.errors.CheckpointError` if they do not fit the model."""
    config = files.read_config()
    return [_addition(files, pair, config, places, max_rank) for pair in _paired(files.tensors(), config, places)]


def _addition(
    files: AdapterFiles, pair: _Pair, config: AdapterConfig, places: AdapterPlaces, max_rank: int
) -> Addition:
    stored = [_stored_name(part, places) for part in places.parts_of(pair.module)]
    own = [places.by_name[name] for name in stored if name is not None]
    if len(own) < len(stored):
        raise not_adapted(pair.module)
    _check(pair, own, config, max_rank)

    def read() -> list[list[Matrices]]:
        down, up = _read(files, pair.down), _read(files, pair.up)
        ups = [up] if len(own) == 1 else up.split([place.stored_outputs for place in own])
        return [_matrices(down, part, place) for part, place in zip(ups, own, strict=True)]

    return Addition(pair.module, own, config.scale_of(pair.module), read)


def _paired(tensors: Sequence[StoredTensor], config: AdapterConfig, places: AdapterPlaces) -> list[_Pair]:
    by_module: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        name = tensor.name.replace(".default.weight", ".weight").removesuffix(".default")
        ending = next((each for each in _ENDINGS if name.endswith(each)), None)
        if ending is None and _copies_the_model(name.removeprefix(_BASE), tensor, places):
            continue
        if ending is None:
            raise CheckpointError(f"{WEIGHTS} holds {tensor.name[:200]!r}; expected lora_A and lora_B of linear layers")
        by_module.setdefault(name.removesuffix(ending).removeprefix(_BASE), {})[_ENDINGS[ending]] = tensor
    if not by_module:
        raise CheckpointError(f"{WEIGHTS} holds no tensors")
    found = []
    for wrapper, parts in by_module.items():
        if len(parts) != 2:
            lacks = "lora_B" if _DOWN in parts else "lora_A"
            raise CheckpointError(f"{WEIGHTS} lacks {lacks} of {wrapper[:200]!r}")
        module = wrapper if _is_known(wrapper, places) else _unwrapped(wrapper, config)
        found.append(_Pair(module, parts[_DOWN], parts[_UP]))
    return found


def _is_known(module: str, places: AdapterPlaces) -> bool:
    """Whether the model has a product of this name."""
    return all(_stored_name(part, places) is not None for part in places.parts_of(module))


def _copies_the_model(name: str, tensor: StoredTensor, places: AdapterPlaces) -> bool:
    """Whether a tensor is the model's own embedding or head, which PEFT stores beside an adapter of one of them.

    Raises:
        CheckpointError: it has another shape than the model's.
    """
    module = name.removesuffix(".weight").removesuffix(_WRAPPED)
    if module == name or module.rpartition(".")[2] not in _OUTER:
        return False
    place = places.by_name.get(_stored_name(module, places) or "")
    if place is not None and sorted(tensor.shape) != sorted((place.stored_outputs, place.stored_inputs)):
        raise CheckpointError(
            f"{tensor.name} is {list(tensor.shape)}, and the model's is {place.stored_outputs} by "
            f"{place.stored_inputs}: the vocabulary was changed for the adapter; merge it into its model and serve that"
        )
    return place is not None


def _unwrapped(wrapper: str, config: AdapterConfig) -> str:
    """The module or parameter that PEFT's ``wrapper`` adapts.

    Of a module's parameters, the one defined first is the innermost, and gates and ups are defined before downs.
    """
    module = wrapper.removesuffix(_WRAPPED)
    ours = {
        last
        for target in config.parameters
        for before, _, last in (target.rpartition("."),)
        if not before or module == before or module.endswith(f".{before}")
    }
    if not ours:
        return module
    inside_out = sorted(ours, key=lambda name: (name.startswith("down"), name))
    inner = wrapper != module and len(inside_out) > 1
    return f"{module}.{inside_out[0 if inner else -1]}".removesuffix(".weight")


def _stored_name(module: str, places: AdapterPlaces) -> str | None:
    """The name of a module in the model's checkpoint, which its class may call otherwise before the layers; None if
    unknown."""
    if module in places.by_name:
        return module
    before, layers, rest = module.partition("layers.")
    if not layers:
        before, _, last = module.rpartition(".")
        if last not in _OUTER:
            return None
        before, layers, rest = f"{before}." if before else "", last, ""
    if before not in _TEXT_PARTS:
        return None
    return next((name for part in _TEXT_PARTS if (name := f"{part}{layers}{rest}") in places.by_name), None)


def _check(pair: _Pair, places: Sequence[AdapterPlace], config: AdapterConfig, max_rank: int) -> None:
    rank, place = config.rank_of(pair.module), places[0]
    check_rank(pair.module, rank, max_rank)
    inputs, ranks = place.stored_inputs, rank * len(place.linears)
    outputs = sum(each.stored_outputs for each in places)
    if _is_turned(pair.down.shape, pair.up.shape, place):
        inputs, outputs = outputs, inputs
    elif len(place.linears) > 1 and inputs == outputs and not place.transposed and config.turns_parameters:
        raise CheckpointError(
            f"{pair.module} may be stored in two ways, of which peft_version in adapter_config.json tells one from "
            "0.19.1 on: save the adapter with that"
        )
    for tensor, shape in ((pair.down, (ranks, inputs)), (pair.up, (outputs, ranks))):
        size = shape[0] * shape[1] * (_FLOATS[tensor.dtype].itemsize if tensor.dtype in _FLOATS else 0)
        if tensor.shape != shape or tensor.nbytes != size:
            raise CheckpointError(
                f"{tensor.name} is {tensor.dtype} {list(tensor.shape)} in {tensor.nbytes} bytes; expected are floats "
                f"{list(shape)}"
            )


def _is_turned(down: Sequence[int], up: Sequence[int], place: AdapterPlace) -> bool:
    """Whether A takes the experts' outputs and B their inputs, as PEFT stored [experts, outputs, inputs] before
    0.19.1."""
    sizes = place.stored_outputs, place.stored_inputs
    return len(place.linears) > 1 and sizes[0] != sizes[1] and (tuple(down[1:]), *up[:1]) == ((sizes[0],), sizes[1])


def _matrices(down: torch.Tensor, up: torch.Tensor, place: AdapterPlace) -> list[Matrices]:
    """A [rank, inputs] and B [outputs, rank] of each product. For several experts, A is stored expert by expert and B
    rank by rank."""
    experts = len(place.linears)
    if experts == 1:
        return [place.own(down, up)]
    downs, ups = down.view(experts, -1, down.shape[1]), up.view(len(up), -1, experts)
    pairs = [(downs[expert], ups[:, :, expert]) for expert in range(experts)]
    if _is_turned(down.shape, up.shape, place):
        pairs = [(b.T, a.T) for a, b in pairs]
    return [place.own(a, torch.cat((b[0::2], b[1::2])) if place.interleaved else b) for a, b in pairs]


def _read(files: AdapterFiles, tensor: StoredTensor) -> torch.Tensor:
    """Read a tensor as float32, piece by piece, so that steps can run in between."""
    made = torch.empty(tensor.shape, dtype=torch.float32)
    flat, at = made.view(-1), 0
    for piece in files.pieces(tensor):
        values = torch.frombuffer(bytearray(piece), dtype=_FLOATS[tensor.dtype])
        flat[at : at + len(values)] = values
        at += len(values)
    return made
