"""Pictures over HTTP beside llama.cpp: the random pair of files, what is asked, and what is told."""

import base64
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from rich.console import Console

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import tower_weights
from stentor.engine.model_config.towers.vision_spec import VisionSpec
from stentor.engine.models.towers.payload import Payload
from stentor.engine.models.towers.vision_tower import VisionTower
from stentor.loadtest.bench import main
from stentor.loadtest.peers.figures import Column
from stentor.loadtest.peers.random_mmproj import write_random_mmproj
from stentor.loadtest.peers.random_weights import write_random_gguf
from stentor.loadtest.peers.seeing_child import answer
from stentor.loadtest.peers.seeing_library import Library
from stentor.loadtest.series import CONFIGS
from stentor.loadtest.vision_serving import FOLDER, TEXT, VisionServing, png, request, shapes_of, show
from stentor.server.media.processors.mmproj import given_files
from stentor.tests.loadtest.peers.vocabulary import write_gguf_vocabulary
from stentor.tests.support.vision_models import FAMILIES

transformers: Any = untyped_transformers

SMALL = {
    **{"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 40},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
}
VISION = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
SPECIAL = {29: "<image>", 30: "<fake_token_around_image>", 31: "<global-img>"}


def config() -> dict[str, Any]:
    published: dict[str, Any] = json.loads((CONFIGS / FOLDER / "config.json").read_text())
    vision = {**published["vision_config"], **VISION, "image_size": 32, "patch_size": 8}
    return {**published, "scale_factor": 2, "text_config": {"hidden_size": 64}, "vision_config": vision}


def test_the_random_files_are_a_pair_whose_numbers_stay_in_range(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    model = TEXT._replace(fewer=SMALL, tokens=SPECIAL)
    write_random_gguf(model, "q8_0", write_gguf_vocabulary(tmp_path / "vocabulary" / "v.gguf"), text)
    write_random_mmproj(config(), 64, tmp_path / "mmproj.gguf")
    checkpoint = open_checkpoint(text)
    assert checkpoint.tower is not None
    assert isinstance(checkpoint.tower.projector, VisionSpec)
    given = given_files(checkpoint)
    assert given is not None
    assert given.files["preprocessor_config.json"]["size"] == {"longest_edge": 64}
    assert given.tokens["<image>"] == 29
    context = LayerContext(torch.device("cpu"), torch.float32, False, quantized=checkpoint.tower.quantized)
    tower = VisionTower(checkpoint.tower.projector, context)
    tower.load(tower_weights(checkpoint, tower.weights.raw))
    found = tower.encode(Payload("image", {"pixel_values": torch.randn(1, 2, 3, 32, 32)})).embeddings
    assert found.shape == (8, 64)
    assert 0.1 < float(found.std()) < 10


def test_a_request_holds_another_picture_each_time_and_says_one_word() -> None:
    body = request(png(1), 7, 3)
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    drawn = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert drawn.size == (512, 512)
    assert body["logit_bias"] == {"7": 100}
    assert body["stream"]
    assert png(1) == png(1) != png(2)


def test_medians_of_each_side_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    one, several = shapes_of(4)
    rounds = [{"ttft_s": number, "prompt_tokens": 330.0} for number in (1.0, 5.0, 2.0)]
    fields: dict[str, Any] = {"bits": "q8_0", "version": "", "weights": "w", "weight_bytes": 1}
    columns = [
        Column(name=name, peer=name, command=f"{name} --mmproj", rounds={one: rounds, several: [rate]}, **fields)
        for name, rate in (("stentor", {"pictures_per_s": 0.5}), ("llama.cpp", {"pictures_per_s": 0.25}))
    ]
    record = VisionServing(
        model="m",
        columns=columns,
        skipped={},
        at_once=4,
        output_tokens=8,
        started_at="2026-11-26T00:00:00Z",
    )
    assert show(Console(), record) == 0
    told = capsys.readouterr().out
    assert "4 pictures at once: pictures/s" in told
    assert "llama.cpp --mmproj" in told
    assert " 330 " in told
    assert " 2.00 " in told


def test_transformers_answers_several_pictures_as_one_batch(tmp_path: Path) -> None:
    model = FAMILIES["idefics3"](tmp_path)
    images = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    template = (tmp_path / "chat_template.jinja").read_text()
    processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=template)
    shown = [base64.b64encode(png(seed, 32)).decode() for seed in (1, 2)]
    found = answer(model, processor, shown, "what?", 3)
    assert found["tokens"] == 3
    assert 0 < found["ttft"] < found["seconds"]
    assert found["prompt_tokens"] > 9, "four of the whole picture, and what stands around"


def test_the_command_that_a_record_keeps_names_no_place_of_this_machine() -> None:
    command = Library(Path("weights")).command
    assert "python -P -m stentor.loadtest.peers.seeing_child weights --threads " in command
    assert not any(Path(part).is_absolute() for part in shlex.split(command))


def test_a_side_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vision-serving", "--only", "vllm"]) == 2
    assert "no side is called 'vllm'; expected stentor, llama.cpp" in capsys.readouterr().err
