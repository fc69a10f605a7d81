"""Tiny random models whose classes transformers does not have: their code comes with their checkpoints. Whole, with the
names that published files have."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.engine.model_config.hf.deepseek_ocr import with_known_tower
from stentor.tests.parity import hub
from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.deepseek41_tower import DEEPSEEK41
from stentor.tests.parity.kimi3_tower import KIMI3
from stentor.tests.parity.pictures import PICTURES, Kind, Picture, cat, qwen_picture
from stentor.tests.parity.published_abstractor import KANANAS
from stentor.tests.parity.published_chatglm import CHATGLMS
from stentor.tests.parity.published_grids import IN_GRIDS
from stentor.tests.parity.published_ling import LINGS
from stentor.tests.parity.published_molmo import POOLED
from stentor.tests.parity.published_names import RENAMED, named
from stentor.tests.parity.published_ovis import OVIS
from stentor.tests.parity.published_rows import IN_ROWS
from stentor.tests.parity.published_siglip2 import IN_SHAPES
from stentor.tests.parity.published_slices import IN_SLICES
from stentor.tests.parity.published_sounds import HEARING
from stentor.tests.parity.published_tiles import IN_TILES
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def _kimi_config() -> Any:
    text = {**TEXT, "num_hidden_layers": 3, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1}
    text |= {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1}
    text |= {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    vision = {**SIZES, "patch_size": PATCH, "pos_emb_height": 8, "pos_emb_width": 8, "pos_emb_time": 2}
    return transformers.Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", **text, "n_shared_experts": 1},
        vision_config=vision,
        projection_hidden_size=64,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        tie_word_embeddings=False,
    )


def _kimi_picture(random: torch.Generator, size: int) -> Picture:
    whole = qwen_picture(random, size)
    _, rows, columns = whole.tensors["image_grid_thw"][0].tolist()
    pixels = torch.randn(rows * columns, 3, PATCH, PATCH, generator=random)
    return Picture({**whole.tensors, "pixel_values": pixels}, whole.tokens)


_MOONVIT: Final = {
    "vision_tower.encoder.patch_embed": "vision_tower.patch_embed",
    "model.mm_projector": "mm_projector",
    "language_model.model.blocks": "language_model.model.layers",
}
"""Where transformers tells the published names of Kimi K2.5 otherwise than they are."""


def _kimi_k25(folder: Path) -> Any:
    model = randomised("kimi_k25", lambda: transformers.Kimi_K25ForConditionalGeneration(_kimi_config()))
    model.save_pretrained(folder)
    vision = {f"vt_{name}": value for name, value in SIZES.items()}
    _rewrite(folder, _kimi_described(model, "KimiK25", "kimi_k25", vision), _MOONVIT)
    return model


def _kimi_vl(folder: Path) -> Any:
    """Beside pictures that do not move the tower of Kimi K2.5 is that of Kimi-VL, and transformers has that."""
    model = randomised("kimi_vl", lambda: transformers.Kimi_K25ForConditionalGeneration(_kimi_config()))
    model.save_pretrained(folder)
    names = {
        "mm_projector.proj.0": "multi_modal_projector.linear_1",
        "mm_projector.proj.2": "multi_modal_projector.linear_2",
        "model.mm_projector.": "multi_modal_projector.",
    }
    _rewrite(folder, _kimi_described(model, "KimiVL", "kimi_vl", SIZES), {**names, **_MOONVIT})
    return model


def _kimi_described(model: Any, name: str, kind: str, vision: Mapping[str, Any]) -> dict[str, object]:
    sides = {f"init_pos_emb_{side}": model.config.vision_config.pos_emb_height for side in ("height", "width")}
    return {
        **{"architectures": [f"{name}ForConditionalGeneration"], "model_type": kind, "tie_word_embeddings": False},
        "media_placeholder_token_id": token("<|image_pad|>"),
        "text_config": model.config.text_config.to_dict(),
        "vision_config": {**vision, **sides, "patch_size": PATCH, "merge_kernel_size": [2, 2]},
    }


def _rewrite(folder: Path, config: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Tells a saved model otherwise; ``names`` are beginnings of tensors' names, and what stands for them."""
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"

    def renamed(name: str) -> str:
        begin = next((each for each in names if name.startswith(each)), "")
        return names[begin] + name.removeprefix(begin) if begin else name

    save_file({renamed(name): tensor for name, tensor in load_file(file).items()}, file)


def _internvl(folder: Path, name: str, architecture: str = "InternVLChatModel") -> Any:
    """``name``: a file of Qianfan-OCR, or one of InternVL's first form, also with InternLM 2 as its decoder;
    ``architecture``: of that form."""
    old, wide = name == "internvl_internlm2", architecture == "NVLM_D"
    config = transformers.QianfanOCRConfig(
        text_config={"model_type": "llama" if old else "qwen3", **TEXT, "head_dim": 16},
        vision_config={**SIZES, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        image_token_id=token("<IMG_CONTEXT>"),
        image_seq_length=4,
    )

    def make() -> Any:
        made = transformers.QianfanOCRForConditionalGeneration(config)
        if wide:
            inner, products = TEXT["intermediate_size"], made.model.multi_modal_projector
            products.linear_1 = torch.nn.Linear(4 * SIZES["hidden_size"], inner, bias=False)
            products.linear_2 = torch.nn.Linear(inner, TEXT["hidden_size"], bias=False)
        return made

    model = randomised("nvlm_d" if wide else name, make)
    model.save_pretrained(folder)
    described: dict[str, object] = model.config.to_dict()
    if name != "qianfan_ocr":
        text = hub.described("internlm2", model.config.text_config) if old else described["text_config"]
        described = {
            **{
                "architectures": [architecture],
                "model_type": {"InternVLChatModel": "internvl_chat", "NVLM_D": "NVLM_D"}.get(
                    architecture, "as_published"
                ),
                "img_context_token_id": token("<IMG_CONTEXT>"),
            },
            **{"llm_config": text, "vision_config": {**SIZES, **_CHAT_TOWER}, "select_layer": -1},
            **{"force_image_size": SIDE, "max_dynamic_patch": 6, "use_thumbnail": True, "downsample_ratio": 0.5},
            **{"ps_version": "v2", "tie_word_embeddings": False},
        }
    # transformers' reverse of its renaming also changes the text model's names
    _rewrite(folder, described, {"language_model.model.encoder.": "language_model.model."})
    if old:
        file, prefix = folder / "model.safetensors", "language_model."
        parts = load_file(file)
        inner = {each.removeprefix(prefix): parts.pop(each) for each in [*parts] if each.startswith(prefix)}
        inner = hub.stored("internlm2", inner, model.config.text_config)
        save_file({**parts, **{f"{prefix}{each}": tensor for each, tensor in inner.items()}}, file)
    return model


_CHAT_TOWER: Final = {
    **{"model_type": "intern_vit_6b", "image_size": SIDE, "patch_size": PATCH, "qkv_bias": True},
    **{"qk_normalization": False, "norm_type": "layer_norm", "hidden_act": "gelu", "layer_norm_eps": 1e-6},
}


_WIDE: Final = 4096
"""A window that no answer fills."""


def deepseek_ocr(folder: Path, *, window: int = 0) -> Any:
    """``window``: that of answers of Unlimited-OCR; 0: a DeepSeek-OCR, without one."""
    text = {**TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    text |= {"moe_intermediate_size": 48, "first_k_dense_replace": 1}
    sam = {"width": 32, "layers": 2, "heads": 2, "global_attn_indexes": [1], "downsample_channels": [24, 32]}
    clip = {"width": 32, "layers": 2, "heads": 2, "image_size": 28, "patch_size": 14}
    described: dict[str, object] = {
        **{"architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2"},
        "language_config": {"model_type": "deepseek_v2", **text, "use_mla": False, "topk_method": "greedy"},
        "vision_config": {"image_size": 128, "width": {"sam_vit_b": sam, "clip-l-14-224": clip}},
        "image_token_id": token("<image>"),
    }
    if window:
        described |= {"architectures": ["UnlimitedOCRForCausalLM"], "model_type": "unlimited-ocr"}
        described["sliding_window"] = window
    config = transformers.UnlimitedOcrConfig(
        text_config={**text, "sliding_window": window or _WIDE},
        vision_config=with_known_tower(described)["vision_config"],
        image_token_id=token("<image>"),
    )
    model = randomised(
        f"deepseek_ocr_{window}" if window else "deepseek_ocr",
        lambda: transformers.UnlimitedOcrForConditionalGeneration(config),
    )
    model.save_pretrained(folder)
    _rewrite(folder, described, {})
    return model


def _ocr_picture(random: torch.Generator, size: int) -> Picture:
    """The whole, and for the second size two tiles side by side."""
    tensors = {"pixel_values": torch.randn(1, 3, 128, 128, generator=random)}
    tensors |= {"num_local_patches": torch.tensor([2 * size]), "patches_grid": torch.tensor([[1 + size, 1]])}
    if size:
        tensors["pixel_values_local"] = torch.randn(2, 3, 128, 128, generator=random)
    return Picture(tensors, [token("<image>")] * (7 + 10 * size))


def _as_lists(parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        for name, tensor in part.items():
            found[name] = torch.cat([found[name], tensor]) if name in found else tensor
    return {
        name: each.tolist() if name in ("num_local_patches", "patches_grid") else each for name, each in found.items()
    }


class _NavitLayer(torch.nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(hidden, 1e-6) for _ in range(2))
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = torch.nn.ModuleDict({name: torch.nn.Linear(hidden, hidden) for name in parts})
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(hidden, inner), "fc2": torch.nn.Linear(inner, hidden)})
        self.heads = heads

    def forward(self, x: torch.Tensor, angles: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        """angles [patches, head_dim / 2]; apart [patches, patches]: True where a patch does not attend to another."""
        y = self.layer_norm1(x)
        q, k, v = (self.self_attn[f"{each}_proj"](y).unflatten(1, (self.heads, -1)).transpose(0, 1) for each in "qkv")
        q, k = (_rotated(each, angles) for each in (q, k))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(apart, -torch.inf)
        x = x + self.self_attn["out_proj"]((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        inner = torch.nn.functional.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh")
        found: torch.Tensor = x + self.mlp["fc2"](inner)
        return found


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The first half of each head turns with the second."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


_PICTURE_NAMES: Final = "pixel_values", "image_grid_thw"
_FILM_NAMES: Final = "pixel_values_videos", "video_grid_thw"


class _Navit(torch.nn.Module):
    """SigLIP 2 in a picture's own size, and a vocabulary of visual words (Ovis 2.5)."""

    def __init__(self, window: int = 0) -> None:
        """``window``: embeddings on each side of the square that all layers but the last see."""
        super().__init__()
        hidden, self.window = SIZES["hidden_size"], window
        self.patch_embedding = torch.nn.Conv2d(3, hidden, PATCH, PATCH)
        self.position_embedding = torch.nn.Embedding(6 * 6, hidden)
        sizes = SIZES["intermediate_size"], SIZES["num_attention_heads"]
        self.layers = torch.nn.ModuleList([_NavitLayer(hidden, *sizes) for _ in range(SIZES["num_hidden_layers"])])
        self.post_layernorm = torch.nn.LayerNorm(hidden, 1e-6)
        words = torch.nn.Linear(4 * hidden, _WORDS - 4, bias=False)
        self.head = torch.nn.Sequential(words, torch.nn.LayerNorm(_WORDS - 4))
        self.vte = torch.nn.Embedding(_WORDS, 64)

    def forward(self, **media: torch.Tensor) -> torch.Tensor:
        """Pictures or videos, of which each has two words around it; frames are seen one by one."""
        film = "pixel_values_videos" in media
        values, grids = (media[name] for name in (_FILM_NAMES if film else _PICTURE_NAMES))
        found, first = [], len(self.vte.weight) - (2 if film else 4)
        for (_, rows, columns), part in zip(grids.tolist(), values.split(grids.prod(1).tolist()), strict=True):
            found.append(self.vte.weight[first : first + 1])
            found += [self._picture(frame, (rows, columns)) for frame in part.split(rows * columns)]
            found.append(self.vte.weight[first + 1 : first + 2])
        return torch.cat(found)

    def _picture(self, values: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        at = torch.cartesian_prod(*(torch.arange(side) for side in grid)).view(*grid, 2)
        at = at.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 3)  # squares of four
        square = self.position_embedding.weight.view(1, 6, 6, -1).permute(0, 3, 1, 2)
        placed = torch.nn.functional.interpolate(square, grid, mode="bicubic", align_corners=False)[0]
        x = self.patch_embedding(values.view(-1, 3, PATCH, PATCH)).flatten(1) + placed[:, at[:, 0], at[:, 1]].T
        pairs = x.shape[1] // self.layers[0].heads // 2
        frequencies = 10_000.0 ** (-torch.arange(0, pairs, 2) / pairs)
        angles = (at[:, :, None] * frequencies).flatten(1)
        for number, layer in enumerate(self.layers):
            near = at // 2 // self.window if self.window and number < len(self.layers) - 1 else torch.zeros_like(at)
            x = layer(x, angles, (near[:, None] != near).any(-1))
        chances = self.head(self.post_layernorm(x).view(-1, 4 * x.shape[1])).softmax(-1)
        found: torch.Tensor = chances @ self.vte.weight[:-4]
        return found


_WORDS: Final = 44


def _ovis2_5(folder: Path, *, window: int = 0, newer: str = "") -> Composed:
    """``newer``: the architecture of a later one with the same files, also with experts."""
    sizes: dict[str, Any] = {**TEXT, "head_dim": 16, "tie_word_embeddings": False}
    kind = "Qwen3Moe" if "Moe" in newer else "Qwen3"
    if "Moe" in newer:
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    text = getattr(transformers, f"{kind}Config")(**sizes)
    vision = {**SIZES, "model_type": "siglip2_navit", "patch_size": PATCH, "image_size": 6 * PATCH, "num_patches": -1}
    vision |= {"hidden_stride": 2, "window_size": 2 * PATCH * window, "preserve_original_pe": True, "use_rope": True}
    vision |= {"temporal_patch_size": 1, "fullatt_block_indexes": "1" if window else None}
    config = {
        **{"architectures": [newer or "Ovis2_5"], "model_type": "as_published" if newer else "ovis2_5"},
        **{"hidden_size": 64, "visual_vocab_size": _WORDS},
        **{"llm_config": text.to_dict(), "vit_config": vision, "image_token_id": token("<|image_pad|>")},
    }

    def make() -> Composed:
        return Composed(getattr(transformers, f"{kind}ForCausalLM")(text), _Navit(window), token("<|image_pad|>"))

    def named(name: str) -> str:
        if name.startswith("vte"):
            return name
        part = "embeddings." if name.endswith(("embedding.weight", "embedding.bias")) else ""
        part = "encoder." if name.startswith("layers") else part
        return f"visual_tokenizer.{'' if name.startswith('head') else 'vit.vision_model.' + part}{name}"

    model: Composed = randomised("ovis2_5", make)
    model.save(folder, config, "llm.", named)
    return model


def _ovis_picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4))[size]
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    return Picture(tensors, [token("<|image_pad|>")] * (rows * columns // 4 + 2))


def _ovis_film(random: torch.Generator, size: int) -> Picture:
    """Of two frames, or of three."""
    one, frames = _ovis_picture(random, size), 2 + size
    grid = one.tensors["image_grid_thw"][0].tolist()
    pixels = torch.randn(frames * grid[1] * grid[2], 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([[frames, *grid[1:]]])}
    return Picture(tensors, [token("<|image_pad|>")] * (len(pixels) // 4 + 2), modality="video")


def lighton_ocr() -> Any:
    return transformers.LightOnOcrConfig(
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16, "tie_word_embeddings": False},
        vision_config={"model_type": "pixtral", **SIZES, "image_size": 32, "patch_size": PATCH, "head_dim": 16},
        image_token_id=token("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )


def _lighton(folder: Path) -> Any:
    model = randomised("lighton_ocr", lambda: transformers.LightOnOcrForConditionalGeneration(lighton_ocr()))
    model.save_pretrained(folder)
    return model


_OVIS: Final = Kind(_ovis_picture, token("<|image_pad|>"), cat())
_KIMI: Final = Kind(_kimi_picture, token("<|image_pad|>"), cat())


def _mistral_own(folder: Path, merge: int) -> Any:
    """Pixtral, or with ``merge`` above 1 Mistral 3, as their makers' files have it."""
    text = {"model_type": "mistral", **TEXT, "head_dim": 16, "sliding_window": None}
    vision = {"model_type": "pixtral", **SIZES, "image_size": 2 * SIDE, "patch_size": PATCH, "hidden_act": "silu"}
    if merge > 1:
        config = transformers.Mistral3Config(
            text_config={**text, "rms_norm_eps": 1e-5},
            vision_config=vision,
            image_token_index=token("[IMG]"),
            spatial_merge_size=merge,
            tie_word_embeddings=False,
        )
        model = randomised("mistral_3_own", lambda: transformers.Mistral3ForConditionalGeneration(config))
    else:
        config = transformers.LlavaConfig(
            text_config={**text, "rms_norm_eps": 1e-5},
            vision_config=vision,
            image_token_index=token("[IMG]"),
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
        model = randomised("pixtral_own", lambda: transformers.LlavaForConditionalGeneration(config))
    inner, found = model.config.text_config, {}
    for name, tensor in model.state_dict().items():
        if (told := name.removeprefix("model.language_model.")) != name:
            found[f"model.{told}"] = tensor
            continue
        for begin, put in _OF_MISTRAL.items():
            name = name.replace(begin, put)
        if ".attention.wq." in name or ".attention.wk." in name:  # heads turn pair by pair
            tensor = tensor.unflatten(0, (-1, 2, 8)).transpose(1, 2).flatten(0, 2)
        found[name] = tensor
    stored = hub.stored("mistral-own", found, inner)
    save_file(stored, folder / "consolidated.safetensors")
    encoder = {**SIZES, "image_size": 2 * SIDE, "patch_size": PATCH, "image_token_id": token("[IMG]")}
    if merge > 1:
        encoder |= {"spatial_merge_size": merge, "mm_projector_id": "patch_merge", "adapter_bias": False}
        encoder |= {"add_pre_mm_projector_layer_norm": True}
    told = {"dim": inner.hidden_size, "hidden_dim": inner.intermediate_size, "n_layers": inner.num_hidden_layers}
    told |= {"n_heads": inner.num_attention_heads, "n_kv_heads": inner.num_key_value_heads, "head_dim": 16}
    told |= {"norm_eps": 1e-5, "vocab_size": inner.vocab_size, "rope_theta": 10_000.0}
    (folder / "params.json").write_text(json.dumps({**told, "vision_encoder": encoder}))
    return model


_OF_MISTRAL: Final[Mapping[str, str]] = {
    **{"model.vision_tower.": "vision_encoder.", "model.multi_modal_projector.norm": "pre_mm_projector_norm"},
    **{
        f"model.multi_modal_projector.linear_{number}": f"vision_language_adapter.w_{way}"
        for number, way in ((1, "in"), (2, "out"))
    },
    "model.multi_modal_projector.": "",
    **{f"attention.{part}_proj": f"attention.w{part}" for part in "qkvo"},
    **{
        f"feed_forward.{part}_proj": f"feed_forward.w{number}" for part, number in (("gate", 1), ("down", 2), ("up", 3))
    },
}
PUBLISHED: Final[Mapping[str, Published]] = {
    **CHATGLMS,
    **HEARING,
    **IN_GRIDS,
    **IN_SLICES,
    **IN_ROWS,
    **IN_TILES,
    **IN_SHAPES,
    **LINGS,
    **POOLED,
    **RENAMED,
    "deepseek_ocr": Published("deepseek_vl_v2", deepseek_ocr, Kind(_ocr_picture, token("<image>"), _as_lists)),
    "unlimited_ocr_published": Published(
        "unlimited-ocr", partial(deepseek_ocr, window=_WIDE), Kind(_ocr_picture, token("<image>"), _as_lists)
    ),
    **{
        name: Published("mistral_pixtral", partial(_mistral_own, merge=merge), PICTURES[like])
        for name, merge, like in (("pixtral_own", 1, "pixtral"), ("mistral_3_own", 2, "mistral3"))
    },
    "internvl_chat": Published("internvl_chat", partial(_internvl, name="internvl_chat"), PICTURES["internvl"]),
    "internvl_internlm2": Published(
        "internvl_chat", partial(_internvl, name="internvl_internlm2"), PICTURES["internvl"]
    ),
    "qianfan_ocr": Published("qianfan_ocr", partial(_internvl, name="qianfan_ocr"), PICTURES["internvl"]),
    "lighton_ocr_2": Published(
        "lighton_ocr",
        partial(named, architecture="LightOnOCRForConditionalGeneration", make=_lighton),
        PICTURES["mistral3"],
        "LightOnOCRForConditionalGeneration",
    ),
    "kimi_k25": Published("kimi_k25", _kimi_k25, _KIMI),
    "kimi_vl": Published("kimi_vl", _kimi_vl, _KIMI),
    **DEEPSEEK41,
    **KANANAS,
    **KIMI3,
    **OVIS,
    "ovis2_5": Published("ovis2_5", _ovis2_5, _OVIS),
    **{
        file: Published("ovis2_5", partial(_ovis2_5, newer=name), _OVIS, name)
        for file, name in (("ovis2_6", "Ovis2_6ForCausalLM"), ("ovis2_6_moe", "Ovis2_6_MoeForCausalLM"))
    },
    "skywork_r1v": Published(
        "internvl_chat",
        partial(_internvl, name="internvl_chat", architecture="SkyworkR1VChatModel"),
        PICTURES["internvl"],
        "SkyworkR1VChatModel",
    ),
    "nvlm_d": Published(
        "NVLM_D", partial(_internvl, name="internvl_chat", architecture="NVLM_D"), PICTURES["internvl"]
    ),
    "h2ovl": Published(
        "h2ovl_chat",
        partial(_internvl, name="internvl_chat", architecture="H2OVLChatModel"),
        PICTURES["internvl"],
    ),
    "ovis2_5_film": Published("ovis2_5", _ovis2_5, Kind(_ovis_film, token("<|image_pad|>"), cat())),
    "ovis2_5_windows": Published("ovis2_5", partial(_ovis2_5, window=1), _OVIS),
}
