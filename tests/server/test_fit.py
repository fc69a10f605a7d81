"""A model that is too large is named before anything is loaded, with what would fit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stentor.protocols.ipc.config import EngineConfig, WorkerConfig
from stentor.server.config.model_registry import ModelRole
from stentor.server.http.listening import StartError
from stentor.server.main import fit
from stentor.server.main.fit import check_fit
from stentor.tests.parity import tiny

LARGE = 1 << 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(autouse=True)
def _asks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_SMALL", 0)


def engine(model: Path, **fields: Any) -> EngineConfig:
    return EngineConfig(msgspec.structs.replace(WorkerConfig(str(model)), **fields))


def check(engines: dict[ModelRole, EngineConfig], host: int, gpus: Sequence[tuple[str, int]] = ()) -> str:
    """What is said; empty where all fit."""
    try:
        check_fit(engines, lambda: gpus, host)
    except StartError as refused:
        return str(refused)
    return ""


def bytes_of(model: Path) -> int:
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def test_weights_larger_than_the_machine_are_refused_with_what_would_fit(model: Path) -> None:
    said = check({"chat": engine(model)}, bytes_of(model) // 2)
    assert said.startswith(f"MODEL: the weights of {model} are 0.0 GiB, and this machine or container has 0.0 GiB.")
    assert "in 4 bits a weight" in said
    assert "`stentor env MODEL`" in said
    assert "4 bits" not in check({"chat": engine(model)}, bytes_of(model) // 20)
    assert check({"chat": engine(model)}, LARGE) == ""


def test_all_models_are_counted_and_the_one_too_many_is_named(model: Path) -> None:
    engines: dict[ModelRole, EngineConfig] = {"chat": engine(model), "embedding": engine(model)}
    said = check(engines, bytes_of(model) * 3 // 2)
    assert said.startswith("--embedding-model: ")
    assert "of which other models take" in said


def test_a_gpu_is_asked_where_one_is_used_and_several_are_named(model: Path) -> None:
    gpus = [("Some GPU", bytes_of(model) // 2)] * 4
    assert "Some GPU has 0.0 GiB" in check({"chat": engine(model)}, LARGE, gpus)
    assert "--tensor-parallel-size, 4 are here" in check({"chat": engine(model)}, LARGE, gpus)
    assert check({"chat": engine(model, tensor_parallel_size=4)}, LARGE, gpus) == ""
    assert check({"chat": engine(model, device="cpu")}, LARGE, gpus) == ""


def test_weights_that_lie_there_twice_count_once(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "consolidated.gguf").write_bytes(bytes(bytes_of(model)))
    assert check({"chat": engine(tmp_path)}, bytes_of(model) * 3 // 2) == ""


def test_what_cannot_be_judged_before_it_is_loaded_is_left_to_the_engine(model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    assert check({"chat": engine(tmp_path)}, 10) == ""
    assert check({"chat": engine(model, load_format="dummy")}, 10) == ""
    assert check({"chat": engine(model, quantization="int8")}, 10) == ""


def test_small_models_ask_no_driver(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_SMALL", LARGE)

    def ask() -> Sequence[tuple[str, int]]:
        raise AssertionError("asked")

    check_fit({"chat": engine(model)}, ask, 10)
