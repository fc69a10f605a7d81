"""A GGUF file of a full-size model with random weights, written a tensor at a time.

Codes of quantised blocks are random bits; scales are such that a product has the size of its input, so that no value
grows out of range. The vocabulary is that of another file, padded to the model's size.
"""

import math
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .random_models import RandomModel, Tensor, architecture, metadata, tensors
from .weights import Form, Progress, WeightsError

_Bytes = npt.NDArray[np.uint8]


class _Blocks(NamedTuple):
    """Blocks of 32 weights: halves of a scale, and of a min where there is one, then codes."""

    block_bytes: int
    deviation: float
    """Of the codes as numbers, were their scale 1."""
    centre: float | None
    """The code in the middle, where blocks have a min, which then takes it out."""


_BLOCKS: Final[Mapping[Form, _Blocks]] = {
    "q4_0": _Blocks(18, 16 / math.sqrt(12), None),
    "q4_1": _Blocks(20, 16 / math.sqrt(12), 7.5),
    "q8_0": _Blocks(34, 256 / math.sqrt(12), None),
}
_WIDTH: Final = 32


class RandomWeights:
    """The forms of ``model`` below ``shelf``; ``vocabulary`` is the ``.gguf`` file whose tokenizer it gets."""

    def __init__(self, name: str, model: RandomModel, vocabulary: Path, shelf: Path) -> None:
        self._name = name
        self._model = model
        self._vocabulary = vocabulary
        self._shelf = shelf / f"random-{name}"

    def form(self, form: Form, progress: Progress = lambda what: None) -> Path:
        """Where ``form`` lies; it is made first where it must be. Raises :class:`WeightsError`."""
        if form not in _BLOCKS:
            raise WeightsError(f"random weights are made as {', '.join(_BLOCKS)}, not as {form}")
        target = self._shelf / f"{self._name}-{form}.gguf"
        if target.exists():
            return target
        progress(f"writing {target.name}")
        self._shelf.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".partial-{target.name}")
        write_random_gguf(self._model, form, self._vocabulary, partial)
        partial.rename(target)
        return target

    def remove(self) -> None:
        """Deletes all forms."""
        shutil.rmtree(self._shelf, ignore_errors=True)


def write_random_gguf(model: RandomModel, form: Form, vocabulary: Path, target: Path) -> None:
    """Writes ``target``; the same bits whenever it is written again."""
    import gguf  # late: a development dependency

    config = model.config()
    stored = list(tensors(config))
    writer = gguf.GGUFWriter(target, architecture(config))
    writer.add_name(f"{model.about}, random weights")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form.upper()}"])
    for name, value in metadata(config, stored).items():
        key = f"{architecture(config)}.{name}"
        match value:
            case float():
                writer.add_float32(key, value)
            case int():
                writer.add_uint32(key, value)
            case _:
                writer.add_array(key, value)
    _add_vocabulary(writer, vocabulary, config.vocab_size, model.tokens)
    kind, plain = gguf.GGMLQuantizationType[form.upper()], gguf.GGMLQuantizationType.F32
    blocks = _BLOCKS[form]
    for name, shape, quantized in stored:
        if quantized:
            bytes_shape = (*shape[:-1], shape[-1] // _WIDTH * blocks.block_bytes)
            writer.add_tensor_info(name, bytes_shape, np.dtype(np.uint8), math.prod(bytes_shape), kind)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape), plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in stored:
        rng = np.random.default_rng(zlib.crc32(f"{model.about} {tensor.name}".encode()))
        writer.write_tensor_data(_random_blocks(tensor, blocks, rng) if tensor.quantized else plain_values(tensor, rng))
    writer.close()


def _add_vocabulary(writer: Any, source: Path, size: int, special: Mapping[int, str]) -> None:
    """All that ``source`` says of its tokenizer; behind its own tokens the ``special`` ones, and others of no use."""
    import gguf

    for field in gguf.GGUFReader(source).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        contents, kind = field.contents(), field.types[0]
        if field.name.endswith((".tokens", ".token_type")):
            if (count := len(contents)) > size:
                raise WeightsError(f"{source} has {count} tokens, expected at most {size}")
            more = range(count, size)
            if field.name.endswith(".tokens"):
                contents += [special.get(n, f"<unused{n}>") for n in more]
            else:
                contents += [int(gguf.TokenType.CONTROL if n in special else gguf.TokenType.NORMAL) for n in more]
        writer.add_key_value(field.name, contents, kind, field.types[-1] if len(field.types) > 1 else None)


def _random_blocks(tensor: Tensor, of: _Blocks, rng: np.random.Generator) -> _Bytes:
    """uint8 [values / 32, bytes of a block]"""
    count = math.prod(tensor.shape) // _WIDTH
    made = np.frombuffer(rng.bytes(count * of.block_bytes), np.uint8).copy().reshape(count, of.block_bytes)
    scales = rng.uniform(0.5, 1.5, count).astype(np.float32) / (of.deviation * math.sqrt(tensor.shape[-1]))
    made[:, :2] = _halves(scales)
    if of.centre is not None:
        made[:, 2:4] = _halves(-of.centre * scales)
    return made


def _halves(values: npt.NDArray[np.float32]) -> _Bytes:
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def plain_values(tensor: Tensor, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Ones in norms, zeros in biases, else numbers with which a product keeps the size of its input."""
    if len(tensor.shape) == 1:
        return np.full(tensor.shape, float(tensor.name.endswith("weight")), np.float32)
    return rng.standard_normal(tensor.shape, np.float32) / np.float32(math.sqrt(math.prod(tensor.shape[1:])))
