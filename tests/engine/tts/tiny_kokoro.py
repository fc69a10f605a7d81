"""Kokoro's folders with a graph that is made up: its samples are the phonemes' numbers times the mean of the style, as
often as the speed says.

The graph is written as ONNX's protocol buffers define it: fields are (number, value), numbers as varints.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

FLOAT, INT64 = 1, 7
Field = tuple[int, "int | str | bytes | list[Field]"]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: Field) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
            continue
        data = message(*value) if isinstance(value, list) else value.encode() if isinstance(value, str) else value
        out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def node(operation: str, inputs: list[str], output: str, *attributes: Field) -> Field:
    return 1, [*((1, name) for name in inputs), (2, output), (4, operation), *attributes]


def integer(name: str, value: int) -> Field:
    return 5, [(1, name), (3, value), (20, 2)]


def value_info(field: int, name: str, kind: int, *dims: int | str) -> Field:
    shape: list[Field] = [(1, [(1, dim) if isinstance(dim, int) else (2, dim)]) for dim in dims]
    return field, [(1, name), (2, [(1, [(1, kind), (2, shape)])])]


def graph(ids: str = "input_ids", speed: int = FLOAT) -> bytes:
    nodes = [
        node("Cast", [ids], "numbers", integer("to", FLOAT)),
        node("Reshape", ["numbers", "flat"], "row"),
        node("Cast", ["speed"], "pace", integer("to", FLOAT)),
        node("Div", ["eight", "pace"], "quotient"),
        node("Cast", ["quotient"], "times", integer("to", INT64)),
        node("Tile", ["row", "times"], "tiled"),
        node("ReduceMean", ["style"], "loudness", integer("keepdims", 0)),
        node("Mul", ["tiled", "loudness"], "waveform"),
    ]
    constants: list[Field] = [
        (5, [(1, 1), (2, INT64), (8, "flat"), (9, struct.pack("<q", -1))]),
        (5, [(1, 1), (2, FLOAT), (8, "eight"), (9, struct.pack("<f", 8.0))]),
    ]
    inputs = [
        value_info(11, ids, INT64, 1, "length"),
        value_info(11, "style", FLOAT, 1, 256),
        value_info(11, "speed", speed, 1),
    ]
    content = [*nodes, (2, "tiny"), *constants, *inputs, value_info(12, "waveform", FLOAT, "samples")]
    return message((1, 8), (7, content), (8, [(1, ""), (2, 17)]))


def styles(seed: int) -> Any:
    """Of one voice: the mean is about a thousandth, another one for each number of phonemes."""
    noise = np.random.default_rng(seed).random((510, 1, 256), np.float32)
    return (0.002 * noise * (1 + np.arange(510, dtype=np.float32)[:, None, None] / 510)).astype(np.float32)


VOICES = {"af_heart": styles(1), "bm_george": styles(2), "af_alloy": styles(3), "jf_alpha": styles(4)}


def write_onnx_community(folder: Path) -> Path:
    (folder / "config.json").write_text('{"model_type": "style_text_to_speech_2"}')
    (folder / "onnx").mkdir()
    (folder / "voices").mkdir()
    for name in ("model.onnx", "model_q8f16.onnx"):
        (folder / "onnx" / name).write_bytes(graph())
    for name, values in VOICES.items():
        (folder / "voices" / f"{name}.bin").write_bytes(values.tobytes())
    return folder


def write_kokoro_onnx(folder: Path) -> Path:
    (folder / "kokoro-v1.0.onnx").write_bytes(graph("tokens"))
    with (folder / "voices-v1.0.bin").open("wb") as file:
        np.savez(file, **VOICES)
    return folder
