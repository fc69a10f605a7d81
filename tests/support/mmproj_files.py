"""Tiny models that see as two GGUF files, text and projector, written as llama.cpp's converters write them.

Names of tensors are those that the gguf package maps published names to; what the converters change is written here a
second time, in their direction.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import gguf
import torch
from safetensors.torch import load_file

from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.tests.engine.loading.gguf_families import write_family
from stentor.tests.engine.loading.gguf_writing import add_value, finish
from stentor.tests.engine.loading.k_quants import quantize
from stentor.tests.engine.loading.tiny_gguf import as_converted, experts_apart, write_metadata
from stentor.tests.support.mmproj_sounds import HEARING, converted_sounds, said_of_sounds
from stentor.tests.support.vision_models import PAD, SPECIAL, VOCAB, token

Named = Iterator[tuple[str, torch.Tensor]]
MERGED: Final = VOCAB - 1
"""A token of two bytes that no text has: a vocabulary must have a merge."""
TEXTS: Final[Mapping[str, str]] = {
    "idefics3": "llama",
    "smolvlm": "llama",
    "llava": "llama",
    "pixtral": "llama",
    "mistral3": "llama",
    "gemma3": "gemma3",
    "qwen2_vl": "qwen2vl",
    "qwen2_5_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "internvl": "qwen2",
    "lfm2_vl": "lfm2",
    "kimi_vl": "deepseek2",
    "kimi_k25": "deepseek2",
    "glm4v": "glm4",
    "glm4v_moe": "glm4moe",
    "gemma4_large": "gemma4",
    "ultravox": "llama",
    "voxtral": "llama",
    "qwen2_audio": "qwen2",
    "qwen3_asr": "qwen3vl",
    "granite_speech": "granite",
    "qwen2_5_omni": "qwen2vl",
    "qwen3_omni": "qwen3vlmoe",
    "gemma4_hears": "gemma4",
    "lighton_ocr": "qwen3",
    "llama4": "llama4",
}
"""The architecture of the text file, by the family of :data:`.vision_models.FAMILIES` or of the parity tests."""
PROJECTORS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("idefics3", "smolvlm"), "idefics3"),
    **dict.fromkeys(("pixtral", "mistral3"), "pixtral"),
    "llava": "mlp",
    "gemma3": "gemma3",
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen3vl_merger"),
    "internvl": "internvl",
    "lfm2_vl": "lfm2",
    "kimi_vl": "kimivl",
    "kimi_k25": "kimik25",
    **dict.fromkeys(("glm4v", "glm4v_moe"), "glm4v"),
    "gemma4_large": "gemma4v",
    "ultravox": "ultravox",
    "voxtral": "voxtral",
    "qwen2_audio": "qwen2a",
    "qwen3_asr": "qwen3a",
    "granite_speech": "granite_speech",
    "qwen2_5_omni": "qwen2.5o",
    "qwen3_omni": "qwen3vl_merger+qwen3a",
    "gemma4_hears": "gemma4v+gemma4a",
    "lighton_ocr": "lightonocr",
    "llama4": "llama4",
}
_SOUND: Final = token("<video>")
"""Of tiny models that hear."""
_GLM: Final = {token("<|image_pad|>"): "<|image|>", token("<|video_pad|>"): "<|video|>"}
_GEMMA4: Final = {
    **{token("<image_soft_token>"): "<|image|>", token("<video>"): "<|video|>"},
    **{token("<start_of_image>"): "<|image>", token("<end_of_image>"): "<image|>"},
}
SPELLED: Final = {
    "kimi_vl": {token("<|image_pad|>"): "<|media_pad|>"},
    "kimi_k25": {token("<|image_pad|>"): "<|media_pad|>"},
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "gemma4_large": _GEMMA4,
    "gemma4_hears": {**_GEMMA4, token("<image>"): "<|audio|>"},
    "lighton_ocr": {token("[IMG]"): "<|image_pad|>", token("<|image_pad|>"): "<other>"},
    "llama4": {
        **{token("<image>"): "<|patch|>", token("<IMG_CONTEXT>"): "<|image|>", token("<img>"): "<|image_start|>"},
        **{token("</img>"): "<|image_end|>", token("<row_1_col_1>"): "<|tile_x_separator|>"},
        token("<row_1_col_2>"): "<|tile_y_separator|>",
    },
    "ultravox": {_SOUND: "<|reserved_special_token_247|>"},
    "voxtral": {_SOUND: "[AUDIO]"},
    "qwen2_audio": {
        **{_SOUND: "<|AUDIO|>", token("<|vision_start|>"): "<|audio_bos|>"},
        token("<|vision_end|>"): "<|audio_eos|>",
    },
    "qwen3_asr": {_SOUND: "<|audio_pad|>"},
    "qwen3_omni": {_SOUND: "<|audio_pad|>"},
    "qwen2_5_omni": {
        **{_SOUND: "<|AUDIO|>", token("<|image_pad|>"): "<|IMAGE|>"},
        token("<|video_pad|>"): "<|VIDEO|>",
    },
    "granite_speech": {_SOUND: "<|audio|>"},
}
"""Other spellings of tokens, by family and id."""


def write_pair(folder: Path, model: Any, family: str, target: Path | None = None) -> Path:
    """The text file; the projector file lies beside it. ``folder`` holds the model's processor and template."""
    target = target or folder / "gguf"
    target.mkdir(exist_ok=True)
    write_text(target / "m.gguf", model, TEXTS[family], folder, SPELLED.get(family))
    write_mmproj(target / "mmproj-m.gguf", model, family, folder)
    return target / "m.gguf"


def write_text(path: Path, model: Any, arch: str, folder: Path, tokens: Mapping[int, str] | None = None) -> None:
    """``tokens``: other spellings of tokens, by id."""
    alone = getattr(model, "text", None)  # of a composed model
    config = model.config.get_text_config() if alone is None else alone.config
    text = SimpleNamespace(config=config, state_dict=lambda: _of_text(model) if alone is None else alone.state_dict())
    sections = [*(config.rope_parameters or {}).get("mrope_section", ())]
    if arch in ("qwen35", "qwen35moe", "lfm2", "deepseek2", "glm4moe", "gemma4", "llama4"):
        said = {"rope.dimension_sections": [*sections, 0], "rope.dimension_count": 2 * sum(sections)}
        said = said if sections else {}
        write_family(
            path, text, arch, metadata=said, vocabulary=lambda each: _add_vocabulary(each, folder, tokens or {})
        )
        return
    writer = gguf.GGUFWriter(path, arch)
    write_metadata(writer, config, arch, vocabulary=False)
    if arch == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if sections:
        writer.add_rope_dimension_sections([*sections, 0])
    if (experts := getattr(config, "num_experts", None)) is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    _add_vocabulary(writer, folder, tokens or {})
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in experts_apart(text.state_dict()):
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        if arch == "glm4" and sections:
            tensor = _halved(name, tensor, config, 2 * sum(sections))
        writer.add_tensor(stored, as_converted(tensor.float().numpy(), name, config, arch))
    finish(writer)


def _halved(name: str, tensor: torch.Tensor, config: Any, turning: int) -> torch.Tensor:
    """Rows of queries and keys that turn by row and column: from interleaved pairs to halves."""
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if f"self_attn.{part}." in name:
            rows = tensor.view(heads, -1, *tensor.shape[1:])
            turns = rows[:, :turning]
            return torch.cat((turns[:, ::2], turns[:, 1::2], rows[:, turning:]), dim=1).reshape(tensor.shape)
    return tensor


def _of_text(model: Any) -> dict[str, torch.Tensor]:
    """Its tensors as a model of text alone has them, without a head that is the embedding."""
    whole = getattr(model, "model", model)  # Llama 4 has its parts one deeper in each other
    inner = getattr(whole, "language_model", None) or whole.text_model
    if whole is model:
        return dict(inner.state_dict())
    weights = {f"model.{name}": tensor for name, tensor in inner.state_dict().items()}
    if model.lm_head.weight is not inner.embed_tokens.weight:
        weights["lm_head.weight"] = model.lm_head.weight.detach()
    return weights


def _add_vocabulary(writer: Any, folder: Path, others: Mapping[int, str]) -> None:
    spelled = byte_alphabet()
    tokens = [*(spelled[byte] for byte in range(256)), *SPECIAL]
    tokens += [f"<unused{id}>" for id in range(len(tokens), MERGED)] + [spelled[0xC0] + spelled[0xC1]]
    kinds = [gguf.TokenType.NORMAL] * VOCAB
    kinds[256:MERGED] = [gguf.TokenType.CONTROL] * (MERGED - 256)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([others.get(id, each) for id, each in enumerate(tokens)])
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{spelled[0xC0]} {spelled[0xC1]}"])
    writer.add_bos_token_id(token("<s>"))
    writer.add_eos_token_id(token("</s>"))
    writer.add_pad_token_id(token(PAD))
    writer.add_add_bos_token(False)
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())


def write_mmproj(
    path: Path,
    model: Any,
    family: str,
    folder: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Matrices of layers are stored as ``kind``, and where that is float16 all of what hears; ``metadata`` is what is
    said otherwise, None for what is not said."""
    import transformers

    own = (folder / "preprocessor_config.json").is_file() and PROJECTORS[family] not in _OF_TORCHVISION
    writer, sees = gguf.GGUFWriter(path, "clip"), PROJECTORS[family] in _OWN
    writer.add_type(gguf.GGUFType.MMPROJ)
    said: dict[str, Any] = {}
    if sees:
        images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil") if own else _PLAIN
        said |= _said(model.config, family, images)
    if PROJECTORS[family] in HEARING:
        said |= said_of_sounds(folder, PROJECTORS[family])
    for key, value in {**said, **(metadata or {})}.items():
        add_value(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    tensors = [*(_converted(model, family, folder) if sees else ())]
    tensors += converted_sounds(folder, PROJECTORS[family]) if PROJECTORS[family] in HEARING else ()
    for name, tensor in tensors:
        stored = name if name.startswith(("v.", "mm.")) else names.get_name(name, _ENDINGS)
        assert stored is not None, name
        values = tensor.detach().float().contiguous().numpy()
        if kind == gguf.GGMLQuantizationType.F16 and stored.startswith(("a.", "mm.a.")) and values.ndim > 1:
            writer.add_tensor(stored, values.astype("float16"))
        elif ".blk." in stored and values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(stored, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    finish(writer)


_ENDINGS: Final = (".weight", ".bias", *(f".{side}put_{bound}" for side in ("in", "out") for bound in ("min", "max")))
_OF_TORCHVISION: Final = ("lfm2", "kimivl", "kimik25", "llama4")
_PLAIN: Final = SimpleNamespace(image_mean=[0.5] * 3, image_std=[0.5] * 3)
"""Of models that are saved without a processor, or with one that transformers has for torchvision alone."""


def _first(size: Any) -> int:
    return int(size[0] if isinstance(size, list | tuple) else size)


def _said(config: Any, family: str, images: Any) -> dict[str, Any]:
    vision, hidden = config.vision_config, config.get_text_config().hidden_size
    layers = getattr(vision, "num_hidden_layers", None) or vision.depth
    width = getattr(vision, "embed_dim", None) or vision.hidden_size
    patch = _first(vision.patch_size)
    eps = getattr(vision, "layer_norm_eps", None) or getattr(vision, "rms_norm_eps", None)
    eps = eps or (1e-5 if vision.model_type == "pixtral" else 1e-6)
    said: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": PROJECTORS[family],
        "clip.vision.projection_dim": hidden,
        "clip.vision.image_size": _first(getattr(vision, "image_size", None) or 560),
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": getattr(vision, "intermediate_size", None) or vision.hidden_size,
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": getattr(vision, "num_attention_heads", None) or vision.num_heads,
        "clip.vision.attention.layer_norm_epsilon": float(eps),
        "clip.vision.image_mean": [float(each) for each in images.image_mean],
        "clip.vision.image_std": [float(each) for each in images.image_std],
        **_OWN[PROJECTORS[family]](config, images),
    }
    if said["clip.projector_type"] == "mlp":
        taken = layers + 1 + config.vision_feature_layer
        said |= {"clip.vision.block_count": taken, "clip.vision.feature_layer": [taken], "clip.use_gelu": False}
        said |= {"clip.has_llava_projector": True, "clip.vision.projection_dim": vision.projection_dim}
    return said


def _of_idefics(config: Any, images: Any) -> dict[str, Any]:
    return {
        "clip.vision.projector.scale_factor": config.scale_factor,
        "clip.use_gelu": True,
        "clip.vision.preproc_image_size": images.size["longest_edge"],
    }


def _of_gemma(config: Any, images: Any) -> dict[str, Any]:
    side = config.vision_config.image_size // config.vision_config.patch_size
    scale = side // int(config.mm_tokens_per_image**0.5)
    return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": scale}


def _of_pixtral(config: Any, images: Any) -> dict[str, Any]:
    merge = getattr(config, "spatial_merge_size", None)
    said = {f"clip.use_{config.vision_config.hidden_act}": True}
    return said | ({"clip.vision.spatial_merge_size": merge} if merge else {})


def _bounds(config: Any, images: Any) -> dict[str, Any]:
    size = getattr(images, "size", None)
    if size is None:
        return {}
    return {
        "clip.vision.image_min_pixels": size["shortest_edge"],
        "clip.vision.image_max_pixels": size["longest_edge"],
    }


def _of_qwen2_5(config: Any, images: Any) -> dict[str, Any]:
    pattern = config.vision_config.fullatt_block_indexes[0] + 1
    return {"clip.use_silu": True, "clip.vision.n_wa_pattern": pattern, **_bounds(config, images)}


def _of_qwen3(config: Any, images: Any) -> dict[str, Any]:
    vision = config.vision_config
    taps = [layer in getattr(vision, "deepstack_visual_indexes", ()) for layer in range(vision.depth)]
    return {
        "clip.use_gelu": True,
        "clip.vision.spatial_merge_size": vision.spatial_merge_size,
        "clip.vision.is_deepstack_layers": taps,
        "clip.vision.projector_type": "qwen3vl_merger",
        **_bounds(config, images),
    }


def _of_internvl(config: Any, images: Any) -> dict[str, Any]:
    return {
        "clip.use_gelu": True,
        "clip.vision.projector.scale_factor": int(1 / config.downsample_ratio),
        "clip.vision.preproc_min_tiles": images.min_patches,
        "clip.vision.preproc_max_tiles": images.max_patches,
    }


def _of_lfm2(config: Any, images: Any) -> dict[str, Any]:
    return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": config.downsample_factor}


def _of_kimi_vl(config: Any, images: Any) -> dict[str, Any]:
    return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": config.vision_config.merge_kernel_size[0]}


def _of_llama4(config: Any, images: Any) -> dict[str, Any]:
    scale = int(1 / config.vision_config.pixel_shuffle_ratio)
    return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": scale}


def _of_gemma4(config: Any, images: Any) -> dict[str, Any]:
    """Its type stands where that of several encoders would."""
    return {
        "clip.projector_type": None,
        "clip.vision.projector_type": "gemma4v",
        "clip.vision.projector.scale_factor": config.vision_config.pooling_kernel_size,
    }


_OWN: Final[Mapping[str, Callable[[Any, Any], dict[str, Any]]]] = {
    "idefics3": _of_idefics,
    "gemma3": _of_gemma,
    "mlp": lambda config, images: {},
    "pixtral": _of_pixtral,
    "qwen2vl_merger": lambda config, images: {},
    "qwen2.5vl_merger": _of_qwen2_5,
    "qwen3vl_merger": _of_qwen3,
    "internvl": _of_internvl,
    "lfm2": _of_lfm2,
    **dict.fromkeys(("kimivl", "kimik25"), _of_kimi_vl),
    "glm4v": lambda config, images: {"clip.use_silu": True},
    **dict.fromkeys(("gemma4v", "gemma4v+gemma4a"), _of_gemma4),
    "qwen2.5o": _of_qwen2_5,
    "qwen3vl_merger+qwen3a": _of_qwen3,
    "lightonocr": _of_pixtral,
    "llama4": _of_llama4,
}

_PUBLISHED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "idefics3": (),
    "gemma3": ((r"\Amodel\.", ""), (r"\Avision_tower\.", "vision_tower.vision_model."), ("_weight", ".weight")),
    "mlp": (
        (r"\Amodel\.", ""),
        (r"\Avision_tower\.", "vision_tower.vision_model."),
        (r"\Amulti_modal_projector\.linear_1", "mm.0"),
        (r"\Amulti_modal_projector\.linear_2", "mm.2"),
        (r"\Avision_tower\.vision_model\.pre_layrnorm", "v.pre_ln"),
    ),
    "pixtral": ((r"\Amodel\.", ""),),
    "qwen2vl_merger": ((r"\Amodel\.", ""),),
    "qwen2.5vl_merger": ((r"\Amodel\.", ""),),
    "qwen3vl_merger": (
        (r"\Amodel\.", ""),
        (r"\Avisual\.merger\.linear_fc1\.", "visual.merger.mlp.0."),
        (r"\Avisual\.merger\.linear_fc2\.", "visual.merger.mlp.2."),
        (r"\Avisual\.merger\.norm\.", "visual.merger.ln_q."),
    ),
    "internvl": (
        (r"(lambda_\d|position_embeddings)\Z", r"\1.weight"),
        (r"\Amodel\.multi_modal_projector\.layer_norm", "mlp1.0"),
        (r"\Amodel\.multi_modal_projector\.linear_1", "mlp1.1"),
        (r"\Amodel\.multi_modal_projector\.linear_2", "mlp1.3"),
    ),
    "lfm2": ((r"\Amodel\.", ""), (r"\Avision_tower\.", "vision_tower.vision_model.")),
    "kimivl": (),
    "kimik25": (
        (r"mm_projector\.proj\.0", "mm_projector.proj.linear_1"),
        (r"mm_projector\.proj\.2", "mm_projector.proj.linear_2"),
    ),
    "glm4v": ((r"\Amodel\.", ""),),
    **dict.fromkeys(
        ("gemma4v", "gemma4v+gemma4a"),
        (
            (r"\Amodel\.vision_tower\.encoder\.", "vision_model.model."),
            (r"\.linear\.weight", ".weight"),
            (r"position_embedding_table", "position_embedding_table.weight"),
        ),
    ),
    "qwen2.5o": ((r"\Amodel\.", ""),),
    "qwen3vl_merger+qwen3a": (
        (r"\Amodel\.", ""),
        (r"merger_list\.(\d+)\.ln_q", r"deepstack_merger_list.\1.norm"),
        (r"merger_list\.(\d+)\.mlp\.0", r"deepstack_merger_list.\1.linear_fc1"),
        (r"merger_list\.(\d+)\.mlp\.2", r"deepstack_merger_list.\1.linear_fc2"),
    ),
    "lightonocr": (
        (r"\Amodel\.vision_encoder\.", "vision_tower."),
        (r"\Amodel\.vision_projection\.", "multi_modal_projector."),
    ),
    "llama4": (
        (r"\Avision_model\.class_embedding", "v.class_embd"),
        (r"\Avision_model\.positional_embedding_vlm", "v.position_embd.weight"),
        (r"\Avision_model\.model\.layers\.(\d+)\.post_attention_layernorm", r"v.blk.\1.ln2"),
        (r"\Amulti_modal_projector\.linear_1", "mm.model.fc"),
    ),
}
"""From transformers' names to those that converters know."""


def _converted(model: Any, family: str, folder: Path) -> Named:
    """Of Kimi-VL, which transformers has under other names alone, from the files in ``folder``."""
    kind, vision = PROJECTORS[family], model.config.vision_config
    tensors = load_file(folder / "model.safetensors") if kind in ("kimivl", "kimik25") else model.state_dict()
    for name, tensor in tensors.items():
        if any(part in name for part in ("language_model", "text_model", "audio")) or name == "lm_head.weight":
            continue
        if kind == "mlp" and _is_behind(name, vision.num_hidden_layers + model.config.vision_feature_layer):
            continue
        for pattern, put in _PUBLISHED[kind]:
            name = re.sub(pattern, put, name)
        yield from _changed(name, tensor, kind, vision)


def _apart(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Pairs that turn by column before those that turn by row."""
    return rows.view(heads, -1, 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _is_behind(name: str, last: int) -> bool:
    """Whether a tensor stands behind the layer of this number."""
    layer = re.search(r"encoder\.layers\.(\d+)\.", name)
    return "post_layernorm" in name if layer is None else int(layer[1]) > last


def _changed(name: str, tensor: torch.Tensor, kind: str, vision: Any) -> Named:
    if name.endswith("soft_emb_norm.weight"):
        yield name, tensor + 1
    elif not tensor.dim():
        yield name, tensor.view(1)
    elif name.endswith("patch_embed.proj.weight") and kind not in ("kimivl", "kimik25"):
        yield from (("v.patch_embd.weight", tensor[:, :, 0]), ("v.patch_embd.weight.1", tensor[:, :, 1]))
    elif kind in ("gemma4v", "gemma4v+gemma4a", "lfm2") and name.endswith(
        ("input_proj.weight", "patch_embedding.weight")
    ):
        yield name, tensor.view(len(tensor), vision.patch_size, vision.patch_size, 3).permute(0, 3, 1, 2)
    elif kind == "kimivl" and "pos_emb.weight" in name:
        yield name, tensor.flatten(0, 1)
    elif kind == "kimik25" and ".wqkv." in name:
        q, k, v = tensor.chunk(3)
        yield name, torch.cat([*(_apart(each, vision.num_attention_heads) for each in (q, k)), v])
    elif ".wqkv." in name:
        yield from ((name.replace("wqkv", f"w{part}"), each) for part, each in zip("qkv", tensor.chunk(3), strict=True))
    elif ".qkv." in name and kind not in ("qwen3vl_merger", "qwen3vl_merger+qwen3a", "glm4v"):
        yield from ((name.replace("qkv", part), each) for part, each in zip("qkv", tensor.chunk(3), strict=True))
    elif (tap := re.search(r"deepstack_merger_list\.(\d+)\.(\w+)\.(\w+)", name)) is not None:
        layer = vision.deepstack_visual_indexes[int(tap[1])]
        part = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}[tap[2]]
        yield f"v.deepstack.{layer}.{part}.{tap[3]}", tensor
    elif kind in ("pixtral", "lightonocr") and (".q_proj." in name or ".k_proj." in name):
        heads = vision.num_attention_heads
        yield name, tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    else:
        yield name, tensor
