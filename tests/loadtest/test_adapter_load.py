"""Adapters beside none: what is made up, and the whole benchmark over a tiny model."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from stentor.loadtest.adapter_load import AdapterLoad, BesideLoads, shapes_of, show, write_adapter
from stentor.loadtest.bench import main
from stentor.loadtest.record import Spread
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.loadtest.made_up import CONFIG, made_up


def test_what_is_made_up_is_an_adapter_of_every_projection_that_a_worker_takes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    made_up(folder)
    shapes = shapes_of(folder, "dummy")
    assert len(shapes) == 7 * CONFIG["num_hidden_layers"]
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    assert shapes["model.layers.1.mlp.down_proj"] == (inner, hidden)
    assert shapes["model.layers.0.self_attn.k_proj"] == (hidden, hidden // 2)
    nbytes = write_adapter(tmp_path / "7", shapes, 4, 0)
    assert nbytes == 2 * 4 * sum(sum(each) for each in shapes.values())
    served = LocalEngine(model_config(folder, load_format="dummy", enable_lora=True, max_lora_rank=4))
    assert served.adapters is not None
    served.adapters.load(AdapterRef(1, "7", "7", str(tmp_path)))
    (loaded,) = served.adapters.take(None)
    assert not loaded.error


def test_the_ratio_the_gaps_and_the_memory_are_told() -> None:
    spread = Spread(p50=3.0, p99=9.0, max=41.5, count=50)
    loads = BesideLoads(50, spread, Spread(count=7), spread, 100 << 20, 101 << 20)
    fields: dict[str, Any] = {"streams": 32, "adapters": 16, "rank": 8, "adapter_bytes": 5 << 20, "started_at": ""}
    record = AdapterLoad(model="m", base=[100.0, 90.0], adapted=[80.0, 81.0], ratio=0.85, beside_loads=loads, **fields)
    console = Console(file=io.StringIO(), record=True, width=160)
    show(console, record)
    text = console.export_text()
    assert "0.85 of the model's, the median of 2 rounds" in text
    assert "41.5" in text
    assert "100 MiB before and 101 behind" in text


@pytest.mark.proof
def test_all_is_measured_over_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "record.json"
    made = made_up(tmp_path)
    sizes = ["--streams", "4", "--adapters", "2", "--rank", "4", "--rounds", "1", "--loads", "3", "--seconds", "1"]
    asked = ["adapters", *made[:4], *sizes, "--save", str(saved), "--", *made[4:]]
    assert main(asked) == 0, capsys.readouterr()
    record = msgspec.json.decode(saved.read_bytes(), type=AdapterLoad)
    assert len(record.base) == len(record.adapted) == 1
    assert record.beside_loads is not None
    assert record.beside_loads.load.count == 3
    assert record.beside_loads.beside.count > 0
