"""Descriptions of further models with latent attention, against what makers publish and transformers' models."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import mtp_head
from stentor.engine.model_config.hf.text_names import text_name
from stentor.engine.model_config.spec.cache import CacheSpec
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MLPSpec, MoESpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.stages import stage_ends
from stentor.engine.model_config.towers.media_spec import media_spec
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.parity import tiny

LONGCAT: dict[str, Any] = {
    "architectures": ["LongcatFlashForCausalLM"],
    "hidden_size": 6144,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_layers": 28,
    "vocab_size": 131072,
}
"""LongCat Flash's, of which transformers knows the rest."""
DOTS3: dict[str, Any] = {
    "architectures": ["Dots3NoteForConditionalGeneration"],
    "model_type": "dots3_note",
    "hidden_size": 5120,
    "image_token_id": 151660,
    "swa_rope_theta": 50000,
    "swa_kv_lora_rank": 1024,
}
"""dots.3 note's, whose text fields stand beside those of the whole; transformers knows the rest."""
LARGE4: dict[str, Any] = {"architectures": ["MistralLarge4ForConditionalGeneration"], "text_config": {}}
"""Of which transformers knows the rest."""
K2: dict[str, Any] = {
    "architectures": ["AXK2ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "vocab_size": 163840,
}
"""A.X K2 Light's, of which transformers knows the rest."""


def large4(**text: Any) -> ModelSpec:
    return model_spec_from_hf({**LARGE4, "text_config": {"model_type": "mistral_large4_text", **text}})


def mixers(spec: ModelSpec) -> list[LatentAttentionSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttentionSpec)]


def test_mistral_large_4_has_a_trillion_parameters_and_52_billion_for_a_token() -> None:
    spec = large4()
    assert round(spec.parameters / 1e9) == 1050
    assert round(spec.active_parameters / 1e9) in (51, 52, 53)
    assert (spec.max_position, spec.logits_softcap) == (1 << 20, 30.0)
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers] == [False] + [True] * 71


def test_every_fourth_layer_of_mistral_large_4_has_no_positions_and_keeps_64_numbers_fewer() -> None:
    spec = large4()
    turning = [mixer.rope is not None for mixer in mixers(spec)]
    assert turning == [True, True, True, False] * 18
    plain = mixers(spec)[3]
    assert (plain.nope_dim, plain.rope_dim, plain.latent_dim) == (128, 0, 512)
    rotating, still = spec.cache_groups
    assert (rotating.head_dim, still.head_dim, still.layers) == (576, 512, tuple(range(3, 72, 4)))
    assert spec.shapes()["model.rotary_emb.alpha"] == (32,)


def test_a_layer_with_the_latents_of_another_keeps_the_keys_of_its_index_alone() -> None:
    four = {"num_hidden_layers": 4, "no_rope_layers": [1] * 4, "kv_source_layers": [0, 0, 0, 3]}
    spec = large4(**four, indexer_types=["full", "shared", "full", "full"])
    assert [mixer.shares for mixer in mixers(spec)] == [-1, 0, 0, -1]
    assert spec.cache_groups == (CacheSpec("latent", (0, 3), 0, 1, 576, 128), CacheSpec("latent", (2,), 0, 1, 128))
    names = {name for name in spec.shapes() if name.startswith("model.layers.1.self_attn")}
    assert not any("kv_a" in name or "indexer" in name for name in names)
    with pytest.raises(ConfigError, match="layers that use keys of earlier ones"):
        stage_ends(spec, 2)


def test_the_names_of_mistrals_files_are_read_as_transformers_ones() -> None:
    names = {
        "tok_embeddings.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "lerope.alpha": "model.rotary_emb.alpha",
        "layers.1.experts.12.w3.weight": "model.layers.1.mlp.experts.12.up_proj.weight",
        "layers.1.shared_experts.w2.weight_scale_inv": "model.layers.1.mlp.shared_experts.down_proj.weight_scale_inv",
        "layers.1.gate.weight": "model.layers.1.mlp.gate.weight",
        "layers.0.feed_forward.w1.weight": "model.layers.0.mlp.gate_proj.weight",
        "layers.0.attention.indexer.ssmax_scaling.s": "model.layers.0.self_attn.indexer.softmax_scaling.scale",
        "layers.0.attention.wkv_a_with_mqa.weight": "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.language_model.layers.0.self_attn.q_proj.weight": "model.layers.0.self_attn.q_proj.weight",
    }
    assert {stored: text_name(stored) for stored in names} == names
    towers = ("vision_encoder.transformer.layers.0.attention.wq.weight", "patch_merger.merging_layer.weight")
    assert [text_name(stored) for stored in towers] == [None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers is not 0 or 1 for each of 72 layers"),
        ({"no_rope_layers": [2] * 72}, "no_rope_layers is not 0 or 1 for each of 72 layers"),
        ({"kv_source_layers": [0] * 71}, "kv_source_layers is not, for each of 72 layers"),
        ({"kv_source_layers": [1, *range(1, 72)]}, "kv_source_layers is not, for each of 72 layers"),
        ({"kv_source_layers": [0, 0, 1, *range(3, 72)]}, "kv_source_layers is not, for each of 72 layers"),
        ({"kv_source_layers": [0, 1, 2, 0, *range(4, 72)]}, "layer 3 uses the latents of layer 0, expected both to"),
        ({"indexer_types": ["shared"] * 72}, "for each of 72 layers, the first 'full'"),
        ({"index_head_dim": 32}, "index_head_dim is 32, expected at least the 64 of qk_rope_head_dim"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types is not 'dense' or 'sparse' for each of 72 layers"),
    ],
)
def test_a_wrong_field_of_mistral_large_4_is_named(text: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        large4(**text)


def test_norms_before_experts_of_ax_k2_have_a_gate_and_that_before_a_dense_network_has_none() -> None:
    spec = model_spec_from_hf({**K2, "first_k_dense_replace": 2, "moe_layer_freq": 3})
    assert [isinstance(layer.mlp, MoESpec) for layer in spec.layers[:7]] == [False] * 3 + [True, False, False, True]
    dense, sparse = spec.layers[0].norms, spec.layers[3].norms
    assert (dense.gated, sparse.gated) == (("input_layernorm",), ("input_layernorm", "post_attention_layernorm"))
    shapes = spec.shapes()
    assert shapes["model.layers.3.post_attention_layernorm.W_down.weight"] == (16, 2048)
    assert shapes["model.layers.0.self_attn.q_b_proj.weight"] == (32 * (96 + 64), 2 * 384)
    assert not mixers(spec)[0].index.interleaved  # type: ignore[union-attr]  # every layer has one


def test_a_null_rank_of_ax_k2s_queries_is_refused() -> None:
    with pytest.raises(ConfigError, match="q_lora_rank is null, expected a size"):
        model_spec_from_hf({**K2, "q_lora_rank": None})


def test_longcat_flash_is_what_its_makers_say() -> None:
    """arXiv:2509.01322: 560 billion parameters, at most 31.3 of them for a token, in 28 pairs of layers."""
    spec = model_spec_from_hf(LONGCAT)
    assert (len(spec.layers), round(spec.parameters / 1e9)) == (56, 561)
    assert 31 < spec.active_parameters / 1e9 < 32.5
    moe = spec.layers[0].shortcut
    assert moe is not None
    assert (moe.experts, moe.identities, moe.router.top_k, moe.router.scale) == (512, 256, 12, 6.0)
    assert [layer.shortcut is None for layer in spec.layers] == [False, True] * 28
    mixer = mixers(spec)[1]
    assert (mixer.name, mixer.latent_scale) == ("self_attn.1", 12**0.5)
    assert mixer.scale == pytest.approx(192**-0.5 * 2)
    shapes = spec.shapes()
    assert shapes["model.layers.27.mlps.1.up_proj.weight"] == (12288, 6144)
    assert shapes["model.layers.27.mlp.router.classifier.weight"] == (768, 6144)
    with pytest.raises(ConfigError, match="their experts or their weights, are not given out"):
        stage_ends(spec, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"router_bias": True}, "router_bias is set, expected false"),
        ({"zero_expert_type": "drop"}, "zero_expert_type is 'drop', expected 'identity'"),
        ({"mla_scale_kv_lora": False}, "mla_scale_kv_lora is false, expected true"),
        ({"moe_topk": 800}, "a token takes 800 experts of the 768 that are looked at"),
        ({"num_layers": 0}, "num_layers is '0', expected a whole number"),
    ],
)
def test_a_wrong_field_of_longcat_flash_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**LONGCAT, **change})


def test_three_of_four_layers_of_dots_3_note_see_the_nearest_512_tokens_with_heads_of_other_sizes() -> None:
    spec = model_spec_from_hf(DOTS3)
    assert [mixer.reach for mixer in mixers(spec)[:10]] == [0, 0, 512, 512, 512, 0, 512, 512, 512, 0]
    whole, near = mixers(spec)[1], mixers(spec)[2]
    assert (whole.heads, whole.kv_lora_rank, whole.nope_dim, whole.rope_dim, whole.v_dim) == (128, 512, 128, 64, 128)
    assert (near.heads, near.kv_lora_rank, near.nope_dim, near.rope_dim, near.v_dim) == (64, 1024, 192, 64, 128)
    assert (whole.rope and whole.rope.theta, near.rope and near.rope.theta) == (80_000_000.0, 50_000.0)
    assert (whole.index is not None, near.index, near.gate, near.scale) == (True, None, "g_proj", 5**0.5 / 16)
    assert near.chooses(500, 13)
    assert not near.chooses(500, 12)
    assert near.work(1, 100_000) == 2 * 64 * (1088 + 1024) * 512
    (single,) = {mixer.norm_eps for mixer in mixers(spec)}
    assert single == 1e-5
    assert media_spec(DOTS3) is None, "its pictures and sounds are not taken"


def test_layers_of_dots_3_note_have_the_sizes_that_the_file_lists() -> None:
    own = {"2": {"num_attention_heads": 32, "qk_rope_head_dim": 32}}
    mixer = mixers(model_spec_from_hf({**DOTS3, "per_layer_config": own}))[2]
    assert (mixer.heads, mixer.rope_dim, mixer.kv_lora_rank) == (32, 32, 512)
    listed = ["full_attention", "sliding_attention"]
    two = {**DOTS3, "num_hidden_layers": 2, "layer_types": listed}
    assert [mixer.index is not None for mixer in mixers(model_spec_from_hf(two))] == [True, False]
    assert not any(mixer.index for mixer in mixers(model_spec_from_hf({**two, "use_dsa": False})))
    sparse = model_spec_from_hf({**DOTS3, "num_hidden_layers": 4, "moe_layer_freq": [1, 0, 1, 1]})
    assert [isinstance(layer.mlp, MoESpec) for layer in sparse.layers] == [False, False, True, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_lora_rank": None}, "q_lora_rank is null, expected a size"),
        ({"layer_types": ["full_attention"]}, "for each of 46 layers"),
        ({"layer_types": ["linear_attention"] * 46}, "layer_types is not 'full_attention'"),
        ({"moe_layer_freq": [1, 1]}, "moe_layer_freq is of 2 layers, expected 46"),
        ({"per_layer_config": {"2": 5}}, r"per_layer_config\.2 is '5', expected a table"),
        ({"sliding_window": -1}, "sliding_window is '-1', expected a whole number"),
    ],
)
def test_a_wrong_field_of_dots_3_note_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_spec_from_hf({**DOTS3, **change})


def test_the_head_of_dots_3_note_slides_is_dense_and_has_embeddings_unless_the_file_says_otherwise() -> None:
    head = mtp_head(model_spec_from_hf(DOTS3))
    (layer,) = head.backbone.layers
    assert isinstance(layer.mixer, LatentAttentionSpec)
    assert (layer.mixer.reach, head.embeds, isinstance(layer.mlp, MLPSpec)) == (512, True, True)
    with pytest.raises(ConfigError, match="in a form that is not known here for multi-token prediction"):
        mtp_head(model_spec_from_hf({**DOTS3, "mtp_layer_types": ["full_attention"]}))


@pytest.mark.parametrize("name", ["dots3-note-whole", "mistral-large4-seeing", "mistral-large4-shared"])
def test_the_shapes_of_weights_are_those_of_the_text_models_stored_tensors(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    described = open_checkpoint(tmp_path).decoder
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {text_name(key): tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    stored.pop(None)
    assert described.shapes() == stored
    assert list(plain_shapes(described).items()) == list(described.shapes().items()), "and so the model registers them"
