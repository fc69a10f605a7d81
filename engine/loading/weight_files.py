"""Lists the tensors in a folder's weight files: safetensors, or else torch's ``pytorch_model.bin``.

Only headers and descriptions are read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from .errors import CheckpointError
from .safetensors_index import StoredTensor, read_json, safetensors_tensors

SAFETENSORS: Final = "model.safetensors"
PYTORCH: Final = "pytorch_model.bin"
MISTRAL: Final = "consolidated.safetensors"
"""Of Mistral's own files, beside :data:`MISTRAL_PARAMS` in place of config.json."""
MISTRAL_PARAMS: Final = "params.json"


def index_of(single: str) -> str:
    """The index of the shards that replace a file of this name."""
    return f"{single}.index.json"


def has_safetensors(folder: Path) -> bool:
    """Whether the folder has safetensors, or their index."""
    return any(folder.glob("*.safetensors")) or (folder / index_of(SAFETENSORS)).is_file()


def has_pytorch(folder: Path) -> bool:
    """Whether the folder has torch's weight files, or their index."""
    return any((folder / name).is_file() for name in (PYTORCH, index_of(PYTORCH)))


def weights_of(folder: Path) -> str:
    """The name that the folder's weights have, or would have in one file."""
    if (folder / MISTRAL_PARAMS).is_file() and not (folder / "config.json").is_file():
        return MISTRAL
    return SAFETENSORS if has_safetensors(folder) or not has_pytorch(folder) else PYTORCH


def weight_format(files: Iterable[Path]) -> Literal["safetensors", "pytorch"]:
    """The format of one model's weight files."""
    return "safetensors" if all(file.suffix == ".safetensors" for file in files) else "pytorch"


def weight_index(folder: Path) -> tuple[StoredTensor, ...]:
    """All tensors of the sharded or single checkpoint in ``folder``, file by file in stored order.

    Raises :class:`CheckpointError` if a shard is missing, truncated or malformed.
    """
    tensors: list[StoredTensor] = []
    seen: set[str] = set()
    for file in _files(folder):
        for tensor in tensors_of(file):
            if tensor.name in seen:
                raise CheckpointError(f"Cannot load {folder}: two files hold the tensor {tensor.name!r}.")
            seen.add(tensor.name)
            tensors.append(tensor)
    if not tensors:
        raise CheckpointError(f"Cannot load {folder}: its weight files hold no tensors.")
    return tuple(tensors)


def tensors_of(file: Path) -> list[StoredTensor]:
    """All tensors of one file. Raises :class:`CheckpointError`."""
    if file.suffix == ".safetensors":
        return safetensors_tensors(file)
    from .pt_file import pt_tensors  # late: few models need it

    return pt_tensors(file)


def _files(folder: Path) -> list[Path]:
    """The shards in the index, or the single file without one."""
    name = weights_of(folder)
    index = folder / index_of(name)
    if not index.is_file():
        single = folder / name
        files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"Cannot load {folder}: it holds no *.safetensors file.")
        if len(files) > 1:
            raise CheckpointError(
                f"Cannot load {folder}: it holds {len(files)} *.safetensors files but no {index.name} "
                "to say which belong to the model."
            )
        return files
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"Cannot load {folder}: {index.name} has no weight_map.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"Cannot load {folder}: {index.name} names the file {name!r} outside the folder.")
        if not (folder / name).is_file():
            raise CheckpointError(f"Cannot load {folder}: {name!r} is missing, although {index.name} names it.")
    return [folder / name for name in names]
