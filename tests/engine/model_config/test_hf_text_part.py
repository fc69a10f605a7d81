"""The text part of models that see images too: what their config.json says of it, and its tensors' names."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers
from msgspec.structs import replace
from safetensors.torch import save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.text_names import is_of_tower, text_name
from stentor.engine.model_config.hf.text_part import MEDIA_FAMILIES
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec, dense_mlp
from stentor.engine.model_config.towers.media_spec import MediaSpec, media_spec
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.tests.parity import tiny

transformers: Any = untyped_transformers

GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}


def test_a_published_gemma3_leaves_most_to_its_class() -> None:
    found = model_spec_from_hf(GEMMA_3_4B)
    mixer = found.layers[5].attention
    assert (found.vocab_size, found.hidden_size, len(found.layers), found.max_position) == (262208, 2560, 34, 131072)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.window) == (8, 4, 256, 0)
    assert (mixer.rope and mixer.rope.factor, found.layers[0].attention.window) == (8.0, 1024)
    assert (found.eos_token_ids, found.tie_embeddings, found.text_part) == ((1, 106), True, True)


TEXTS: dict[str, str] = {
    **{family.text: name for name, family in MEDIA_FAMILIES.items()},
    **dict.fromkeys(("gemma", "gemma2", "granite", "llama", "phi3", "qwen3_moe"), "LlavaForConditionalGeneration"),
}
"""A multimodal model, by the model type of its text."""
UNREADABLE = {
    *("deepseek_v2", "deepseek_ocr2_text", "glm4v_text", "glm4v_moe_text", "hunyuan_vl_text", "qwen3_omni_moe_text"),
    *("cohere_compass_text", "qwen4_exp_text", "unlimited_ocr_text"),
}
"""Whose class's defaults describe no model that could run."""
WRITTEN_OUT = {"kimi_linear", "mimo_v2", "mistral_large3", "nemotron_h"}
"""Whose published files omit nothing."""
CODE_ALONE = {
    *("bailing_moe_v3_vl_text", "isaac_text", "keye_text", "mimo_v2", "minicpmv_text", "mistral_large3", "mistral_own"),
    *("chatglm_4v_text", "deepseek_v41", "molmo", "openpangu_vl_text", "step3_text", "step5"),
}
"""For which transformers has no class."""


def text_alone(spec: ModelSpec) -> ModelSpec:
    """Without what the whole model says of it."""
    return replace(spec, bos_token_id=None, eos_token_ids=(), tie_embeddings=False)


@pytest.mark.parametrize("kind", sorted(TEXTS.keys() - UNREADABLE - WRITTEN_OUT - CODE_ALONE))
def test_fields_that_a_text_part_omits_are_those_of_its_class(kind: str) -> None:
    whole = {"architectures": [TEXTS[kind]], "model_type": MEDIA_FAMILIES[TEXTS[kind]].model_type}
    made = transformers.CONFIG_MAPPING[kind]().to_dict()
    omits = model_spec_from_hf({**whole, "text_config": {"model_type": kind}})
    says = model_spec_from_hf({**whole, "text_config": made})
    assert text_alone(omits) == text_alone(says)


@pytest.mark.proof(each="kind")
@pytest.mark.parametrize("kind", sorted(TEXTS.keys() - UNREADABLE - WRITTEN_OUT - CODE_ALONE))
def test_a_field_that_a_text_part_leaves_out_has_the_default_of_its_class(kind: str) -> None:
    whole = {"architectures": [TEXTS[kind]], "model_type": (family := MEDIA_FAMILIES[TEXTS[kind]]).model_type}
    described = transformers.CONFIG_MAPPING
    made = described[kind]().to_dict()
    for field in made.keys() - {"model_type", "transformers_version", "tie_word_embeddings"}:
        less = {each: value for each, value in made.items() if each != field}
        if family.model_type in described:
            told = described[family.model_type](text_config=less).to_dict()["text_config"]
        else:
            told = described[kind](**{each: value for each, value in less.items() if each != "model_type"}).to_dict()
        omits, says = (model_spec_from_hf({**whole, "text_config": text}) for text in (less, told))
        assert text_alone(omits) == text_alone(says), field


@pytest.mark.parametrize(
    ("whole", "kind"),
    [
        ({"architectures": ["KeyeForConditionalGeneration"]}, "qwen3"),
        ({"architectures": ["MiniCPMV"], "version": 2.6}, "qwen2"),
        ({"architectures": ["MiniCPMV"], "version": 4.0}, "llama"),
        ({"architectures": ["MiniCPMO"], "version": "4.5"}, "qwen3"),
    ],
)
def test_fields_that_a_model_with_code_of_its_own_omits_are_those_of_its_decoder(
    whole: dict[str, Any], kind: str
) -> None:
    rope = {"type": "default", "mrope_section": [16, 24, 24]} if "version" not in whole else None
    whole = {**whole, "hidden_size": 4096, "rope_scaling": rope}
    made = {**transformers.CONFIG_MAPPING[kind]().to_dict(), **whole}
    assert text_alone(model_spec_from_hf(whole)) == text_alone(model_spec_from_hf(made))


@pytest.mark.parametrize("name", [f"{each}ForConditionalGeneration" for each in ("GlmAsr", "OmniASR", "Voxtral")])
def test_fields_that_a_text_part_omits_are_those_of_the_whole_model_s_class(name: str) -> None:
    kind = MEDIA_FAMILIES[name].model_type
    whole = {"architectures": [name], "model_type": kind, "text_config": {"model_type": "llama"}}
    made = transformers.CONFIG_MAPPING[kind].from_dict(whole).to_dict()
    assert text_alone(model_spec_from_hf(whole)) == text_alone(model_spec_from_hf({**made, "architectures": [name]}))


def test_a_text_part_without_key_value_heads_has_as_many_as_it_has_heads() -> None:
    text = {"model_type": "granite", "num_attention_heads": 16}
    found = model_spec_from_hf({"architectures": ["LlavaNextForConditionalGeneration"], "text_config": text})
    assert found.layers[0].attention.kv_heads == 16


@pytest.mark.parametrize(
    ("text", "window", "softcap"),
    [
        ({"model_type": "gemma", "hidden_size": 2048}, 0, 0.0),
        ({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "sliding_window": 4096}, 4096, 50.0),
    ],
)
def test_a_published_paligemma_leaves_most_to_its_class(text: dict[str, Any], window: int, softcap: float) -> None:
    text = {**text, "vocab_size": 257_216, "use_bidirectional_attention": True}
    found = model_spec_from_hf({"model_type": "paligemma", "image_token_index": 257_152, "text_config": text})
    mixer = found.layers[0].attention
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.window, mixer.softcap) == (8, 1, 256, window, softcap)
    assert (found.max_position, found.tie_embeddings) == (8192, True)
    assert (found.whole_prompts, mixer.whole_spans) == (True, True)


def test_a_mistral3_is_read_as_its_text_part_says_it_is() -> None:
    table = {**tiny.SHAPE, "model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": 0.1}}
    found = model_spec_from_hf({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": table})
    assert found.layers[0].attention.temperature_beta == 0.1
    table = {**tiny.SHAPE, "model_type": "mistral", "sliding_window": None, "max_position_embeddings": 131072}
    found = model_spec_from_hf({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": table})
    assert found.layers[0].attention.window == 0, "null is no window, and not the class's"
    with pytest.raises(
        ConfigError, match=r"text_config.model_type is 't5', which is not native here, expected such as 'mistral'"
    ):
        model_spec_from_hf({"model_type": "mistral3", "text_config": {**table, "model_type": "t5"}})
    with pytest.raises(ConfigError, match="text_config is missing"):
        model_spec_from_hf({"model_type": "mistral3"})


def test_tensors_are_known_below_either_prefix_and_others_are_not() -> None:
    for prefix in ("language_model.model.", "model.language_model."):
        assert text_name(f"{prefix}layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert text_name("language_model.model.blocks.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert text_name("language_model.lm_head.weight") == text_name("lm_head.weight") == "lm_head.weight"
    for other in (
        "vision_tower.ln_pre.weight",
        "model.vision_tower.ln_pre.weight",
        "multi_modal_projector.norm.weight",
    ):
        assert text_name(other) is None


def test_only_tensors_of_the_text_are_counted_and_read(tmp_path: Path) -> None:
    model = tiny.make("mistral3-seeing", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    read = {name: tensor.nbytes for name, tensor in iterate_weights(checkpoint, torch.float32)}
    assert read.keys() == checkpoint.decoder.shapes().keys()
    assert sum(read.values()) == checkpoint.total_bytes < sum(weight.nbytes for weight in model.state_dict().values())
    save_file({"vision_tower.ln_pre.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no tensors of a language model"):
        open_checkpoint(tmp_path)


HUNYUAN_OCR: dict[str, Any] = {
    **tiny.SHAPE,
    "architectures": ["HunYuanVLForConditionalGeneration"],
    "model_type": "hunyuan_vl",
    "attention_head_dim": 16,
    "org_vocab_size": 320,
    "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]},
    "vision_config": {},
}


def test_files_of_hunyuan_ocr_have_their_own_names_for_sections_and_stretch_the_base() -> None:
    found = model_spec_from_hf({field: value for field, value in HUNYUAN_OCR.items() if field != "head_dim"})
    mixer, rope = found.layers[0].attention, found.layers[0].attention.rope
    assert rope is not None
    assert (mixer.head_dim, found.vocab_size, found.tie_embeddings) == (16, 320, True)
    assert (rope.kind, rope.theta) == ("default", 10000.0 * 1000.0 ** (16 / 14))
    assert rope.axes == (0, 0, 1, 1, 2, 2, 3, 3)
    text = {**tiny.SHAPE, "head_dim": 16, "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}}
    rope = model_spec_from_hf({"model_type": "hunyuan_vl", "text_config": text}).layers[0].attention.rope
    assert rope is not None
    assert rope.axes == (1, 1, 1, 1, 2, 2, 3, 3), "without the index"
    assert media_spec({"model_type": "hunyuan_vl", "image_token_id": 8}) == MediaSpec({"image": 8}, axes="numbered")


def _ernie(**text: object) -> dict[str, Any]:
    sizes = {"moe_intermediate_size": [48, 32], "moe_num_experts": 4, "moe_k": 2, "head_dim": 16}
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [3, 3, 2]}
    return {
        "model_type": "ernie4_5_vl_moe",
        "text_config": {**tiny.SHAPE, **sizes, "rope_parameters": rope, **text},
        **{"image_token_id": 8, "image_start_token_id": 9, "image_end_token_id": 10, "video_start_token_id": 11},
    }


def test_pairs_of_ernie_turn_by_row_and_column_in_turn_and_the_last_by_the_frame() -> None:
    rope = model_spec_from_hf(_ernie()).layers[0].attention.rope
    assert rope is not None
    assert rope.interleaved
    assert rope.axes == (1, 2, 1, 2, 1, 2, 0, 0)


def test_sparse_layers_of_ernie_have_experts_of_their_own_for_media_and_for_tokens_around_them() -> None:
    found = model_spec_from_hf(_ernie())
    dense, sparse = found.layers[0].mlp, found.layers[1].mlp
    assert isinstance(dense, MLPSpec)
    assert isinstance(sparse, MoESpec)
    assert sparse.media is not None
    assert (sparse.inner, sparse.media.inner, sparse.media.shared) == (48, 32, None)
    shapes, layer = found.shapes(), "model.layers.1.mlp"
    assert shapes[f"{layer}.experts.3.up_proj.weight"] == (48, 64)
    assert shapes[f"{layer}.experts.4.up_proj.weight"] == (32, 64)
    assert shapes[f"{layer}.gate.weight_1"] == shapes[f"{layer}.gate.weight"] == (64, 4)
    assert shapes[f"{layer}.moe_statics.e_score_correction_bias"] == (2, 4)
    assert media_spec(_ernie()) == MediaSpec({"image": 8}, marks=(9, 10, 11, 101_307))
    listed = model_spec_from_hf(_ernie(moe_num_experts=[4, 4], mlp_layer_types=["sparse"] * len(found.layers)))
    assert listed.layers[0].mlp == sparse


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_ernie(moe_intermediate_size=[48]), "moe_intermediate_size is .48., expected two sizes"),
        (_ernie(moe_num_experts=[4, 5]), "moe_num_experts is .4, 5., expected the same number"),
        (_ernie(mlp_layer_types=["dense"]), "mlp_layer_types is not 'dense' or 'sparse' for each of"),
        (
            _ernie(rope_parameters={"rope_type": "default", "mrope_section": [2, 4, 2]}),
            "mrope_section has 2 pairs for rows and 4 for columns",
        ),
        (_ernie(rope_parameters={"rope_type": "linear", "factor": 2.0}), "rope_type is 'linear', expected 'default'"),
        ({**HUNYUAN_OCR, "rope_scaling": None}, r"mrope_section is \[\], expected 4 counts of rotating pairs"),
        (
            {**HUNYUAN_OCR, "rope_scaling": {"type": "xdrope", "alpha": 9.0, "xdrope_section": [2, 2]}},
            r"mrope_section is \[2, 2\], expected 4 counts",
        ),
    ],
)
def test_what_of_pictures_cannot_be_served_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf(config)


def test_pictures_see_themselves_whole_in_gemma3_and_in_large_models_of_gemma4_where_layers_slide() -> None:
    found = model_spec_from_hf(GEMMA_3_4B)
    assert all(layer.attention.whole_spans for layer in found.layers)
    text = {**tiny.SHAPE, "model_type": "gemma4_text", "layer_types": ["sliding_attention", "full_attention"] * 2}
    text |= {"num_hidden_layers": 4, "sliding_window": 32, "hidden_size_per_layer_input": 0}
    for setting, expected in ((None, [False] * 4), ("vision", [True, False] * 2)):
        config = {"model_type": "gemma4", "text_config": {**text, "use_bidirectional_attention": setting}}
        assert [layer.attention.whole_spans for layer in model_spec_from_hf(config).layers] == expected


def test_tensors_of_idefics_and_of_qwens_first_files_are_known_too() -> None:
    assert text_name("model.text_model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    for name in ("model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert text_name(name) == name
    for other in ("model.connector.modality_projection.proj.weight", "visual.patch_embed.proj.weight"):
        assert text_name(other) is None


def test_the_head_of_qwen3_5_that_predicts_further_tokens_is_of_the_text_part() -> None:
    assert text_name("mtp.layers.0.mlp.up_proj.weight") == "mtp.layers.0.mlp.up_proj.weight"
    assert not is_of_tower("mtp.fc.weight")


def test_of_a_model_that_speaks_the_part_that_thinks_is_read() -> None:
    text = {**tiny.SHAPE, "model_type": "qwen2_5_omni_text", "rope_scaling": {"mrope_section": [2, 3, 3]}}
    told = {"audio_token_index": 7, "image_token_index": 8, "tie_word_embeddings": False, "text_config": text}
    config = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "thinker_config": told}
    found = model_spec_from_hf(config)
    rope = found.layers[0].attention.rope
    assert rope is not None
    assert rope.axes == (0, 0, 1, 1, 1, 2, 2, 2)
    assert media_spec(config) == MediaSpec({"image": 8, "audio": 7}, axes="frames")
    assert text_name("thinker.model.norm.weight") == "model.norm.weight"
    assert text_name("thinker.lm_head.weight") == "lm_head.weight"
    assert is_of_tower("thinker.audio_tower.conv1.weight")
    assert not is_of_tower("talker.model.norm.weight")


def test_a_token_for_videos_that_are_not_served_counts_for_nothing() -> None:
    named = {"image_token_id": 8, "video_token_id": 9}
    assert media_spec({"model_type": "exaone4_5", **named}) == MediaSpec({"image": 8})
    assert media_spec({"model_type": "qwen2_vl", **named}) == MediaSpec({"image": 8, "video": 9})


@pytest.mark.parametrize(
    ("stored", "text", "of_tower"),
    [
        ("layers.0.self_attn.to_q.weight", "model.layers.0.self_attn.q_proj.weight", False),
        ("layers.0.self_attn.to_out.weight", "model.layers.0.self_attn.o_proj.weight", False),
        ("layers.0.self_attn.norm_k.weight", "model.layers.0.self_attn.k_norm.weight", False),
        ("embed_tokens.weight", "model.embed_tokens.weight", False),
        ("layers.0.self_attn.add_q_proj.weight", None, False),
        ("layers.0.mlp_moe_gen.up_proj.weight", None, False),
        ("time_embedder.linear_1.weight", None, False),
        ("action_modality_embed", None, False),
        ("blocks.0.attn.qkv.weight", None, True),
        ("deepstack_merger_list.0.norm.weight", None, True),
    ],
)
def test_of_cosmos_3_the_text_and_the_tower_are_read_and_what_generates_is_not(
    stored: str, text: str | None, of_tower: bool
) -> None:
    assert text_name(stored) == text
    assert is_of_tower(stored) == of_tower


MOLMO2: dict[str, Any] = {
    "architectures": ["Molmo2ForConditionalGeneration"],
    "model_type": "molmo2",
    "image_patch_id": 151_938,
    "text_config": {
        "model_type": "molmo2_text",
        "layer_norm_eps": 1e-5,
        "qkv_bias": True,
        "norm_after": True,
        "qk_norm_type": "olmo",
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
        "rope_scaling_layers": [3, 7],
    },
}


def test_published_files_of_molmo2_have_their_own_names_and_tokens_without_logits() -> None:
    found = model_spec_from_hf(MOLMO2)
    mixers = [layer.attention for layer in found.layers]
    assert (found.vocab_size, found.unsaid, found.norm_eps) == (151_936 + 128, 128, 1e-5)
    assert [layer for layer, mixer in enumerate(mixers) if mixer.rope and mixer.rope.kind == "yarn"] == [3, 7]
    assert {mixer.rope and mixer.rope.theta for mixer in mixers} == {5e5}
    assert (mixers[0].qkv_bias, mixers[0].output_bias, mixers[0].qk_norm, mixers[0].whole_spans) == (
        *(True, False, "full", True),
    )
    assert (found.layers[0].norms.mixer_in, found.layers[0].norms.mixer_out) == ("", "attn_norm")
    assert media_spec(MOLMO2) == MediaSpec(
        {"image": 151_938},
        marks=(151_936, 151_937, 151_939, 151_940, 151_943, 151_944),
        joined=True,
        added=True,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true, expected a head of its own"),
        ({"qk_norm_type": "gemma"}, "qk_norm_type is 'gemma', expected 'qwen3' or 'olmo'"),
        ({"use_qk_norm": False}, "with use_qk_norm true"),
    ],
)
def test_other_forms_of_molmo2_are_refused(text: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        model_spec_from_hf({**MOLMO2, "text_config": {**MOLMO2["text_config"], **text}})


MOLMO: dict[str, Any] = {
    **{"architectures": ["MolmoForCausalLM"], "model_type": "molmo", "clip_qkv": None, "layer_norm_type": "rms"},
    **{"hidden_size": 3584, "intermediate_size": 37_888, "num_attention_heads": 28, "num_key_value_heads": 4},
    **{"num_hidden_layers": 28, "qkv_bias": True, "rope_theta": 1e6, "layer_norm_eps": 1e-6, "norm_after": False},
    **{"attention_layer_norm": False, "embedding_size": 152_064, "vocab_size": 152_064, "weight_tying": False},
}


def test_published_files_of_molmo_name_twice_the_inner_size_and_tell_nothing_of_the_tower() -> None:
    found = model_spec_from_hf(MOLMO)
    mixer = found.layers[0].attention
    assert (found.vocab_size, found.unsaid, found.max_position) == (152_064 + 128, 128, 4096)
    assert (dense_mlp(found).inner, mixer.qkv_bias, mixer.qk_norm, mixer.whole_spans) == (18_944, True, "none", False)
    tower = vision_spec_from_hf(MOLMO, 3584)
    assert (tower.hidden_size, len(tower.layers), tower.taken, tower.side) == (1024, 22, (22, 15), 24)
    assert media_spec({**MOLMO, "image_token_id": 152_066}) == MediaSpec({"image": 152_066}, added=True)
    later = {"attention_layer_norm": True, "norm_after": True, "embedding_size": 100_352, "vocab_size": 100_278}
    olmo = model_spec_from_hf({**MOLMO, **later})
    assert (olmo.vocab_size, olmo.layers[0].attention.qk_norm) == (100_352 + 128, "full")
    assert (olmo.layers[0].norms.mixer_in, olmo.layers[0].norms.mixer_out) == ("", "attn_norm")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0, expected None"),
        ({"weight_tying": True}, "weight_tying is true, expected false"),
        ({"moe_num_experts": 64}, "moe_num_experts is 64, expected 0"),
        ({"layer_norm_type": "low_precision"}, "layer_norm_type is 'low_precision', expected 'rms'"),
    ],
)
def test_other_forms_of_molmo_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        model_spec_from_hf({**MOLMO, **fields})


def test_chameleon_generates_no_tokens_of_pictures() -> None:
    words = {"<image>": 8711, "a": 3, "IMGIMGAZ": 4, "IMGIMGBZ": 5, "IMGIMGCZ": 9}
    config = {"architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", "hidden_size": 4096}
    found = model_spec_from_hf({**config, "vocabulary_map": words})
    assert found.silent == ((4, 6), (9, 10))
    assert found.layers[0].norms.mixer_in == "input_layernorm"
    assert model_spec_from_hf({**config, "swin_norm": True}).layers[0].norms.mixer_out == "input_layernorm"
    assert media_spec({**config, "vocabulary_map": words}) == MediaSpec({"image": 8711})
    with pytest.raises(ConfigError, match="rms_norm_eps is 1e-06, expected 1e-05, which norms of heads have"):
        model_spec_from_hf({**config, "rms_norm_eps": 1e-6})


@pytest.mark.parametrize("kind", ["perception_lm", "fast_vlm"])
def test_models_whose_towers_need_timm_take_media_with_it_or_with_another_tower(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"model_type": kind, "image_token_id": 8}
    other = {**config, "vision_config": {"model_type": "siglip_vision_model"}}
    monkeypatch.setattr("stentor.engine.model_config.towers.media_spec.find_spec", lambda name: None)
    assert media_spec(config) is None
    assert media_spec({**config, "vision_config": {"model_type": "timm_wrapper"}}) is None
    assert media_spec(other) == MediaSpec({"image": 8})
    monkeypatch.setattr("stentor.engine.model_config.towers.media_spec.find_spec", lambda name: True)
    assert media_spec(config) == MediaSpec({"image": 8})


@pytest.mark.parametrize(
    ("text", "whole", "why"),
    [
        (
            {},
            {"mrope_section": [12, 12, 8]},
            "mrope_section is .12, 12, 8., expected three numbers of 32 rotating pairs",
        ),
        ({}, {"mrope_section": [16, 10, 10]}, "mrope_section is .16, 10, 10., expected three numbers of 32"),
        (
            {"rope_parameters": {"mrope_section": [8, 12, 12]}},
            {},
            "mrope_section of text_config is not that of the whole",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type is 'yarn', expected 'default'"),
    ],
)
def test_a_text_part_of_ling_that_turns_otherwise_is_refused(
    text: dict[str, object], whole: dict[str, object], why: str
) -> None:
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5}
    sizes |= {"num_attention_heads": 4, "kv_lora_rank": 32, "num_experts": 8}
    config = {"architectures": ["BailingMoeV3VLForConditionalGeneration"], "model_type": "bailing_moe_v3_vl", **whole}
    with pytest.raises(ConfigError, match=why):
        model_spec_from_hf({**config, "text_config": {"model_type": "bailing_hybrid", **sizes, **text}})
