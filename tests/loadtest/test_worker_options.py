import argparse
from pathlib import Path

import msgspec
import pytest

from stentor.loadtest.worker_options import add_worker_options, describe, size, worker_config
from stentor.protocols.ipc.config import WorkerConfig
from stentor.server.options.option import OPTIONS


def _parse(*arguments: str, without: tuple[str, ...] = ()) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_worker_options(parser, without=without)
    return parser.parse_args(arguments)


def test_options_reach_the_worker_and_the_rest_keeps_its_default(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    model = str(tmp_path / "model.gguf")
    given = ["--dtype", "float32", "--threads", "3", "--kv-cache-memory", "2MiB", "--batch-invariant"]
    config = worker_config(_parse("--model", model, *given), max_num_seqs=9)
    expected = {"dtype": "float32", "threads": 3, "kv_cache_memory": 2 << 20, "batch_invariant": True}
    assert config == msgspec.structs.replace(WorkerConfig(model), **expected, max_num_seqs=9)
    assert describe(config) == {"model": "model.gguf", "max_num_seqs": 9, **expected}
    assert worker_config(_parse("--model", model)) == WorkerConfig(model)


def test_options_are_spelt_as_those_of_the_server() -> None:
    served = {option.name for option in OPTIONS if option.path.startswith("engine.worker.")}
    given = {name.replace("_", "-") for name in vars(_parse())} - {"model"}
    assert given <= served


def test_an_option_that_a_benchmark_settles_itself_is_not_taken() -> None:
    with pytest.raises(SystemExit):
        _parse("--device", "cpu", without=("device",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("17", 17), ("17B", 17), ("2K", 2048), ("2KiB", 2048), ("3 MB", 3 << 20), ("1g", 1 << 30), ("1T", 1 << 40)],
)
def test_sizes_are_powers_of_1024(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1.5G", "-1", "1X", "GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 4GiB"):
        size(text)
