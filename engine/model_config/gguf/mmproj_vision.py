"""Reads projector files with a vision encoder: ``vision_config`` and related fields. Keys are llama.cpp's; values
without keys are read from tensors, or are those of all published models of the family."""

from math import isqrt

from ..config_fields import MOST_LAYERS, ConfigError
from .mmproj_file import ProjectorFile, TextFile, Values, decoder


def idefics3(file: ProjectorFile, text: TextFile) -> Values:
    return {"scale_factor": file.vision.integer("projector.scale_factor", 2), "vision_config": file.tower()}


def gemma3(file: ProjectorFile, text: TextFile) -> Values:
    tower = file.tower()
    side = file.vision.integer("image_size") // file.vision.integer("patch_size")
    merged = side // file.vision.integer("projector.scale_factor", 4)
    return {"mm_tokens_per_image": merged * merged, "vision_config": tower}


def mlp(file: ProjectorFile, text: TextFile) -> Values:
    """LLaVA with CLIP or SigLIP; files omit layers behind the one that is used."""
    if "v.image_newline" in file.shapes or "model.image_newline" in file.shapes:
        raise ConfigError("it is of LLaVA 1.6, whose tiles have no native form; expected one of LLaVA 1.5")
    if "mm.3.weight" in file.shapes or "mm.2.weight" not in file.shapes:
        raise ConfigError("its projector is not LLaVA's of two products, mm.0 and mm.2")
    layers = [int(each) for each in file.vision.numbers("feature_layer")]
    if len(layers) > 1:
        raise ConfigError(f"clip.vision.feature_layer names {len(layers)} layers, expected one")
    clip = "v.class_embd" in file.shapes
    tower = {
        **file.tower(),
        "model_type": "clip_vision_model" if clip else "siglip_vision_model",
        "hidden_act": file.activation("quick_gelu") if clip else "gelu_pytorch_tanh",
    }
    return {
        "vision_config": tower,
        "vision_feature_layer": layers[0] if layers else -1,
        "vision_feature_select_strategy": "default" if clip else "full",
    }


def pixtral(file: ProjectorFile, text: TextFile) -> Values:
    """Pixtral, or Mistral 3 if neighbours are merged."""
    if "mm.patch_merger.weight" in file.shapes:
        return {"model_type": "mistral3", **_merged(file, text)}
    return _merged(file, text)


def lighton_ocr(file: ProjectorFile, text: TextFile) -> Values:
    return _merged(file, text)


def _merged(file: ProjectorFile, text: TextFile) -> Values:
    values: Values = {
        "vision_config": {**file.tower(), "model_type": "pixtral", "hidden_act": file.activation("gelu")},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": "mm.1.bias" in file.shapes,
        "text_config": {"rms_norm_eps": text.spec.norm_eps},
    }
    merges = "mm.patch_merger.weight" in file.shapes
    return values | ({"spatial_merge_size": file.vision.integer("spatial_merge_size", 2)} if merges else {})


def _qwen(file: ProjectorFile) -> Values:
    vision = file.vision
    return {
        "depth": vision.integer("block_count", most=MOST_LAYERS),
        "num_heads": vision.integer("attention.head_count"),
        "patch_size": vision.integer("patch_size"),
        "hidden_size": vision.integer("embedding_length"),
        "intermediate_size": file.inner,
        "out_hidden_size": file.embedding,
        "spatial_merge_size": vision.integer("spatial_merge_size", 2),
    }


def qwen2(file: ProjectorFile, text: TextFile) -> Values:
    hidden = file.vision.integer("embedding_length")
    if file.inner % hidden:
        raise ConfigError(f"networks of {file.inner} are no multiple of {hidden} columns")
    tower = {"embed_dim": hidden, "mlp_ratio": file.inner // hidden, "hidden_size": file.embedding}
    return {"vision_config": {**_qwen(file), **tower, "hidden_act": file.activation("quick_gelu")}}


def qwen2_5(file: ProjectorFile, text: TextFile) -> Values:
    """Windows have 112 pixels in all files; videos have 2 positions a second."""
    pattern, layers = file.vision.integer("n_wa_pattern"), file.vision.integer("block_count", most=MOST_LAYERS)
    whole = [layer for layer in range(layers) if (layer + 1) % pattern == 0]
    own = {"window_size": 112, "fullatt_block_indexes": whole, "tokens_per_second": 2}
    return {"vision_config": {**_qwen(file), **own, "hidden_act": file.activation("silu")}}


def qwen3(file: ProjectorFile, text: TextFile) -> Values:
    """Qwen3-VL, or Qwen3.5, which adds nothing behind decoder layers."""
    layers = range(file.vision.integer("block_count", most=MOST_LAYERS))
    taps = [layer for layer in layers if f"v.deepstack.{layer}.fc1.weight" in file.shapes]
    own = {"num_position_embeddings": file.outputs("v.position_embd.weight"), "deepstack_visual_indexes": taps}
    kinds = {"qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "qwen3vlmoe": "qwen3_vl_moe"}
    return {
        "model_type": kinds.get(text.architecture, "qwen3_vl"),
        "vision_config": {**_qwen(file), **own, "hidden_act": "gelu_pytorch_tanh"},
    }


def internvl(file: ProjectorFile, text: TextFile) -> Values:
    own = {
        "hidden_act": file.activation("gelu"),
        "attention_bias": "v.blk.0.attn_q.bias" in file.shapes,
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in file.shapes else "rms_norm",
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in file.shapes,
    }
    ratio = 1 / file.vision.integer("projector.scale_factor", 2)
    return {"downsample_ratio": ratio, "vision_config": {**file.tower(), **own}}


def lfm2(file: ProjectorFile, text: TextFile) -> Values:
    """SigLIP 2 over patches of pictures of any shape."""
    return {
        "downsample_factor": file.vision.integer("projector.scale_factor", 2),
        "projector_hidden_size": file.outputs("mm.1.weight"),
        "projector_bias": "mm.1.bias" in file.shapes,
        "projector_use_layernorm": "mm.input_norm.weight" in file.shapes,
        "vision_config": {**file.tower(), "num_patches": file.outputs("v.position_embd.weight")},
    }


def kimi_vl(file: ProjectorFile, text: TextFile) -> Values:
    side = isqrt(file.outputs("v.position_embd.weight"))
    own = {"init_pos_emb_height": side, "init_pos_emb_width": side}
    return {
        "vision_config": {
            **file.tower(),
            **own,
            "merge_kernel_size": file.vision.integer("projector.scale_factor", 2),
        }
    }


def kimi_k25(file: ProjectorFile, text: TextFile) -> Values:
    table = file.shapes.get("v.position_embd.weight", ())
    if len(table) != 3:
        raise ConfigError(f"v.position_embd.weight has the shape {list(table)}, expected columns and rows of vectors")
    own = {"pos_emb_width": table[1], "pos_emb_height": table[2]}
    merge = file.vision.integer("projector.scale_factor", 2)
    return {"vision_config": {**file.tower(), **own, "merge_kernel_size": merge}}


def glm4v(file: ProjectorFile, text: TextFile) -> Values:
    """GLM-4.1V, or GLM-4.5V with experts."""
    vision = file.vision
    own = {
        "intermediate_size": file.outputs("mm.up.weight"),
        "image_size": isqrt(file.outputs("v.position_embd.weight")) * vision.integer("patch_size"),
        "hidden_act": file.activation("silu"),
        "rms_norm_eps": vision.number("attention.layer_norm_epsilon"),
        "attention_bias": "v.blk.0.attn_qkv.bias" in file.shapes,
    }
    kind = "glm4v_moe" if text.architecture == "glm4moe" else "glm4v"
    return {"model_type": kind, "vision_config": {**_qwen(file), **own}}


def llama4(file: ProjectorFile, text: TextFile) -> Values:
    outputs = file.outputs("mm.model.mlp.1.weight")
    own = {
        "pixel_shuffle_ratio": 1 / file.vision.integer("projector.scale_factor", 2),
        **dict.fromkeys(("projector_input_dim", "projector_output_dim"), outputs),
    }
    return {"vision_config": {**file.tower(), **own}}


def gemma4(file: ProjectorFile, text: TextFile) -> Values:
    """No key has the number of key heads."""
    vision, table = file.vision, file.shapes.get("v.position_embd.weight", ())
    if len(table) != 3 or table[2] != 2:
        raise ConfigError(f"v.position_embd.weight has the shape {list(table)}, expected rows of columns and of rows")
    heads = vision.integer("attention.head_count")
    head_dim = file.outputs("v.blk.0.attn_q.weight") // heads or 1
    own = {
        "num_key_value_heads": file.outputs("v.blk.0.attn_k.weight") // head_dim,
        "head_dim": head_dim,
        "rms_norm_eps": vision.number("attention.layer_norm_epsilon"),
        "position_embedding_size": table[1],
        "pooling_kernel_size": vision.integer("projector.scale_factor", 3),
        "standardize": "v.std_scale" in file.shapes,
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in file.shapes,
    }
    unsaid = ("image_size", "layer_norm_eps")
    tower = {name: value for name, value in file.tower().items() if name not in unsaid}
    text_config = {**decoder(text, "gemma4_text"), "layer_types": ["full_attention"]}
    return {"text_config": text_config, "audio_config": None, "vision_config": {**tower, **own}}
