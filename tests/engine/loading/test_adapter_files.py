"""No name of an adapter leads out of the folder of adapters, and nothing but two plain files is read."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.adapter_config import parse_adapter_config
from stentor.engine.loading.adapter_files import (
    AdapterFiles,
    AdapterMissing,
    adapter_identity,
    open_adapter,
    path_below,
)
from stentor.engine.loading.errors import CheckpointError

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


def write(folder: Path, header: bytes = b"{}") -> None:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def test_an_adapter_is_found_below_its_folder_by_name_and_by_path(tmp_path: Path) -> None:
    write(tmp_path / "root" / "team" / "one")
    root = str(tmp_path / "root")
    assert path_below(root, f"{root}/team/one") == "team/one"
    with open_adapter(root, "team/one") as files:
        assert isinstance(files, AdapterFiles)
        assert files.read_config().rank == 4
        assert files.tensors() == []
    assert adapter_identity(root, "team/one") == adapter_identity("", f"{root}/team/one")


def test_a_file_is_found_by_its_name_below_the_folder_and_nowhere_else(tmp_path: Path, monkeypatch: Any) -> None:
    root = tmp_path / "root"
    (root / "team").mkdir(parents=True)
    (tmp_path / "out.gguf").write_bytes(b"GGUF")
    for name in ("one.gguf", "team/two.gguf"):
        (root / name).write_bytes(b"GGUF")
        assert adapter_identity(str(root), name) == adapter_identity("", str(root / name))
    (root / "linked.gguf").symlink_to(tmp_path / "out.gguf")
    (root / "folder.gguf").mkdir()
    for name in ("../out.gguf", "linked.gguf", "folder.gguf", "team/../../out.gguf", str(tmp_path / "out.gguf")):
        with pytest.raises(CheckpointError):
            adapter_identity(str(root), name)
    with pytest.raises(AdapterMissing):
        adapter_identity(str(root), "none.gguf")
    monkeypatch.chdir(root)
    assert adapter_identity("", "one.gguf")


@pytest.mark.parametrize("path", ["../out", "/etc", "a/../../out", "", ".", "a\0b"])
def test_a_path_that_leads_out_is_refused(path: str, tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "root" / "a").mkdir(parents=True)
    with pytest.raises(CheckpointError):
        adapter_identity(str(tmp_path / "root"), path)


def test_links_are_followed_where_the_operator_names_them_and_never_below_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "out")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "out")
    (root / "files").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (root / "files" / name).symlink_to(tmp_path / "out" / name)
    for name in ("linked", "files"):
        assert adapter_identity("", str(root / name))
        with pytest.raises(CheckpointError):
            adapter_identity(str(root), name)


def test_a_pipe_is_no_adapter_and_nobody_waits_for_it(tmp_path: Path) -> None:
    write(tmp_path / "one")
    os.remove(tmp_path / "one" / "adapter_model.safetensors")
    os.mkfifo(tmp_path / "one" / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="no regular file"):
        adapter_identity("", str(tmp_path / "one"))


def test_what_is_not_there_is_told_apart_from_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(AdapterMissing, match="No adapter found"):
        adapter_identity(str(tmp_path), "nobody")
    write(tmp_path / "broken", b"[1]")
    with open_adapter(str(tmp_path), "broken") as files:
        assert isinstance(files, AdapterFiles)
        with pytest.raises(CheckpointError, match="malformed"):
            files.tensors()


def test_files_that_were_replaced_have_another_identity(tmp_path: Path) -> None:
    write(tmp_path / "one")
    before = adapter_identity("", str(tmp_path / "one"))
    (tmp_path / "one" / "adapter_config.json").write_text("{}")
    assert adapter_identity("", str(tmp_path / "one")) != before


def test_no_descriptor_is_left_by_a_thousand_looks(tmp_path: Path) -> None:
    write(tmp_path / "one")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1000):
        name = "one" if number % 2 else "nobody"
        try:
            adapter_identity(str(tmp_path), name)
        except AdapterMissing:
            assert name == "nobody"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("text", [b"", b"[]", b'{"peft_type": "LORA"}', b"[" * 100_000])
def test_a_configuration_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError, match="adapter_config"):
        parse_adapter_config(text)
