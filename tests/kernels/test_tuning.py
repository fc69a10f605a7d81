import json
from pathlib import Path

import pytest

from stentor.kernels.tuning import Config, load_table, overridden, pick, table_path

DEFAULT = Config.of(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=3)


def test_a_launch_without_a_table_takes_its_default() -> None:
    assert pick("operation of no table", "d64", DEFAULT) is DEFAULT


def test_an_override_holds_for_its_operation_and_block_alone() -> None:
    other = Config.of(BLOCK_M=16, BLOCK_N=16)
    with overridden("one", other):
        assert pick("one", "d64", DEFAULT) is other
        assert pick("two", "d64", DEFAULT) is DEFAULT
    assert pick("one", "d64", DEFAULT) is DEFAULT


def test_an_override_does_not_decide_how_an_operation_rounds() -> None:
    exact = Config.of(BLOCK_M=64, BLOCK_N=32, fuse_multiply_add=False)
    with overridden("one", Config.of(BLOCK_M=16, BLOCK_N=16)):
        assert pick("one", "d64", exact) == Config.of(BLOCK_M=16, BLOCK_N=16, fuse_multiply_add=False)


def test_an_entry_replaces_sizes_and_options_and_must_name_the_same_sizes() -> None:
    tuned = DEFAULT.replaced({"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2})
    assert tuned == Config.of(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2)
    assert DEFAULT.replaced(DEFAULT.to_json()) == DEFAULT
    with pytest.raises(ValueError, match="BLOCK_M"):
        DEFAULT.replaced({"BLOCK_M": 128})


def test_the_tuned_table_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = table_path("some-gpu")
    path.parent.mkdir(parents=True)
    table = {"paged_decode": {"d64": {"BLOCK_M": 16, "num_warps": 2}}}
    path.write_text(json.dumps(table))
    assert load_table("some-gpu") == table
    assert load_table("another-gpu") == {}


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}', '{"a": {"b": 1}}', '{"a": {"b": {"c": -1}}}'])
def test_a_broken_table_is_passed_over_with_a_warning(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = table_path("some-gpu")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert load_table("some-gpu") == {}
    assert "is passed over" in caplog.text
