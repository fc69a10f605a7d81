"""What projector files of published sizes say, as the config.json that says the same."""

from collections.abc import Mapping
from typing import Any

import pytest
import transformers as untyped_transformers

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.gguf.mmproj_config import (
    PROJECTORS,
    described_by,
    projector_names,
    seeing,
    tower_spec,
)
from stentor.engine.model_config.gguf.mmproj_file import ProjectorFile, TextFile
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.layer import PRE, LayerSpec
from stentor.engine.model_config.spec.mlp import MLPSpec
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.spec.positions import RopeConfig
from stentor.engine.model_config.towers.audio_hf import audio_spec_from_hf

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
HIDDEN = 2048
Shapes = dict[str, tuple[int, ...]]


def text(architecture: str, *tokens: str, sections: list[int] | None = None) -> TextFile:
    attention = AttentionSpec(16, 2, 128, 128**-0.5, RopeConfig())
    layer = LayerSpec(attention, MLPSpec(11_008), PRE)
    spec = ModelSpec(
        architecture="A", vocab_size=100, hidden_size=HIDDEN, layers=(layer,), max_position=4096, norm_eps=1e-6
    )
    types = [3] * len(tokens)
    metadata: dict[str, object] = {"general.architecture": architecture, "tokenizer.ggml.tokens": [*tokens]}
    metadata |= {"tokenizer.ggml.token_type": types}
    if sections:
        metadata[f"{architecture}.rope.dimension_sections"] = sections
    return TextFile(metadata, spec)


def file(kind: str, shapes: Shapes, *, hidden: int, layers: int, **said: Any) -> ProjectorFile:
    own = {
        "image_size": 448,
        "patch_size": 14,
        "embedding_length": hidden,
        "block_count": layers,
        "attention.head_count": 16,
        "attention.layer_norm_epsilon": 1e-6,
        "projection_dim": HIDDEN,
        **{key.replace("__", "."): value for key, value in said.items() if not key.startswith("clip_")},
    }
    clip = {key.replace("clip_", "clip."): value for key, value in said.items() if key.startswith("clip_")}
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        **{f"clip.vision.{key}": value for key, value in own.items()},
        **clip,
    }
    return ProjectorFile(metadata, shapes)


def vision(described: Mapping[str, object]) -> Mapping[str, object]:
    table = described["vision_config"]
    assert isinstance(table, dict)
    return table


QWEN2_5: Shapes = {"v.blk.0.ffn_up.weight": (1280, 3420), "v.blk.0.ffn_gate.weight": (1280, 3420)}


def test_layers_of_qwen2_5_vl_see_windows_of_112_pixels_but_for_each_eighth() -> None:
    projecting = file("qwen2.5vl_merger", QWEN2_5, hidden=1280, layers=32, n_wa_pattern=8, clip_use_silu=True)
    described = described_by(projecting, text("qwen2vl", "<|image_pad|>", "<|video_pad|>"))
    assert described["model_type"] == "qwen2_5_vl"
    assert (described["image_token_id"], described["video_token_id"]) == (0, 1)
    spec = tower_spec(projecting, described, HIDDEN)
    assert (spec.window, spec.whole_layers, len(spec.layers)) == (4, (7, 15, 23, 31), 32)
    assert spec.layers[0].mlp == MLPSpec(3420, "silu", True)
    assert not spec.layers[0].attention.fused
    assert vision(described)["tokens_per_second"] == 2


def test_the_networks_of_qwen2_vl_are_read_off_tensors_since_the_key_says_another_size() -> None:
    for up, down in ((5120, 1280), (1280, 5120)):  # old converters swap the names
        inputs = {5120: 1280, 1280: 5120}
        shapes: Shapes = {"v.blk.0.ffn_up.weight": (inputs[up], up), "v.blk.0.ffn_down.weight": (inputs[down], down)}
        projecting = file("qwen2vl_merger", shapes, hidden=1280, layers=32, feed_forward_length=0)
        described = described_by(projecting, text("qwen2vl", "<|image_pad|>"))
        assert vision(described)["mlp_ratio"] == 4
        assert "video_token_id" not in described
        assert tower_spec(projecting, described, HIDDEN).embedding_size == HIDDEN


CLIP: Shapes = {
    "v.blk.0.ffn_down.weight": (1024, 4096),
    "v.blk.0.ffn_up.weight": (4096, 1024),
    "v.class_embd": (1024,),
    "mm.0.weight": (1024, HIDDEN),
    "mm.2.weight": (HIDDEN, HIDDEN),
}


@pytest.mark.parametrize(("layers", "said"), [(23, {}), (24, {"feature_layer": [23]})])
def test_a_file_of_llava_ends_with_the_layer_whose_output_is_taken_or_names_it(
    layers: int, said: dict[str, Any]
) -> None:
    projecting = file("mlp", CLIP, hidden=1024, layers=layers, projection_dim=768, image_size=336, **said)
    described = described_by(projecting, text("llama", "<unk>"))
    spec = tower_spec(projecting, described, HIDDEN)
    assert (len(spec.layers), spec.class_token, spec.max_position) == (23, True, 577)
    assert spec.layers[0].mlp == MLPSpec(4096, "quick_gelu", True, ("mlp.fc1",), "mlp.fc2", gated=False)
    assert described["image_token_id"] == 0


def test_an_old_file_of_llava_names_no_type() -> None:
    projecting = file("mlp", CLIP, hidden=1024, layers=23, clip_has_llava_projector=True)
    metadata = {key: value for key, value in projecting.metadata.items() if key != "clip.projector_type"}
    assert ProjectorFile(metadata, CLIP).kind == "mlp"


def test_the_large_tower_of_internvl_has_norms_of_heads_and_no_biases_of_queries() -> None:
    shapes = {"v.blk.0.ffn_up.weight": (3200, 12_800), "v.blk.0.attn_q_norm.weight": (3200,)}
    projecting = file("internvl", shapes, hidden=3200, layers=45, clip_use_gelu=True, attention__head_count=25)
    spec = tower_spec(projecting, described_by(projecting, text("qwen2", "<IMG_CONTEXT>")), HIDDEN)
    attention = spec.layers[0].attention
    assert (attention.qk_norm, attention.qkv_bias, spec.layers[0].norms.kind) == ("full", False, "rms")
    assert (spec.merge, spec.max_position) == (2, 1025)


GLM: Shapes = {
    "v.blk.0.ffn_up.weight": (1536, HIDDEN),
    "v.position_embd.weight": (1536, 576),
    "mm.up.weight": (HIDDEN, 13_696),
}


@pytest.mark.parametrize("architecture", ["glm4", "glm4moe"])
def test_the_tower_of_glm_has_networks_of_the_embeddings_width(architecture: str) -> None:
    projecting = file("glm4v", GLM, hidden=1536, layers=24, image_size=336, clip_use_silu=True)
    described = described_by(projecting, text(architecture, "<|image|>", "<|video|>"))
    assert described["model_type"] == ("glm4v" if architecture == "glm4" else "glm4v_moe")
    assert (described["image_token_id"], described["video_token_id"]) == (0, 1)
    spec = tower_spec(projecting, described, HIDDEN)
    assert spec.layers[0].mlp == MLPSpec(HIDDEN, "silu")
    assert (spec.side, spec.frames, spec.projector.products[2].outputs) == (24, 2, 13_696)


GEMMA: Shapes = {
    "v.blk.0.ffn_up.weight": (1152, 4304),
    "v.blk.0.attn_q.weight": (1152, 1152),
    "v.blk.0.attn_k.weight": (1152, 1152),
    "v.position_embd.weight": (1152, 10_240, 2),
    "v.std_scale": (1152,),
}


def test_the_tower_of_a_large_gemma_4_has_its_sizes_from_tensors() -> None:
    projecting = file("gemma4v", GEMMA, hidden=1152, layers=27, image_size=224, patch_size=16)
    described = described_by(projecting, text("gemma4", "<|image|>"))
    spec = tower_spec(projecting, described, HIDDEN)
    attention = spec.layers[0].attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (16, 16, 72)
    assert (spec.max_position, spec.merge, spec.projector.standard) == (20_480, 3, ("std_bias", "std_scale"))
    assert described["audio_config"] is None


WHISPER: Shapes = {
    "a.blk.0.ffn_up.weight": (1280, 5120),
    "a.position_embd.weight": (1280, 1500),
    "a.conv2d.1.weight": (3, 3, 1, 480),
    "mm.a.mlp.1.weight": (10_240, 4096),
    "mm.a.norm_mid.weight": (2048,),
}


def sound_file(kind: str, shapes: Shapes, **said: Any) -> ProjectorFile:
    own = {
        **{"embedding_length": 1280, "block_count": 32, "attention.head_count": 20, "projection_dim": HIDDEN},
        **{"num_mel_bins": 128, "projector.stack_factor": 8, **said},
    }
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_audio_encoder": True,
        "clip.projector_type": kind,
        **{f"clip.audio.{key}": value for key, value in own.items()},
    }
    return ProjectorFile(metadata, shapes)


def test_the_encoder_of_ultravox_is_whispers_and_its_token_one_that_no_text_holds() -> None:
    llama = text("llama", "hello", "<|reserved_special_token_247|>")
    described = described_by(sound_file("ultravox", WHISPER), llama)
    assert described["audio_token_id"] == 1
    spec = audio_spec_from_hf(described, HIDDEN)
    assert (spec.mel_bins, len(spec.layers), spec.max_position, spec.stack) == (128, 32, 1500, 8)
    assert [product.outputs for product in spec.projector.products] == [2048, HIDDEN]
    assert seeing(llama.spec, llama.metadata, described).text_part


@pytest.mark.parametrize(
    ("kind", "architecture", "token"),
    [("voxtral", "llama", "[AUDIO]"), ("qwen2a", "qwen2", "<|AUDIO|>"), ("qwen3a", "qwen3vl", "<|audio_pad|>")],
)
def test_encoders_that_transformers_has_are_told_in_its_words(kind: str, architecture: str, token: str) -> None:
    beside = text(architecture, token, sections=[24, 20, 20, 0])
    described = described_by(sound_file(kind, WHISPER), beside)
    config = transformers.AutoConfig.for_model(**described)
    assert (config.audio_config.hidden_size, config.audio_config.num_hidden_layers) == (1280, 32)
    assert (config.audio_config.intermediate_size, config.audio_config.num_attention_heads) == (5120, 20)
    assert config.text_config.hidden_size == HIDDEN
    rope = seeing(beside.spec, beside.metadata, described).layers[0].attention.rope
    assert rope is not None
    assert rope.axes == (), "sounds turn by one axis"


@pytest.mark.parametrize(
    ("kind", "shapes", "message"),
    [
        ("ultravox", {"a.blk.0.ffn_up.weight": (1280, 5120)}, "the tensor mm.a.norm_mid.weight is missing"),
        ("voxtral", {"a.blk.0.ffn_up.weight": (1280, 5120)}, "the tensor a.position_embd.weight is missing"),
    ],
)
def test_an_encoder_of_sounds_that_lacks_a_tensor_is_refused(kind: str, shapes: Shapes, message: str) -> None:
    beside = text("llama", "[AUDIO]", "<|audio|>")
    with pytest.raises(ConfigError, match=message):
        described_by(sound_file(kind, shapes), beside)


@pytest.mark.parametrize(
    ("kind", "shapes", "said", "message"),
    [
        ("mlp", {**CLIP, "model.image_newline": (HIDDEN,)}, {}, "it is of LLaVA 1.6, whose tiles have no native form"),
        ("mlp", {**CLIP, "mm.3.weight": (8, 8)}, {}, "its projector is not LLaVA's of two products, mm.0 and mm.2"),
        ("mlp", CLIP, {"feature_layer": [3, 7]}, "clip.vision.feature_layer names 2 layers, expected one"),
        ("idefics3", {}, {}, "the tensor v.blk.0.ffn_up.weight is missing"),
        ("qwen2vl_merger", QWEN2_5, {}, r"of a text model of qwen2vl, and the text model is llama"),
        ("glm4v", GLM, {}, "of a text model of glm4 or glm4moe, and the text model is llama"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: str, shapes: Shapes, said: dict[str, Any], message: str) -> None:
    hidden = 1024 if shapes.keys() & CLIP.keys() else 1280
    with pytest.raises(ConfigError, match=message):
        described_by(file(kind, shapes, hidden=hidden, layers=23, **said), text("llama", "<image>"))


def test_tokens_turn_by_row_and_column_only_beside_a_tower() -> None:
    beside = text("qwen3vl", "<|image_pad|>", sections=[24, 20, 20, 0])
    alone = beside.spec.layers[0].attention.rope
    assert alone is not None
    assert alone.axes == ()
    spec = seeing(beside.spec, beside.metadata, {"model_type": "qwen3_vl"})
    rope = spec.layers[0].attention.rope
    assert rope is not None
    assert [rope.axes.count(axis) for axis in range(3)] == [24, 20, 20]
    assert rope.axes[:6] == (0, 1, 2, 0, 1, 2)
    assert spec.text_part
    turned = seeing(beside.spec, text("qwen2vl", sections=[16, 24, 24, 0]).metadata, {"model_type": "qwen2_vl"})
    rope = turned.layers[0].attention.rope
    assert rope is not None
    assert rope.axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    turned = seeing(beside.spec, text("glm4", sections=[16, 24, 24, 0]).metadata, {"model_type": "glm4v"})
    assert turned.layers[0].attention.rope == rope
    assert (
        seeing(text("gemma3").spec, text("gemma3").metadata, {"model_type": "gemma3"}).layers[0].attention.whole_spans
    )


def test_every_projector_is_found_by_the_models_that_have_it() -> None:
    assert projector_names("smolvlm") == projector_names("idefics3") == ["idefics3"]
    assert projector_names("llava") == ["mlp", "pixtral"]
    assert projector_names("llava_next") == []
    assert {name for row in PROJECTORS.values() for name in projector_names(row.model_type)} == {*PROJECTORS}
