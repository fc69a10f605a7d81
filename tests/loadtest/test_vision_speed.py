"""Pictures a second beside transformers: both sides of one small tower."""

import json
from pathlib import Path

import msgspec
import pytest

from stentor.loadtest.bench import main
from stentor.loadtest.vision_speed import VisionSpeed

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG = {
    "model_type": "idefics3",
    "scale_factor": 2,
    "text_config": {"model_type": "llama", **SIZES},
    "vision_config": {**SIZES, "image_size": 32, "patch_size": 8},
}


def test_both_sides_see_the_same_pictures_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    saved = tmp_path / "record.json"
    options = ["--rounds", "2", "--pictures", "3", "--threads", "1", "--save", str(saved)]
    assert main(["vision", str(tmp_path), *options]) == 0
    record = msgspec.json.decode(saved.read_bytes(), type=VisionSpeed)
    assert [(each.side, each.dtype) for each in record.timed] == [
        ("stentor", "float32"),
        ("transformers", "float32"),
        ("stentor", "bfloat16"),
        ("transformers", "bfloat16"),
    ]
    assert (record.patches, record.pictures) == (16, 3)
    assert all(each.pictures_per_second > 0 for each in record.timed)
    assert record.timed[0].difference < 1e-5
    assert record.timed[1].difference == 0
    assert record.timed[2].difference < 2 * record.timed[3].difference  # both round to bfloat16
    assert "pictures/s" in capsys.readouterr().out


def test_a_model_without_a_native_tower_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "text_config": {"hidden_size": 8}}))
    assert main(["vision", str(tmp_path)]) == 2
    assert "the tower of llama is not native" in capsys.readouterr().err
