"""Tiny random models that see tiles, whose classes or towers transformers does not have: Eagle 2.5, Nemotron Nano VL,
Perception LM and Step3-VL, R-4B, Bee."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.hub_step5 import step5_vl
from stentor.tests.parity.pictures import PICTURES, Kind, Picture, cat
from stentor.tests.parity.reading import READING
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


class Tiled(torch.nn.Module):
    """SigLIP's tower over tiles, and two products of each square of four patches (Eagle 2.5)."""

    def __init__(self, vision: Mapping[str, Any], layer: int) -> None:
        super().__init__()
        config = transformers.SiglipVisionConfig(**vision, vision_use_head=False)
        self.vision_model = transformers.SiglipVisionModel(config)
        self.layer, joined = layer, 4 * vision["hidden_size"]
        products = torch.nn.Linear(joined, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
        self.mlp1 = torch.nn.Sequential(torch.nn.LayerNorm(joined), *products)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.vision_model(pixel_values, output_hidden_states=True)
        patches = found.last_hidden_state if self.layer == -1 else found.hidden_states[self.layer]
        side = int(patches.shape[1] ** 0.5)
        squares = patches.view(len(patches), side // 2, 2, side // 2, 2, -1).transpose(2, 3)
        made: torch.Tensor = self.mlp1(squares.flatten(3).flatten(0, 2))
        return made


def eagle(folder: Path, *, layer: int = -2) -> Composed:
    """``layer``: whose output is taken; -1: that of the last, normed."""
    text = transformers.Qwen2Config(**TEXT, tie_word_embeddings=False)
    vision = {**SIZES, "patch_size": PATCH, "image_size": SIDE}
    config = {
        **{"architectures": ["Eagle2_5_VLForConditionalGeneration"], "model_type": "eagle_2_5_vl"},
        **{"text_config": text.to_dict(), "vision_config": {**vision, "model_type": "siglip_vision_model"}},
        **{"image_token_index": token("<IMG_CONTEXT>"), "select_layer": layer, "downsample_ratio": 0.5},
        **{"use_backbone_lora": 0, "use_llm_lora": 0, "mlp_connector_layers": 2},
    }

    def make() -> Composed:
        return Composed(transformers.Qwen2ForCausalLM(text), Tiled(vision, layer), token("<IMG_CONTEXT>"))

    def named(name: str) -> str:
        known = name.startswith(("mlp1.", "vision_model.vision_model."))
        return name if known else name.replace("vision_model.", "vision_model.vision_model.", 1)

    model: Composed = randomised("eagle2_5", make)
    model.save(folder, config, "language_model.", named)
    return model


def _in_tiles(random: torch.Generator, size: int) -> Picture:
    tiles = (1, 3)[size]
    pixels = torch.randn(tiles, 3, SIDE, SIDE, generator=random)
    return Picture({"pixel_values": pixels}, [token("<IMG_CONTEXT>")] * (tiles * (SIDE // PATCH // 2) ** 2))


class _Radio(torch.nn.Module):
    """transformers' C-RADIO over tiles, and two products of each square of four patches (Nemotron Nano VL)."""

    def __init__(self, products: torch.nn.Sequential) -> None:
        super().__init__()
        config = transformers.RadioConfig(
            **{name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
            **{"mlp_ratio": SIZES["intermediate_size"] / SIZES["hidden_size"], "patch_size": PATCH},
            **{"max_img_size": 6 * PATCH, "image_size": SIDE, "num_cls_tokens": 2, "num_registers": 2},
        )
        self.vision_model = transformers.RadioModel(config)
        self.vision_model.make_preprocessor_external()
        self.mlp1 = products

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        patches = self.vision_model(pixel_values).features
        side = int(patches.shape[1] ** 0.5)
        squares = patches.view(len(patches), side // 2, 2, side // 2, 2, -1).transpose(2, 3)
        made: torch.Tensor = self.mlp1(squares.flatten(3).flatten(0, 2))
        return made


class _SquaredReLU(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) ** 2


_RADIO_NAMES: Final = {
    "vision_model.embeddings.patch_projection": "patch_generator.embedder",
    "vision_model.embeddings.position_embedding": "patch_generator.pos_embed",
    "vision_model.embeddings.cls_register_token": "patch_generator.cls_token.token",
    "vision_model.encoder.layer.": "blocks.",
}
"""Published names, behind ``vision_model.radio_model.model.``."""


def _nemotron_vl(folder: Path, name: str, text: Any, make_text: Callable[[], Any], products: list[Any]) -> Composed:
    picture = token("<image>")
    config = {
        **{"architectures": [name], "model_type": name, "llm_config": text.to_dict(), "force_image_size": SIDE},
        **{"img_context_token_id": picture, "downsample_ratio": 0.5, "projector_hidden_size": 48, "ps_version": "v2"},
        **{"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3, "use_thumbnail": True, "patch_size": PATCH},
        "vision_config": {
            **SIZES,
            **{"model_type": "radio", "patch_size": PATCH},
            "args": {
                **{"model": "vit_huge_patch16_224", "cpe_max_size": 6 * PATCH, "register_multiple": 4},
                **{"cls_token_per_teacher": True, "teachers": [{"name": each} for each in ("clip", "dino", "clip")]},
            },
        },
    }
    model: Composed = randomised(name, lambda: Composed(make_text(), _Radio(torch.nn.Sequential(*products)), picture))

    with torch.no_grad():
        for scale in (each for name, each in model.named_parameters() if "layer_scale" in name):
            scale.fill_(1.0)  # published files have none

    def named(own: str) -> str:
        for begin, published in _RADIO_NAMES.items():
            if own.startswith(begin):
                return f"vision_model.radio_model.model.{published}{own.removeprefix(begin)}"
        return own

    model.save(folder, config, "language_model.", named)
    _join_heads(folder, "backbone." if text.model_type == "nemotron_h" else "model.")
    return model


def _join_heads(folder: Path, decoder: str) -> None:
    """Queries, keys and values as one product, as published; ``decoder``: what its layers' names begin with there."""
    file = folder / "model.safetensors"
    found = load_file(file)
    parts = ("q_proj", "k_proj", "v_proj")
    for name in [name for name in found if ".attention.q_proj." in name]:
        joint = torch.cat([found.pop(name.replace("q_proj", part)) for part in parts])
        found[name.replace("attention.q_proj", "attn.qkv")] = joint
    renamed = {"language_model.model.": f"language_model.{decoder}", ".attention.o_proj.": ".attn.proj."}
    for own, published in renamed.items():
        found = {name.replace(own, published): tensor for name, tensor in found.items()}
    scales = [
        name for name in found if "layer_scale" in name or "vision_model.summary" in name or "conditioner" in name
    ]
    for name in scales:
        del found[name]
    save_file(found, file)


def llama_nemotron_vl(folder: Path) -> Composed:
    text = transformers.LlamaConfig(**TEXT)
    joined = 4 * SIZES["hidden_size"]
    products = [torch.nn.LayerNorm(joined), torch.nn.Linear(joined, 48), torch.nn.GELU(), torch.nn.Linear(48, 64)]
    return _nemotron_vl(folder, "Llama_Nemotron_Nano_VL", text, lambda: transformers.LlamaForCausalLM(text), products)


def nemotron_h_vl(folder: Path) -> Composed:
    sizes = {name: value for name, value in TEXT.items() if name != "num_hidden_layers"}
    text = transformers.NemotronHConfig(
        **sizes,
        **{"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "mamba_num_heads": 8},
        **{"mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "head_dim": 16, "tie_word_embeddings": False},
    )
    joined = 4 * SIZES["hidden_size"]
    products = [
        torch.nn.RMSNorm(joined, 1e-5),
        torch.nn.Linear(joined, 48, False),
        _SquaredReLU(),
        torch.nn.Linear(48, 64, False),
    ]
    return _nemotron_vl(folder, "NemotronH_Nano_VL_V2", text, lambda: transformers.NemotronHForCausalLM(text), products)


class _Stepping(torch.nn.Module):
    """The tower and projector of transformers' Step 3.7 (Step3-VL)."""

    def __init__(self, vision: Mapping[str, Any]) -> None:
        super().__init__()
        text = {**TEXT, "num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": ["dense"]}
        config = transformers.Step3p7Config(text_config=text, vision_config=dict(vision), image_token_id=_PATCH)
        self.whole = transformers.Step3p7ForConditionalGeneration(config)

    def forward(self, **media: Any) -> torch.Tensor:
        found: torch.Tensor = torch.cat([*self.whole.get_image_features(**media).pooler_output])
        return found


_PATCH: Final = token("<image>")


def step_vl(folder: Path) -> Composed:
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    vision: dict[str, Any] = {
        "width": 32,
        "layers": 2,
        "heads": 2,
        "mlp_ratio": 1.5,
        "image_size": SIDE,
        "patch_size": PATCH,
    }
    vision |= {"hidden_act": "quick_gelu", "ls_init_value": 0.1}
    flags = {"use_ln_pre": True, "use_ln_post": False, "use_cls_token": False, "use_abs_posemb": True}
    config = {
        **{"architectures": ["StepVLForConditionalGeneration"], "model_type": "as_published"},
        **{"text_config": text.to_dict(), "vision_config": {**vision, **flags, "use_rope2d": True}},
        **{"image_token_id": _PATCH, "projector_bias": False, "tie_word_embeddings": False},
    }

    def make() -> Composed:
        tower = _Stepping({**vision, "max_position_embeddings": (SIDE // PATCH) ** 2})
        return Composed(transformers.Qwen3ForCausalLM(text), tower, _PATCH)

    model: Composed = randomised("step_vl", make)
    with tempfile.TemporaryDirectory() as other:  # transformers knows the published names of the tower
        model.tower.whole.save_pretrained(other)  # type: ignore[operator,union-attr]
        seen = load_file(Path(other) / "model.safetensors")
    model.save(folder, config, "", lambda name: f"unused.{name}")
    tensors = {name: each for name, each in load_file(folder / "model.safetensors").items() if "unused" not in name}
    tower = {name: each for name, each in seen.items() if name.startswith(("vision_model.", "vit_large_projector."))}
    assert tower, "published names"
    save_file({**tensors, **tower}, folder / "model.safetensors")
    return model


def _whole_and_squares(random: torch.Generator, size: int) -> Picture:
    """A whole of one embedding, and for the second size two squares of four before it."""
    tensors = {"pixel_values": torch.randn(1, 3, SIDE, SIDE, generator=random)}
    tensors["num_local_patches"] = torch.tensor([2 * size])
    if size:
        tensors["pixel_values_local"] = torch.randn(2, 3, 8 * PATCH, 8 * PATCH, generator=random)
    squares = [token("<start_of_image>"), *[_PATCH] * 4, token("<end_of_image>")] * 2 * size
    return Picture(tensors, [*squares, token("<img>"), _PATCH, token("</img>")])


def _one_by_one(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Those that only some pictures have too."""
    names = {name for part in parts for name in part}
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in names}


def _four_a_tile(random: torch.Generator, size: int) -> Picture:
    made = _in_tiles(random, size)
    return Picture(made.tensors, [token("<image>")] * len(made.tokens))


class _Encoding(torch.nn.Module):
    """A Perception Encoder, plainly, with timm's names of its parameters."""

    def __init__(self, width: int, layers: int, side: int, *, class_token: bool) -> None:
        super().__init__()
        made: Any = torch.nn.Module()
        self.timm_model = made
        made.cls_token = torch.nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        made.pos_embed = torch.nn.Parameter(torch.zeros(1, side * side + class_token, width))
        made.patch_embed = torch.nn.Module()
        made.patch_embed.proj = torch.nn.Conv2d(3, width, PATCH, PATCH, bias=False)
        made.norm_pre = torch.nn.LayerNorm(width, 1e-5)
        made.blocks = torch.nn.ModuleList(self._block(width) for _ in range(layers))
        made.norm = torch.nn.Identity() if class_token else torch.nn.LayerNorm(width, 1e-5)
        self._side = side

    def _block(self, width: int) -> torch.nn.Module:
        block: Any = torch.nn.Module()
        block.norm1, block.norm2 = torch.nn.LayerNorm(width, 1e-5), torch.nn.LayerNorm(width, 1e-5)
        block.attn, block.mlp = torch.nn.Module(), torch.nn.Module()
        block.attn.qkv, block.attn.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        block.mlp.fc1, block.mlp.fc2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        block.gamma_1, block.gamma_2 = (torch.nn.Parameter(torch.ones(width)) for _ in range(2))
        made: torch.nn.Module = block
        return made

    def forward(self, pixel_values: torch.Tensor, **_: object) -> Any:
        made: Any = self.timm_model
        x = made.patch_embed.proj(pixel_values).flatten(2).transpose(1, 2)  # [pictures, patches, width]
        before = 0
        if made.cls_token is not None:
            x, before = torch.cat((made.cls_token.expand(len(x), -1, -1), x), 1), 1
        x = made.norm_pre(x + made.pos_embed)
        for block in made.blocks:
            x = x + block.gamma_1 * self._attended(block.attn, block.norm1(x), before)
            x = x + block.gamma_2 * block.mlp.fc2(torch.nn.functional.gelu(block.mlp.fc1(block.norm2(x))))
        return transformers.modeling_outputs.BaseModelOutputWithPooling(last_hidden_state=made.norm(x))

    def _attended(self, attn: Any, x: torch.Tensor, before: int) -> torch.Tensor:
        q, k, v = attn.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)  # [pictures, heads, tokens, dim]
        q, k = (torch.cat((each[:, :, :before], self._turned(each[:, :, before:])), 2) for each in (q, k))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        made: torch.Tensor = attn.proj(found.transpose(1, 2).flatten(2))
        return made

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Pairs of neighbouring dimensions turned as complex numbers: half of them by column, half by row, from 1
        on."""
        bands = 10_000.0 ** -(torch.arange(x.shape[-1] // 4) / (x.shape[-1] // 4))
        at = torch.arange(1, self._side + 1, dtype=torch.float32)
        column, row = at.repeat(self._side), at.repeat_interleave(self._side)
        angles = torch.cat((torch.outer(column, bands), torch.outer(row, bands)), 1)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angles)
        return torch.view_as_real(turned).flatten(-2)


def perception_lm(folder: Path, *, class_token: bool) -> Any:
    side = SIDE // PATCH

    def make() -> Any:
        config = transformers.PerceptionLMConfig(
            text_config={"model_type": "llama", **TEXT},
            vision_config={"model_type": "siglip_vision_model", **SIZES, "model_args": {"embed_dim": 64}},
            vision_use_cls_token=class_token,
            projector_pooling_ratio=2,
            image_token_id=token("<image>"),
            video_token_id=token("<video>"),
        )
        model = transformers.PerceptionLMForConditionalGeneration(config)
        model.model.vision_tower = _Encoding(64, 2, side, class_token=class_token)
        return model

    model = randomised("perception_lm", make)
    model.save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    sizes = {"embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "patch_size": PATCH, "init_values": 0.1}
    described["vision_config"] = {
        "model_type": "timm_wrapper",
        "architecture": f"vit_pe_{'lang_large' if class_token else 'core_gigantic'}_patch14_448",
        "model_args": {**sizes, "img_size": [SIDE, SIDE], "ref_feat_shape": [side, side], "global_pool": ""},
    }
    (folder / "config.json").write_text(json.dumps(described))
    return model


def _pooled(random: torch.Generator, size: int) -> Picture:
    """The whole, or that and two tiles."""
    tiles = 1 + 2 * size
    pixels = torch.randn(1, tiles, 3, SIDE, SIDE, generator=random)
    return Picture({"pixel_values": pixels}, [token("<image>")] * 4 * tiles)


class _Normed(torch.nn.Module):
    """A projector behind a norm."""

    def __init__(self, inputs: int, inner: int) -> None:
        super().__init__()
        self.pre_norm = torch.nn.LayerNorm(inputs, eps=1e-6)
        self.linear_1, self.linear_2 = torch.nn.Linear(inputs, inner), torch.nn.Linear(inner, 64)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear_2(torch.nn.functional.gelu(self.linear_1(self.pre_norm(patches))))
        return found


def normed_onevision(folder: Path, *, name: str, wider: int, most: int = 9) -> Any:
    """A LLaVA-OneVision whose projector norms patches (R-4B, Bee). ``most``: tiles that are not reduced."""
    pinpoints = [[rows * SIDE, columns * SIDE] for rows in (1, 2) for columns in (1, 2, 3)]
    config = transformers.LlavaOnevisionConfig(
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16},
        vision_config={
            **{"model_type": "siglip_vision_model", **SIZES, "image_size": SIDE, "patch_size": PATCH},
            "vision_use_head": False,
        },
        image_token_index=token("<image>"),
        image_grid_pinpoints=pinpoints,
        vision_aspect_ratio=f"anyres_max_{most}",
    )

    def make() -> Any:
        model = transformers.LlavaOnevisionForConditionalGeneration(config)
        model.model.multi_modal_projector = _Normed(SIZES["hidden_size"], 64 * wider)
        return model

    model = randomised(name, make)
    model.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    del told["video_token_index"]
    named = {"architectures": [f"{name}ForConditionalGeneration"], "model_type": "as_published"}
    (folder / "config.json").write_text(json.dumps({**told, **named}))
    return model


_OF_PHI4: Final[Mapping[str, str]] = {
    **{"img_projection_up": "img_projection.0", "img_projection_down": "img_projection.2"},
    **{"global_img_feature_extensor": "glb_GN", "sub_img_feature_extensor": "sub_GN"},
}


def phi4mm(folder: Path) -> Any:
    """Phi-4-multimodal, with the adapters that its published files hold beside the matrices that they change."""
    config = READING["phi4_multimodal"][0]()
    model = randomised("phi4mm", lambda: transformers.Phi4MultimodalForCausalLM(config))
    for module in model.model.embed_tokens_extend.image_embed.modules():
        if getattr(module, "is_causal", False):
            module.is_causal = False  # else it is causal where all of a picture's patches are real
    model.save_pretrained(folder)
    file, stored = folder / "model.safetensors", {}
    for name, tensor in load_file(file).items():
        for usual, own in _OF_PHI4.items():
            name = name.replace(usual, own)
        if ".layers." in name and name.startswith("model.layers.") and "_proj." in name:
            front = name.removesuffix(".weight")
            stored[f"{front}.lora_A.vision.weight"] = torch.ones(2, tensor.shape[1])
            stored[f"{front}.lora_B.speech.weight"] = torch.ones(tensor.shape[0], 2)
            name = f"{front}.base_layer.weight"
        stored[name] = tensor
    save_file(stored, file)
    told = json.loads((folder / "config.json").read_text())
    vision, rope = told.pop("vision_config"), told.pop("rope_parameters")
    del told["audio_config"]
    pictures = {"crop_size": vision.pop("crop_size"), "embedding_cls": "tune_image", "hd_transform_order": "sub_glb"}
    pictures |= {"image_token_compression_cls": "avg_pool_2d", "projection_cls": "mlp", "use_hd_transform": True}
    told |= {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "rope_theta": rope["rope_theta"]}
    told |= {"partial_rotary_factor": rope["partial_rotary_factor"], "img_processor": None, "rope_scaling": None}
    told |= {"embd_layer": {"embedding_cls": "image_audio", "image_embd_layer": pictures}}
    told |= {"vision_config": vision, "image_token_id": token("<image>"), "vision_lora": {"r": 256}}
    (folder / "config.json").write_text(json.dumps(told))
    return model


_ONEVISION: Final = PICTURES["llava_onevision"]
_PERCEIVED: Final = Kind(_pooled, token("<image>"), cat(1), (token("<video>"),))
_RADIO: Final = Kind(_four_a_tile, token("<image>"), cat())
_TILED: Final = Kind(_in_tiles, token("<IMG_CONTEXT>"), cat())
IN_TILES: Final[Mapping[str, Published]] = {
    "bee": Published("bee", partial(normed_onevision, name="Bee", wider=4, most=2), _ONEVISION),
    "phi4mm": Published("phi4mm", phi4mm, READING["phi4_multimodal"][1]),
    "r_4b": Published("r_4b", partial(normed_onevision, name="R", wider=1), _ONEVISION),
    "eagle2_5": Published("eagle_2_5_vl", eagle, _TILED),
    "eagle2_5_whole": Published("eagle_2_5_vl", partial(eagle, layer=-1), _TILED),
    "llama_nemotron_vl": Published("Llama_Nemotron_Nano_VL", llama_nemotron_vl, _RADIO),
    "perception_lm_large": Published("perception_lm", partial(perception_lm, class_token=True), _PERCEIVED),
    "perception_lm_gigantic": Published("perception_lm", partial(perception_lm, class_token=False), _PERCEIVED),
    "step_vl": Published("step_vl", step_vl, Kind(_whole_and_squares, _PATCH, _one_by_one)),
    "step5_vl": Published("step5_vl", step5_vl, READING["step"][1]),
    "nemotron_h_vl": Published("NemotronH_Nano_VL_V2", nemotron_h_vl, _RADIO),
}
