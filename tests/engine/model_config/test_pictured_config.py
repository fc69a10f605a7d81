"""Descriptions of models that write about a picture, as their published files have them."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.registry import read_config
from stentor.engine.model_config.seq2seq.text import TextToTextConfig

TROCR: dict[str, Any] = {
    "architectures": ["VisionEncoderDecoderModel"],
    "model_type": "vision-encoder-decoder",
    "encoder": {"model_type": "vit", "hidden_size": 768, "image_size": 384, "patch_size": 16},
    "decoder": {
        **{"model_type": "trocr", "d_model": 1024, "decoder_layers": 12, "decoder_start_token_id": 2},
        **{"cross_attention_hidden_size": 768, "eos_token_id": 2, "vocab_size": 50265},
    },
}
DONUT: dict[str, Any] = {
    **TROCR,
    "decoder_start_token_id": 57_579,
    "encoder": {
        **{"model_type": "donut-swin", "image_size": [1280, 960], "patch_size": 4, "embed_dim": 128},
        "depths": [2, 2, 14, 2],
    },
    "decoder": {
        **{"model_type": "mbart", "d_model": 1024, "decoder_layers": 4, "max_position_embeddings": 768},
        **{"vocab_size": 57_580, "scale_embedding": True},
    },
}
FLORENCE: dict[str, Any] = {
    "architectures": ["Florence2ForConditionalGeneration"],
    "model_type": "florence2",
    "vision_config": {"model_type": "florence_vision", "projection_dim": 768},
    "text_config": {"model_type": "bart", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6},
}

PARSE: dict[str, Any] = {
    "architectures": ["NemotronParseForConditionalGeneration"],
    "model_type": "nemotron_parse",
    "image_size": [2048, 1664],
    "encoder": {
        "args": {
            **{"model": "vit_huge_patch16_224", "register_multiple": 8, "cpe_max_size": 2048},
            "cls_token_per_teacher": True,
            "teachers": [{"name": name} for name in ("clip", "siglip", "dino_v2")]
            + [{"name": "sam", "use_summary": False}],
        },
        "patch_size": 16,
    },
    "decoder": {"model_type": "mbart", "d_model": 1024, "decoder_layers": 10, "vocab_size": 52352},
    "decoder_start_token_id": 2,
    "max_sequence_length": 9000,
}

BLIP: dict[str, Any] = {
    "architectures": ["BlipForConditionalGeneration"],
    "model_type": "blip",
    "text_config": {"model_type": "blip_text_model", "encoder_hidden_size": 1024},
    "vision_config": {"model_type": "blip_vision_model", "hidden_size": 1024, "num_hidden_layers": 24},
}


PIX2STRUCT: dict[str, Any] = {
    "architectures": ["Pix2StructForConditionalGeneration"],
    "model_type": "pix2struct",
    "text_config": {"model_type": "pix2struct_text_model", "eos_token_id": 1, "decoder_start_token_id": 0},
    "vision_config": {"model_type": "pix2struct_vision_model", "seq_len": 4096},
}


def read(config: dict[str, Any], generation: dict[str, Any] | None = None) -> TextToTextConfig:
    found = read_config(config, generation or {})
    assert isinstance(found, TextToTextConfig)
    return found


def test_the_states_of_a_picture_and_the_first_tokens_are_those_of_published_models() -> None:
    trocr, donut = read(TROCR), read(DONUT, {"forced_bos_token_id": None, "eos_token_id": 2, "bad_words_ids": [[3]]})
    florence = read(FLORENCE, {"decoder_start_token_id": 2, "forced_bos_token_id": 0})
    assert [each.source_positions for each in (trocr, donut, florence)] == [577, 1200, 1024]
    assert [each.decoder_start for each in (trocr, donut, florence)] == [(2,), (57_579,), (2, 0)]
    assert [each.longest_text for each in (trocr, donut, florence)] == [0, 0, 1024 - 577]
    assert [each.max_position for each in (trocr, donut, florence)] == [512, 768, 1024]
    assert donut.never == (3,)
    crossing = trocr.decoder.layers[0].cross
    assert crossing is not None
    assert (crossing.encoded, trocr.pictures and trocr.pictures.projected) == (768, False)
    assert trocr.within(100).source_positions == 577


def test_nemotron_parse_makes_a_state_of_four_patches_of_a_row() -> None:
    found = read(PARSE)
    assert found.pictures is not None
    assert found.source_positions == 128 * 26 + 1
    assert found.pictures.described["summary_idxs"] == [0, 1, 2]
    assert [found.pictures.described[f"num_{each}"] for each in ("cls_tokens", "registers")] == [4, 4]
    assert (found.max_position, found.bounded, found.head) == (9000, False, "lm_head")
    assert found.decoder_input.positions == found.decoder_input.sinusoids == ""
    assert read({**PARSE, "tie_word_embeddings": True}).head == ""
    assert read({**PARSE, "image_size": [2048, 1648]}).source_positions == 128 * 25 + 1


def test_captions_end_with_the_separator_and_have_keys_of_the_pictures_size() -> None:
    found = read(BLIP, {"eos_token_id": 2, "bad_words_ids": [[7]]})
    assert (found.decoder_start, found.eos_token_ids, found.never) == ((30_522,), (102,), (7,))
    assert (found.source_positions, found.max_position) == (24 * 24 + 1, 512)
    crossing = found.decoder.layers[0].cross
    assert crossing is not None
    assert crossing.encoded == 1024
    assert found.decoder.norm_eps == 1e-12


def test_pix2struct_takes_pictures_of_any_shape_with_a_patch_less_than_positions() -> None:
    found = read(PIX2STRUCT)
    assert (found.decoder_start, found.eos_token_ids, found.head, found.bounded) == ((0,), (1,), "lm_head", False)
    assert found.pictures is not None
    shapes = ((3, 16, 16 * 4095), (3, 16 * 63, 16 * 65), (3, 16 * 64, 16 * 64), (3, 16 * 4096, 16), (1, 16, 16))
    assert [found.pictures.states_of(*each) for each in shapes] == [4095, 4095, 0, 0, 0]


def test_an_encoder_takes_pictures_of_its_size_or_up_to_it_if_it_has_windows() -> None:
    fixed, free = read(TROCR).pictures, read(DONUT).pictures
    assert fixed is not None
    assert free is not None
    assert [fixed.states_of(*each) for each in ((3, 384, 384), (3, 384, 383), (1, 384, 384))] == [577, 0, 0]
    shapes = ((3, 1280, 960), (3, 640, 970), (3, 1281, 961), (3, 0, 5))
    assert [free.states_of(*each) for each in shapes] == [1200, 20 * 31, 0, 0]


def without(config: dict[str, Any], part: str, **changes: Any) -> dict[str, Any]:
    return {**config, part: {**config[part], **changes}}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**TROCR, "encoder": None}, "encoder is missing"),
        (without(TROCR, "encoder", model_type="clip"), "the model type of its encoder is 'clip', expected one of vit"),
        (without(TROCR, "decoder", model_type="xlnet"), "model_type is 'xlnet'"),
        (without(TROCR, "decoder", cross_attention_hidden_size=5), "expected the encoder's size, 768"),
        (without(TROCR, "encoder", image_size=8), "a picture has 0 states"),
        (without(TROCR, "encoder", image_size=[9, -3]), "image_size is"),
        (without(DONUT, "encoder", depths=[1] * 60), "stages"),
        (without(FLORENCE, "vision_config", model_type="davit"), "in transformers' form"),
        (without(FLORENCE, "vision_config", patch_stride=[4, 2]), "expected a number of each for each stage"),
        (without(FLORENCE, "text_config", max_position_embeddings=577), "expected some for texts"),
        (without(PARSE, "encoder", args={"model": "vit_giant"}), "encoder.args.model is 'vit_giant'"),
        (without(PARSE, "encoder", args={}), "0 summaries of 1"),
        (without(BLIP, "text_config", encoder_hidden_size=768), "encoder_hidden_size is 768, expected"),
        ({**BLIP, "vision_config": None}, "vision_config is missing"),
        (without(PIX2STRUCT, "text_config", num_heads=11), "num_heads is 11 of d_kv 64, expected 768 dimensions"),
        (without(PIX2STRUCT, "vision_config", hidden_size=64), "hidden_size of vision_config is 64, expected"),
        (without(PIX2STRUCT, "vision_config", patch_embed_hidden_size=770), "expected the values of a square"),
    ],
)
def test_fields_that_contradict_or_are_not_known_are_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(config)
