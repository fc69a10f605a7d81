"""Videos and sounds through the process that makes a model's inputs of them."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import transformers as untyped_transformers
from prometheus_client import CollectorRegistry
from safetensors.numpy import load

from stentor.engine.model_config.towers.media_spec import Modality
from stentor.protocols.common.errors import BadRequest
from stentor.server.config.limits import ProcessorLimits
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.metrics import MediaMetrics
from stentor.server.media.processed_cache import ProcessedMedia
from stentor.server.media.processor import MediaProcessor, Wanted
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.media.videos import video
from stentor.tests.support.vision_models import qwen3_vl
from stentor.tests.support.whole_audio import encode_whole

transformers = untyped_transformers


def made_of(folder: Path, modality: Modality, *files: bytes) -> list[ProcessedMedia | BadRequest]:
    async def make() -> list[ProcessedMedia | BadRequest]:
        processor = MediaProcessor(folder, ProcessorLimits(), MediaMetrics(CollectorRegistry(), "m"), DecodedLimits())
        found: list[ProcessedMedia | BadRequest] = []
        try:
            for data in files:
                try:
                    found.append(await processor.process(Wanted(modality, data, "here"), ""))
                except BadRequest as error:
                    found.append(error)
            assert len(processor.pids) == 1
        finally:
            processor.close()
        return found

    return asyncio.run(make())


def test_a_video_becomes_frames_with_their_times(tmp_path: Path) -> None:
    qwen3_vl(tmp_path)
    seen, again, broken = made_of(tmp_path, "video", video(6, (64, 32)), video(6, (64, 32), form="matroska"), b"none")
    assert isinstance(seen, ProcessedMedia)
    assert isinstance(again, ProcessedMedia)
    assert seen.written == "<|video_pad|>"
    assert seen.grid is not None
    assert seen.grid[0] == 3, "six frames of three seconds, two at a time"
    assert seen.replacement.count("seconds>") == 3
    assert load(bytes(seen.payload)).keys() == {"pixel_values_videos", "video_grid_thw"}
    assert again.grid == seen.grid
    assert isinstance(broken, BadRequest)
    assert broken.message.startswith("`here`: this is no video that can be read")


@pytest.fixture
def hears(tmp_path: Path) -> Path:
    """What a Qwen2-Audio brings besides its weights."""
    from stentor.tests.support.vision_models import _tokenizer

    names = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    _tokenizer(names, bos=False).save(str(tmp_path / "tokenizer.json"))
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=4).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_audio", "audio_token_index": 256}))
    for name, fields in (
        ("processor_config.json", {"processor_class": "Qwen2AudioProcessor"}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        (tmp_path / name).write_text(json.dumps(fields))
    return tmp_path


def test_a_sound_becomes_what_transformers_makes_of_it(hears: Path) -> None:
    pcm = tone(2)
    heard, broken = made_of(hears, "audio", encode_whole(pcm, "wav", 16_000), b"none")
    assert isinstance(heard, ProcessedMedia)
    processor = transformers.AutoProcessor.from_pretrained(str(hears))
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    own = processor(text="<|AUDIO|>", audio=[samples], sampling_rate=16_000, return_tensors="np")
    found = load(bytes(heard.payload))
    assert found.keys() == {"input_features", "feature_attention_mask"}
    for name, values in found.items():
        assert values == pytest.approx(own[name], abs=1e-4), "by numpy, and here by torch"
    assert heard.replacement == "<|AUDIO|>" * own["input_ids"].shape[1]
    assert isinstance(broken, BadRequest)
    assert broken.param == "here"
