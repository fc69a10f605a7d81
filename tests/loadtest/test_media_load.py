"""What pictures do to streams: how gaps are counted, and the whole benchmark over a tiny vision model."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stentor.loadtest.bench import main
from stentor.loadtest.hostile_files import IMAGES, VIDEOS
from stentor.loadtest.media_load import MediaLoad, gaps, picture
from stentor.loadtest.seeing_model import write_seeing_model
from stentor.loadtest.tool import ToolError
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.e2e.made_up import EXACT
from stentor.tests.support.vision_models import qwen3_vl


def test_gaps_are_those_that_end_in_a_time_and_tokens_of_one_read_count_once() -> None:
    streams = [[0.0, 1.0, 1.5, 1.5, 3.5], [2.0, 2.25]]
    all_of_them, some = gaps(streams, 0.0, 10.0), gaps(streams, 1.2, 3.0)
    assert (all_of_them.count, all_of_them.p50, all_of_them.max) == (4, 750.0, 2000.0)
    assert (some.count, some.p50, some.max) == (2, 375.0, 500.0)
    with pytest.raises(ToolError, match=r"no stream had tokens within 1\.0 s"):
        gaps(streams, 7.0, 8.0)


def test_pictures_differ_and_are_the_same_each_time() -> None:
    assert picture(1, 64) == picture(1, 64) != picture(2, 64)


def test_the_made_up_model_has_a_vocabulary_of_its_own_size_and_a_processor(tmp_path: Path) -> None:
    write_seeing_model(tmp_path)
    config: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.name_of(config["image_token_id"]) == "<image>"
    from PIL import Image

    inputs = ModelProcessor(tmp_path).image(Image.new("RGB", (640, 480)), {"detail": "low"}, alone=True)
    assert inputs.replacement.count("<image>") == 64


@pytest.mark.proof
def test_all_is_measured_over_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    qwen3_vl(folder)
    files = len(IMAGES) + len(VIDEOS)
    assert files >= 60
    saved = tmp_path / "record.json"
    sizes = ["--streams", "2", "--pictures", "3", "--seconds", "1", "--rounds", "2"]
    options = ["--model", str(folder), *sizes, "--save", str(saved), "--", *EXACT]
    assert main(["media", *options, "--kv-cache-memory", "64MiB"]) == 0, capsys.readouterr()
    record = msgspec.json.decode(saved.read_bytes(), type=MediaLoad)
    assert record.streams is not None
    assert record.streams.alone.count > 10
    assert record.streams.beside.count > 0
    assert record.cached is not None
    assert 0 < record.cached.picture < record.cached.first
    assert record.hostile is not None
    assert (record.hostile.refused, record.hostile.files) == (files, files)
    assert record.hostile.bytes_after < record.hostile.bytes_before + (64 << 20)
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 pictures, of which 3 were answered" in printed
    assert f"{files} of {files} files refused" in printed
