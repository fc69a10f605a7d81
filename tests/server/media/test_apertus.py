"""Pictures and sounds as Apertus 1.5 is given them."""

import json
from typing import Any, Final

import numpy as np
import pytest
import transformers as untyped_transformers
from PIL import Image
from safetensors.numpy import load
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.refusal import Refusal

transformers: Any = untyped_transformers
_NAMES: Final = {
    **{"image_token": "<|image|>", "audio_token": "<|audio|>", "boi_token": "<|b|>", "eoi_token": "<|e|>"},
    **{"image_wrapper_token": "<|w|>", "eol_token": "<|l|>", "boa_token": "<|s|>", "eoa_token": "<|t|>"},
}
_PEAK: Final = 10 ** (-3 / 20)


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> ModelProcessor:
    folder = tmp_path_factory.mktemp("apertus")
    backend = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    backend.add_special_tokens([AddedToken(each, special=True) for each in _NAMES.values()])
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=_NAMES).save_pretrained(folder)
    sounds = transformers.WavTokenizerFeatureExtractor(normalize_audio=True)
    images = {"image_processor_type": "Apertus1p5ImageProcessor", "size": {"min_pixels": 1024, "max_pixels": 4096}}
    told = {"processor_class": "Apertus1p5Processor", "image_processor": images, "feature_extractor": sounds.to_dict()}
    (folder / "processor_config.json").write_text(json.dumps(told))
    (folder / "config.json").write_text(json.dumps({"model_type": "apertus1p5"}))
    return ModelProcessor(folder)


def _noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("size", "rows", "columns"), [((64, 48), 3, 4), ((20, 9), 2, 3), ((300, 100), 2, 6)])
def test_a_picture_has_a_token_for_each_square_and_one_behind_each_row_but_the_last(
    processor: ModelProcessor, size: tuple[int, int], rows: int, columns: int
) -> None:
    seen = processor.image(_noise(*size), {}, alone=True)
    lines = "<|l|>".join(["<|image|>" * columns] * rows)
    assert seen.replacement == f"<|b|>{rows}*{columns}<|w|>{lines}<|e|>"
    found = load(seen.payload)
    assert found["image_sizes"].tolist() == [[rows * 16, columns * 16]]
    fitted = _noise(*size).resize((columns * 16, rows * 16), Image.Resampling.BICUBIC)
    expected = np.asarray(fitted, np.float32).transpose(2, 0, 1) / 127.5 - 1
    assert found["pixel_values"][0] == pytest.approx(expected, abs=1e-5)


def test_a_request_may_ask_for_fewer_pixels(processor: ModelProcessor) -> None:
    seen = processor.image(_noise(64, 48), {"max_pixels": 1024}, alone=True)
    assert seen.replacement.startswith("<|b|>1*2<|w|>")
    with pytest.raises(Refusal, match="no patch_size"):
        processor.image(_noise(64, 48), {"patch_size": 8}, alone=True)


def test_a_sound_is_brought_to_the_rate_and_the_peak_of_the_model(processor: ModelProcessor) -> None:
    heard = processor.audio(0.2 * np.sin(np.arange(16_160) / 6))
    found = load(heard.payload)
    assert heard.replacement == f"<|s|>{'<|audio|>' * -(-24_240 // 600)}<|t|>"
    assert found["input_values"].shape == (1, 1, 24_240)
    assert found["padding_mask"].tolist() == [[1] * 24_240]
    assert np.abs(found["input_values"]).max() == pytest.approx(_PEAK, abs=1e-4)
