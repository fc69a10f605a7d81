import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pt_file import read_pt
from stentor.tests.examples import examples


def saved(what: Any, folder: Path) -> Path:
    torch.save(what, folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_dictionary_of_tensors_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(5, 3).to(dtype)
    stored = {
        **layer.state_dict(),
        "turned": torch.arange(6, dtype=dtype).view(2, 3).T,
        "none": torch.empty(0, dtype=dtype),
        "ids": torch.arange(3),
        "shown": torch.tensor([True, False]),
    }
    read = dict(read_pt(saved(stored, tmp_path)))
    assert read.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(read[name], tensor)


def test_a_state_dictionary_and_parameters_are_read(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 2)
    assert torch.equal(dict(read_pt(saved(layer.state_dict(), tmp_path)))["weight"], layer.weight)
    assert torch.equal(dict(read_pt(saved({"w": layer.weight}, tmp_path)))["w"], layer.weight)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize(
    ("what", "reported"),
    [
        ({"w": Trap()}, "it calls|it asks for"),
        ([torch.ones(1)], "it asks for|no dictionary"),
        ({"w": 1}, "no dictionary of tensors"),
        ({"w": torch.ones(2, dtype=torch.int32)}, "no storage of floats"),
    ],
)
def test_what_is_more_than_tensors_is_refused_and_not_run(
    what: Any, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=reported):
        read_pt(saved(what, tmp_path))
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"not a zip")
    with pytest.raises(CheckpointError, match="Cannot read"):
        read_pt(tmp_path / "model.pt")


@settings(max_examples=examples(50, 750), deadline=None)
@given(place=st.integers(0, 4000), byte=st.integers(0, 255))
def test_broken_descriptions_are_refused_or_do_no_harm(
    place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pt")
    source = saved({"w": torch.ones(3, 2), "b": torch.ones(3)}, folder)
    broken = io.BytesIO()
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(broken, "w") as after:
        for name in before.namelist():
            data = bytearray(before.read(name))
            if name.endswith("data.pkl"):
                data[place % len(data)] = byte
            after.writestr(name, bytes(data))
    source.write_bytes(broken.getvalue())
    with contextlib.suppress(CheckpointError):
        assert all(tensor.numel() <= 6 for _, tensor in read_pt(source))
