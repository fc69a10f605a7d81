"""Which keys are good, and what becomes of them when their files change."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.common.files import FileRefused
from stentor.server.common.keys import ANYONE, Caller, KeyDigest, Keyring, read_key_file
from stentor.tests.server.middleware.keyrings import keyring

Headers = list[tuple[bytes, bytes]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "keys", "first")


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def bearer(key: str) -> Headers:
    return [(b"authorization", b"Bearer " + key.encode())]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer good")],
        [(b"authorization", b"bearer   good ")],
        [(b"x-api-key", b"good")],
        [(b"x-api-key", b" good ")],
        [(b"authorization", b"Basic Zm9vOmJhcg=="), (b"x-api-key", b"good")],
        [(b"authorization", b"Bearer unused"), (b"x-api-key", b"good")],
    ],
)
def test_a_key_is_taken_from_either_header(headers: Headers) -> None:
    assert keyring("good").caller(headers) == Caller()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"good")],
        [(b"authorization", b"Basic good")],
        [(b"authorization", b"Bearer goo")],
        [(b"authorization", b"Bearer good x")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"Bearer good")],
        [(b"x-api-key", b"good"), (b"x-api-key", b"good")],
        [(b"authorization", b"Bearer good"), (b"authorization", b"Bearer good")],
        [(b"api-key", b"good")],
    ],
)
def test_what_is_not_exactly_a_key_is_nobody_s(headers: Headers) -> None:
    assert keyring("good").caller(headers) is None


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True), st.text())
def test_a_key_is_good_exactly_if_it_is_one_of_them(keys: list[str], tried: str) -> None:
    stripped = [key.strip() for key in keys]
    ring = Keyring([KeyDigest(key.encode()) for key in stripped])
    good = tried.encode().strip() in [key.encode() for key in stripped]
    assert (ring.caller([(b"x-api-key", tried.encode())]) is not None) == good


def test_keys_alone_close_the_server_and_admin_keys_do_not() -> None:
    assert not keyring().required
    assert keyring("one").required
    assert not keyring(admin=("one",)).required
    assert keyring(admin=("one",)).has_admin
    assert not keyring("one").has_admin


def test_an_admin_key_is_good_for_everything_and_an_api_key_is_no_admin() -> None:
    ring = keyring("user", admin=("root",))
    user, root = ring.caller(bearer("user")), ring.caller(bearer("root"))
    assert user is not None
    assert root is not None
    assert (user.admin, root.admin) == (False, True)


def test_one_key_cannot_be_both() -> None:
    with pytest.raises(FileRefused, match="both an API key and an admin key"):
        keyring("same", admin=("same",))


# ---- salts


def test_of_several_keys_each_has_a_salt_of_its_own_that_does_not_tell_it() -> None:
    ring = keyring("one", "two", admin=("three",))
    callers = [ring.caller(bearer(key)) for key in ("one", "two", "three")]
    salts = [caller.salt for caller in callers if caller is not None]
    assert len(set(salts)) == 3
    assert all(len(salt) == 32 for salt in salts)
    other = keyring("one", "two", admin=("three",)).caller(bearer("one"))
    assert other is not None
    assert other.salt not in salts, "a secret of this run is in it"


def test_one_key_or_none_needs_no_salt() -> None:
    assert keyring("one", "one").caller(bearer("one")) == ANYONE
    assert ANYONE.cache_salt(None) == ""
    assert ANYONE.cache_salt("mine") == "mine"


@given(st.text(), st.text())
def test_salts_that_requests_name_never_cross_from_one_key_to_another(mine: str, theirs: str) -> None:
    one, two = Caller(salt="0" * 32), Caller(salt="1" * 32)
    assert one.cache_salt(mine) != two.cache_salt(theirs)
    assert (one.cache_salt(mine) == one.cache_salt(theirs)) == (mine == theirs)


# ---- files


def test_a_file_has_one_key_a_line_and_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", "\ufeff# of the team\none\n\n two # three \r\n")
    assert read_key_file(path) == (KeyDigest(b"one"), KeyDigest(b"two # three"))


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"\xff\xfe"])
def test_a_file_that_is_no_good_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(FileRefused, match=f"^{path}: "):
        Keyring(api_file=path)
    with pytest.raises(FileRefused, match=r"nowhere: cannot be read: No such file"):
        Keyring(admin_file=tmp_path / "nowhere")


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_a_file_that_everyone_can_read_is_warned_of(
    file: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    Keyring(api_file=file)
    assert (f"{file}: everyone on this machine can read" in caplog.text) == warned
    assert "first" not in caplog.text


@pytest.mark.anyio
async def test_a_file_that_changed_is_taken_with_its_flags(file: Path) -> None:
    ring = Keyring([KeyDigest(b"flag")], api_file=file)
    write(file, "second\nthird")
    assert await ring.reload() == "3 API keys, 0 admin keys"
    assert ring.caller(bearer("first")) is None
    for key in ("flag", "second", "third"):
        assert ring.caller(bearer(key)) is not None


@pytest.mark.anyio
@pytest.mark.parametrize("content", ["", "# all gone", "root"])
async def test_a_file_that_broke_changes_nothing(file: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ring = Keyring(admin=[KeyDigest(b"root")], api_file=file)
    write(file, content)
    with pytest.raises(FileRefused):
        await ring.reload()
    assert ring.caller(bearer("first")) is not None
    assert ring.required


def test_nothing_shows_a_key_or_its_digest() -> None:
    digest = KeyDigest(b"hunter2")
    assert repr(digest) == str(digest) == "KeyDigest(***)"
    assert digest == KeyDigest(b"hunter2")
    assert digest != KeyDigest(b"hunter3")
    assert not [name for name in dir(digest) if not name.startswith("_") and name not in ("matches", "salt")]
