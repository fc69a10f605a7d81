"""``data:`` URLs, files and decoded sizes, each alone."""

import base64
import os
import socket
import stat
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.media.decoding.decoded import DecodedLimits, check_image, check_video
from stentor.server.media.fetching.local_urls import decode_data_url, read_file_url
from stentor.server.media.refusal import Refusal

# ---- data


@given(st.binary(max_size=300))
def test_data_comes_back_from_both_encodings(data: bytes) -> None:
    assert decode_data_url("data:image/png;base64," + base64.b64encode(data).decode(), 300) == (data, "image/png")
    assert decode_data_url("data:," + quote_from_bytes(data), 300) == (data, "text/plain")
    assert decode_data_url("DATA:Text/HTML;charset=utf-8," + quote_from_bytes(data), 300)[1] == "text/html"


@given(st.binary(min_size=1, max_size=300))
def test_data_is_refused_one_byte_before_it_fits(data: bytes) -> None:
    for url in ("data:;base64," + base64.b64encode(data).decode(), "data:," + quote_from_bytes(data)):
        assert decode_data_url(url, len(data))[0] == data
        with pytest.raises(Refusal, match="larger than"):
            decode_data_url(url, len(data) - 1)


def test_long_data_is_in_base64_and_decoded_as_a_whole() -> None:
    data = bytes(range(256)) * 8192 + b"xx"
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    assert decode_data_url(url, len(data)) == (data, "image/png")
    broken = url[:100] + "!" + url[101:], url[:-400] + "=" + url[-399:], url + "AAAA", url[:-1]
    for text in broken:
        with pytest.raises(Refusal, match="not base64"):
            decode_data_url(text, len(data) + 9)
    with pytest.raises(Refusal, match="must be in base64"):
        decode_data_url("data:," + "a" * (300 << 10), 1 << 20)


def test_frames_instead_of_a_video_are_refused_as_what_they_are() -> None:
    with pytest.raises(Refusal, match="frames of a video as `video/jpeg` are not read"):
        decode_data_url("data:video/jpeg;base64,AAAA,AAAA", 99)


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:image/png",
        "data:image/png;base64",
        "data:image,x",
        "data:/png,x",
        "data: image/png,x",
        "data:image/png;base64,AAA",
        "data:image/png;base64,AA==AA==",
        "data:image/png;base64,AA\n==",
        "data:image/png;base64, AAAA",
        "data:image/png;base64,-_-_",
        "data:image/png;base64,AAA=A",
        "data:image/png;base64,é",
        "data:,%",
        "data:,%zz",
        "data:,%٣٣",
        "data:,a b",
        "data:,é",
        "data:,a\n",
        "data:" + ";a=b" * 1000 + ",x",
        "data:" + "a" * 200 + "/b,x",
        "dat\u0430:,x",
    ],
    ids=ascii,
)
def test_data_that_is_not_as_the_standard_writes_it_is_refused(url: str) -> None:
    with pytest.raises(Refusal):
        decode_data_url(url, 1000)


# ---- files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a é.wav").write_bytes(b"sound")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder-link").symlink_to(tmp_path)
    (folder / "within").symlink_to(folder / "deep" / "a é.wav")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    return folder


def test_a_file_below_the_root_is_read_through_links_that_stay_there(root: Path) -> None:
    for name in ("deep/a é.wav", "within", "deep/../deep/a é.wav"):
        data, kind = read_file_url(f"file://{quote(str(root / name))}", root, 5)
        assert (data, kind) == (b"sound", "audio/x-wav")
    assert read_file_url(f"file://localhost{quote(str(root))}/within", root, 5)[0] == b"sound"
    with pytest.raises(Refusal, match="larger than"):
        read_file_url(f"file://{root}/within", root, 4)


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "deep/../../secret",
        "../media-too/secret",
        "link",
        "folder-link/secret",
        "loop",
        "pipe",
        "deep",
        "",
        "missing",
        "link/more",
        "within?x",
        "within#x",
        "within%00",
        "within%",
        "%ff",
        "/dev/zero",
        "x" * 5000,
    ],
)
def test_a_path_outside_the_root_is_not_read(root: Path, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_file_url(f"file://{root}/{name}", root, 100)
    assert str(root) not in str(caught.value)


def test_devices_and_sockets_are_not_opened_even_below_the_root(tmp_path: Path) -> None:
    for url in ("file:///dev/zero", "file:///dev/null", "file:///proc/self/environ", "file:///proc/self/mem"):
        root = Path("/dev") if url.startswith("file:///dev") else tmp_path
        with pytest.raises(Refusal):
            read_file_url(url, root, 100)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
        with pytest.raises(Refusal):
            read_file_url(f"file://{tmp_path}/socket", tmp_path, 100)


def test_a_link_put_there_after_the_check_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = root / "deep"
    opened = os.open

    def swap_then_open(path: str, flags: int, *args: int) -> int:
        if str(path).endswith(".wav"):
            swapped.rename(root / "gone")
            swapped.symlink_to(root.parent / "media-too")
            (root.parent / "media-too" / "a é.wav").write_bytes(b"secret")
        return opened(path, flags, *args)

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(Refusal, match="no file below"):
        read_file_url(f"file://{quote(str(root / 'deep' / 'a é.wav'))}", root, 100)


# ---- decoded


LIMITS = DecodedLimits(pixels=100, edge=60, audio_seconds=10, video_seconds=5, frames=3)


def test_what_is_within_its_limits_may_be_decoded() -> None:
    check_image(10, 10, LIMITS)
    check_image(1, 60, LIMITS)
    check_video(10, 5, 5, 3, LIMITS)


@pytest.mark.parametrize(
    ("width", "height", "frames"),
    [(101, 1, 1), (2**40, 2**40, 1), (0, 5, 1), (-1, -1, 1), (61, 1, 1), (1, 1, 4), (1, 1, 0)],
)
def test_an_image_beyond_them_may_not(width: int, height: int, frames: int) -> None:
    if frames == 1:
        with pytest.raises(Refusal):
            check_image(width, height, LIMITS)
    with pytest.raises(Refusal):
        check_video(width, height, 1, frames, LIMITS)


@pytest.mark.parametrize("seconds", [10.01, float("inf"), float("nan"), -1])
def test_a_length_beyond_them_may_not(seconds: float) -> None:
    with pytest.raises(Refusal):
        check_video(1, 1, seconds, 1, LIMITS)
