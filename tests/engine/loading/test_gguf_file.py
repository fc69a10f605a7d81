"""The header reader: sound files, and files that are anything but."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.file import GGUFFile
from stentor.engine.loading.gguf.types import GGMLType
from stentor.tests.engine.loading.tiny_gguf import header, key, tensor, text
from stentor.tests.examples import examples

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def padded(head: bytes, data: bytes = b"", alignment: int = 32) -> bytes:
    return head + bytes(-len(head) % alignment) + data


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


SCALARS = [
    key("u8", U8, b"\xff"),
    key("i8", I8, b"\xff"),
    key("u16", U16, b"\xff\xff"),
    key("i16", I16, b"\xff\xff"),
    key("u32", U32, struct.pack("<I", 1 << 31)),
    key("i32", I32, struct.pack("<i", -5)),
    key("f32", F32, struct.pack("<f", 0.5)),
    key("bool", BOOL, b"\x01"),
    key("string", STRING, text("grüße")),
    key("u64", U64, struct.pack("<Q", 1 << 63)),
    key("i64", I64, struct.pack("<q", -(1 << 62))),
    key("f64", F64, struct.pack("<d", 0.1)),
    key("texts", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("") + text("ß")),
    key("numbers", ARRAY, struct.pack("<IQ3i", I32, 3, -1, 0, 7)),
    key("flags", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\x00\x01"),
    key("none", ARRAY, struct.pack("<IQ", F32, 0)),
]

SOUND = padded(
    header(SCALARS, [tensor("a.weight", (3, 2)), tensor("b.weight", (32,), 8, 32)]),
    bytes(24) + bytes(8) + bytes(34),
)


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value_is_read(version: int, tmp_path: Path) -> None:
    content = SOUND[:4] + struct.pack("<I", version) + SOUND[8:]
    with GGUFFile(write(tmp_path, content)) as gguf:
        assert gguf.version == version
        assert dict(gguf.metadata) == {
            "u8": 255,
            "i8": -1,
            "u16": 65535,
            "i16": -1,
            "u32": 1 << 31,
            "i32": -5,
            "f32": 0.5,
            "bool": True,
            "string": "grüße",
            "u64": 1 << 63,
            "i64": -(1 << 62),
            "f64": 0.1,
            "texts": ["a", "", "ß"],
            "numbers": [-1, 0, 7],
            "flags": [False, True],
            "none": [],
        }
        assert gguf.metadata["bool"] is True
        start = len(content) - 66
        first, second = gguf.tensors.values()
        assert (first.name, first.shape, first.type, first.offset, first.nbytes) == (
            "a.weight",
            (3, 2),
            GGMLType.F32,
            start,
            24,
        )
        assert (second.type, second.offset, second.nbytes) == (GGMLType.Q8_0, start + 32, 34)
        assert "a.weight" in gguf.tensors
        assert "texts" in gguf.metadata
        assert "text" not in gguf.metadata


def test_the_file_may_set_the_alignment(tmp_path: Path) -> None:
    head = header(
        [key("general.alignment", U32, struct.pack("<I", 256))], [tensor("a", (1,)), tensor("b", (1,), 0, 256)]
    )
    with GGUFFile(write(tmp_path, padded(head, bytes(260), 256))) as gguf:
        assert [t.offset for t in gguf.tensors.values()] == [256, 512]


BROKEN = {
    "empty": (b"", "is empty"),
    "short": (b"GGU", "4 bytes are expected"),
    "other": (b"PK\x03\x04" + bytes(60), "does not begin with the GGUF magic"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
    "version_1": (header([], [], version=1), "GGUF version is 1, and only 2 and 3"),
    "version_9": (header([], [], version=9), "GGUF version is 9"),
    "many_tensors": (header([], [], count=1 << 62), "claims 4611686018427387904 tensors"),
    "many_keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "claims 1099511627776 metadata keys"),
    "long_key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50) + bytes(64), "a metadata key is"),
    "long_string": (header([key("k", STRING, struct.pack("<Q", 1 << 50))], []), "bytes are expected at byte"),
    "long_array": (header([key("k", ARRAY, struct.pack("<IQ", U64, 1 << 61))], []), "bytes are expected at byte"),
    "long_texts": (header([key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 61))], []), "more than the file can hold"),
    "cut_texts": (
        header([key("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("abcdefgh") + b"\x01")], []),
        "is cut short",
    ),
    "odd_texts": (header([key("k", ARRAY, struct.pack("<IQQ", STRING, 1, (1 << 64) - 1))], []), "is cut short"),
    "nested": (header([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))], []), "unsupported value type 9"),
    "unknown_value": (header([key("k", 13, bytes(8))], []), "unknown value type 13"),
    "not_utf8": (header([key("k", STRING, text(b"\xff\xfe"))], []), "k is not valid UTF-8"),
    "twice": (header([key("k", U8, b"\x00")] * 2, []), "'k' stands in it twice"),
    "tensor_twice": (padded(header([], [tensor("a", (1,))] * 2), bytes(8)), "'a' stands in it twice"),
    "dimensions": (header([], [tensor("a", (1,) * 5)]), "has 5 dimensions"),
    "no_dimensions": (header([], [tensor("a", ()) + bytes(16)]), "has 0 dimensions"),
    "zero": (padded(header([], [tensor("a", (4, 0))]), bytes(64)), "'a' is empty"),
    "overflow": (padded(header([], [tensor("a", ((1 << 63) - 1,) * 4)]), bytes(64)), "the file is cut short"),
    "unknown_type": (padded(header([], [tensor("a", (32,), 99)]), bytes(64)), "unknown type 99"),
    "half_block": (padded(header([], [tensor("a", (33,), 8)]), bytes(64)), "not whole Q8_0 blocks of 32"),
    "unaligned": (padded(header([], [tensor("a", (1,), 0, 4)]), bytes(64)), "not aligned to 32"),
    "cut_data": (padded(header([], [tensor("a", (8,))]), bytes(31)), "is cut short, fetch it again"),
    "overlapping": (
        padded(header([], [tensor("a", (9,)), tensor("b", (1,), 0, 32)]), bytes(64)),
        "the tensors 'a' and 'b' overlap",
    ),
    "alignment": (header([key("general.alignment", U32, struct.pack("<I", 48))], []), "expected a power of two"),
    "alignment_0": (header([key("general.alignment", U32, bytes(4))], []), "expected a power of two"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_ends_in_one_line_that_says_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, message = BROKEN[case]
    with pytest.raises(CheckpointError) as caught:
        GGUFFile(write(tmp_path, content))
    assert message in str(caught.value)
    assert "model.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_not_utf8_is_found_when_its_array_is_decoded(tmp_path: Path) -> None:
    content = header([key("k", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xff"))], [])
    with GGUFFile(write(tmp_path, content)) as gguf, pytest.raises(CheckpointError, match="not valid UTF-8"):
        gguf.metadata["k"]


def test_a_missing_file_and_a_folder_end_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="Cannot open"):
            GGUFFile(path)


def walk(path: Path) -> None:
    """Reads everything there is to read; passes if nothing but a CheckpointError comes of it."""
    try:
        with GGUFFile(path) as gguf:
            for name in gguf.metadata:
                gguf.metadata[name]
            size = path.stat().st_size
            assert all(t.offset > 0 and t.offset + t.nbytes <= size for t in gguf.tensors.values())
    except CheckpointError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message


def test_a_file_cut_at_any_byte_is_refused_or_sound(tmp_path: Path) -> None:
    for length in range(len(SOUND)):
        with pytest.raises(CheckpointError):
            GGUFFile(write(tmp_path, SOUND[:length]))
    walk(write(tmp_path, SOUND))


@settings(max_examples=examples(75, 1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.integers(0, len(SOUND) * 8 - 1), min_size=1, max_size=6))
def test_flipped_bits_never_do_more_than_refuse_the_file(flips: list[int], tmp_path: Path) -> None:
    content = bytearray(SOUND)
    for bit in flips:
        content[bit // 8] ^= 1 << bit % 8
    walk(write(tmp_path, bytes(content)))


@settings(max_examples=examples(50, 750), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(SOUND)), junk=st.binary(max_size=40))
def test_junk_in_the_middle_never_does_more_than_refuse_the_file(start: int, junk: bytes, tmp_path: Path) -> None:
    walk(write(tmp_path, SOUND[:start] + junk + SOUND[start + len(junk) :]))
