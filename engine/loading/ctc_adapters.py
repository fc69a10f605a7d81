"""Files beside a CTC model with the adapter of a language each, as those of MMS (``adapter.deu.safetensors``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..model_config.config_fields import ConfigError
from .errors import CheckpointError
from .safetensors_index import safetensors_tensors

_PREFIX, _SUFFIX = "adapter.", ".safetensors"
_MOST: Final = 4096
"""Languages of one model."""
_HEAD: Final = "lm_head."


def adapter_files(folder: Path) -> dict[str, Path]:
    """The files by language, in the order by which requests number them from 1. Raises :class:`CheckpointError`."""
    files = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    if len(files) > _MOST:
        raise CheckpointError(f"Cannot load {folder}: it holds {len(files)} adapters, expected at most {_MOST}.")
    return {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in files}


def check_adapter(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a file has tensors of these names and ``shapes``; heads may have any number of outputs. Raises
    :class:`..model_config.config_fields.ConfigError`."""
    try:
        found = {tensor.name: tuple(tensor.shape) for tensor in safetensors_tensors(file)}
    except CheckpointError as error:
        raise ConfigError(str(error).removesuffix(".")) from error
    for name in sorted(found.keys() | shapes.keys()):
        given, expected = found.get(name), shapes.get(name)
        if given is None or expected is None:
            raise ConfigError(f"{file.name} {'lacks' if given is None else 'has'} the tensor {name!r}")
        begin = 1 if name.startswith(_HEAD) else 0
        if len(given) != len(expected) or given[begin:] != expected[begin:]:
            raise ConfigError(f"{file.name}: {name} has shape {given}, expected {expected}")
