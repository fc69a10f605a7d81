"""torch's files: what is read of them without running anything, and what is refused."""

import contextlib
import io
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pt_file import pt_tensors
from stentor.engine.loading.weights import tensors_from
from stentor.tests.examples import examples

DTYPES = [
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def saved(what: Any, folder: Path) -> Path:
    torch.save(what, folder / "model.pt")
    return folder / "model.pt"


def read(file: Path) -> dict[str, torch.Tensor]:
    return dict(tensors_from(file))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dictionary_of_tensors_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.arange(24).to(dtype)
    stored = {
        "whole": whole,
        "tied": whole.view(4, 6),
        "turned": whole.view(4, 6).T,
        "part": whole.view(4, 6)[1:3, 2:],
        "each_other": whole.view(2, 3, 4)[:, ::2, 1:3],
        "one": whole[5],
        "none": torch.empty(0, 3, dtype=dtype),
    }
    found = read(saved(stored, tmp_path))
    assert [*found] == [*stored]
    for name, tensor in stored.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == dtype


def test_a_state_dictionary_and_parameters_are_read(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 2)
    assert torch.equal(read(saved(layer.state_dict(), tmp_path))["weight"], layer.weight)
    assert torch.equal(read(saved({"w": layer.weight}, tmp_path))["w"], layer.weight)
    ordered: OrderedDict[str, torch.Tensor] = OrderedDict(w=torch.ones(3))
    assert torch.equal(read(saved(ordered, tmp_path))["w"], torch.ones(3))


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize(
    ("what", "reported"),
    [
        ({"w": Trap()}, "it calls|it asks for"),
        ([torch.ones(1)], "it asks for|no dictionary"),
        ({"w": 1}, "no dictionary of tensors"),
        ({1: torch.ones(1)}, "no dictionary of tensors"),
        ({"w": {"deeper": torch.ones(1)}}, "no dictionary of tensors"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, "no storage of floats"),
        ({"w": torch.ones(2, 2).to_sparse()}, "it calls"),
        ({"w": torch.ones(1).expand(1 << 40)}, "larger than its storage"),
    ],
)
def test_what_is_more_than_tensors_is_refused_and_not_run(
    what: Any, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=reported):
        pt_tensors(saved(what, tmp_path))
    assert not (tmp_path / "sprung").exists()


def test_a_file_of_before_torch_1_6_says_what_to_do(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"torch before 1\.6 wrote it.*load it with transformers and write safe"):
        pt_tensors(tmp_path / "old.bin")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"\x80\x04K\x01."])
def test_what_is_no_such_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"Cannot load .*model\.pt: File is not a zip file\."):
        pt_tensors(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="No such file"):
        pt_tensors(tmp_path / "none.pt")


def rewritten(folder: Path, change: Callable[[str, bytes], bytes], compress: int = zipfile.ZIP_STORED) -> Path:
    """A file of two tensors, each of whose entries ``change`` makes anew."""
    source = saved({"w": torch.ones(3, 2), "b": torch.ones(3)}, folder)
    made = io.BytesIO()
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(made, "w", compress) as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))
    source.write_bytes(made.getvalue())
    return source


def described(code: bytes) -> Callable[[str, bytes], bytes]:
    return lambda name, data: code if name.endswith("data.pkl") else data


HUGE_SHAPE = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
HUGE_SHAPE += b"0X\x03\0\0\0cpuK\x06tQK\0(" + b"\x8a\xff" + b"\x7f" * 255 + b"q\0" + b"h\0" * 100_000 + b"t)tR."
SHARED = b"\x80\x02}(K\x01\x85q\0" + b"h\0h\0\x86q\0" * 60 + b"K\x01u."
"""A key in which sixty pairs lie in each other: hashing it would take as many steps as 2 to the power of 60."""


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (described(HUGE_SHAPE), "shape is broken"),
        (described(SHARED), "no dictionary of tensors by name"),
        (described(b"\x80\x02" + b"}" * 5_000_000), "'model/data.pkl' is too long"),
        (described(b"\x80\x02}"), "no end|exhausted"),
        (described(b"\x80\x02X\xff\xff\xff\x7fw."), "expected 2147483647 bytes"),
        (described(b"\x80\x02t."), "list index|broken"),
        (described(b"\x80\x02\x93."), "list index"),
        (described(b"\x80\x02\x81."), "asks for NEWOBJ"),
        (described(b"\xff."), "opcode"),
        (lambda name, data: data[:-4] if name.endswith("data/0") else data, "storage '0' has 20 bytes, expected 24"),
        (lambda name, data: data * 2 if name.endswith("data/1") else data, "storage '1' has 24 bytes, expected 12"),
        (lambda name, data: b"big" if name.endswith("byteorder") else data, "little-endian"),
    ],
)
def test_what_contradicts_itself_is_refused(
    change: Callable[[str, bytes], bytes], reported: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=reported) as caught:
        pt_tensors(rewritten(tmp_path, change))
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_compressed_entries_are_refused_unread(tmp_path: Path) -> None:
    bomb = rewritten(tmp_path, described(bytes(1 << 24)), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match=r"compressed or encrypted|too long"):
        pt_tensors(bomb)
    with pytest.raises(CheckpointError, match="compressed or encrypted"):
        pt_tensors(rewritten(tmp_path, lambda name, data: data, zipfile.ZIP_DEFLATED))


def test_a_list_of_entries_that_says_it_is_endless_is_not_read(tmp_path: Path) -> None:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 1 << 30, 0, 0)
    with (tmp_path / "long.bin").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(end)
    with pytest.raises(CheckpointError, match="its list of entries is too long"):
        pt_tensors(tmp_path / "long.bin")


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = saved({"w": torch.ones(300)}, tmp_path).read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(0, len(whole), 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="Cannot load"):
            pt_tensors(cut)


def test_an_entry_that_lies_elsewhere_than_said_is_refused(tmp_path: Path) -> None:
    whole = bytearray(saved({"w": torch.ones(3)}, tmp_path).read_bytes())
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        start = archive.getinfo("model/data/0").header_offset
    whole[start : start + 4] = b"none"
    (tmp_path / "model.pt").write_bytes(whole)
    with pytest.raises(CheckpointError, match="'model/data/0' goes beyond its end"):
        pt_tensors(tmp_path / "model.pt")


@settings(max_examples=examples(50, 750), deadline=None)
@given(place=st.integers(0, 4000), byte=st.integers(0, 255))
def test_broken_descriptions_are_refused_or_do_no_harm(
    place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def broken(name: str, data: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return data
        changed = bytearray(data)
        changed[place % len(data)] = byte
        return bytes(changed)

    source = rewritten(tmp_path_factory.mktemp("pt"), broken)
    with contextlib.suppress(CheckpointError):
        assert all(tensor.numel() <= 6 for _, tensor in tensors_from(source))


@settings(max_examples=examples(50, 750), deadline=None)
@given(place=st.integers(0, 1 << 16), byte=st.integers(0, 255))
def test_broken_archives_are_refused_or_do_no_harm(
    place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = saved({"w": torch.ones(3, 2), "b": torch.ones(3)}, tmp_path_factory.mktemp("pt"))
    data = bytearray(source.read_bytes())
    data[place % len(data)] = byte
    source.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        assert all(tensor.numel() <= 6 for _, tensor in tensors_from(source))
