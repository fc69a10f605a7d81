"""Tiny random models whose classes transformers does not have: their code comes with their checkpoints. Whole, with the
names that published files have."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from stentor.tests.parity.pictures import Kind, Picture, Tensors, cat, qwen_picture
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, VOCAB, Maker, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


class Published(NamedTuple):
    model_type: str
    make: Maker
    kind: Kind


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


class Composed(torch.nn.Module):
    """A decoder of transformers', and a module that makes embeddings of media, as a model of both."""

    def __init__(self, text: Any, tower: torch.nn.Module, placeholder: int) -> None:
        super().__init__()
        self.text, self.tower, self.placeholder = text, tower, placeholder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        embeddings = self.text.get_input_embeddings()(input_ids)
        if media:
            embeddings[input_ids == self.placeholder] = self.tower(**media)
        return self.text(inputs_embeds=embeddings, attention_mask=attention_mask, use_cache=use_cache)

    def save(self, folder: Path, config: Mapping[str, object], text: str, names: Callable[[str], str]) -> None:
        """``text``: before the names of the decoder; ``names``: what a tensor of the tower is stored under."""
        tensors = {f"{text}{name}": tensor for name, tensor in self.text.state_dict().items()}
        tensors |= {names(name): tensor for name, tensor in self.tower.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))


class _Gated(torch.nn.Module):
    """Ultravox's projector since version 0.5."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.ln_pre = torch.nn.RMSNorm(inputs, 1e-6)
        self.linear_1 = torch.nn.Linear(inputs, inner, bias=False)
        self.ln_mid = torch.nn.RMSNorm(inner // 2, 1e-6)
        self.linear_2 = torch.nn.Linear(inner // 2, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.linear_1(self.ln_pre(x)).chunk(2, dim=-1)
        out: torch.Tensor = self.linear_2(self.ln_mid(torch.nn.functional.silu(gate) * up))
        return out


class _Posterior(_Gated):
    """Before that."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__(inputs, inner, outputs)
        del self.ln_mid
        self.ln_post = torch.nn.RMSNorm(outputs, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.linear_1(self.ln_pre(x)).chunk(2, dim=-1)
        out: torch.Tensor = self.ln_post(self.linear_2(torch.nn.functional.silu(gate) * up))
        return out


class _Stacked(torch.nn.Module):
    """Whisper's encoder, of whose positions several become one; whole windows are computed."""

    def __init__(self, config: Any, projector: torch.nn.Module, stack: int) -> None:
        super().__init__()
        self.audio_tower = WhisperEncoder(config)
        self.multi_modal_projector, self.stack = projector, stack

    def forward(self, audio_values: torch.Tensor, audio_lens: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._window(*each) for each in zip(audio_values, audio_lens.tolist(), strict=True)])

    def _window(self, values: torch.Tensor, frames: int) -> torch.Tensor:
        encoder = self.audio_tower
        x = torch.nn.functional.gelu(encoder.conv1(values[None]))
        x = torch.nn.functional.gelu(encoder.conv2(x)).transpose(1, 2)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        mask = torch.zeros(1, 1, x.shape[1], x.shape[1])
        mask[..., (frames + 1) // 2 :] = -torch.inf
        for layer in encoder.layers:
            x = layer(x, mask)
            x = x[0] if isinstance(x, tuple) else x
        x = encoder.layer_norm(x)[0]
        x = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % self.stack))
        found: torch.Tensor = self.multi_modal_projector(x.reshape(-1, self.stack * x.shape[1]))
        return found[: -(-frames // (2 * self.stack))]


_SOUND: Final = token("<video>")
_WHISPER: Final = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
_ULTRAVOX: Final = {**_WHISPER, "num_mel_bins": 8, "max_source_positions": 40, "model_type": "whisper"}


def ultravox(folder: Path, *, middle: bool = True) -> Composed:
    """``middle``: with a norm between its projector's products."""
    text = transformers.LlamaConfig(**TEXT)
    config = {
        **{"architectures": ["UltravoxModel"], "model_type": "ultravox", "text_model_id": None, "audio_model_id": None},
        **{"text_config": text.to_dict(), "audio_config": _ULTRAVOX, "vocab_size": VOCAB, "audio_token_index": _SOUND},
        **{"hidden_size": 48, "stack_factor": 4, "projector_act": "swiglu", "projector_ln_mid": middle},
    }
    kind = _Gated if middle else _Posterior

    def make() -> Composed:
        tower = _Stacked(transformers.WhisperConfig(**_ULTRAVOX), kind(4 * 32, 48, 64), 4)
        return Composed(transformers.LlamaForCausalLM(text), tower, _SOUND)

    model: Composed = randomised("ultravox", make)
    model.save(folder, config, "language_model.", str)
    return model


def _spoken(random: torch.Generator, size: int) -> Picture:
    """One window; or two, of which the second is filled up."""
    frames = ([27], [80, 19])[size]
    values = torch.randn(len(frames), 8, max(frames), generator=random)
    for window, count in zip(values, frames, strict=True):
        window[:, count:] = 0
    tensors = {"audio_values": values, "audio_lens": torch.tensor(frames)}
    return Picture(tensors, [_SOUND] * sum(-(-count // 8) for count in frames), modality="audio")


def _windows(parts: Sequence[Tensors]) -> dict[str, Any]:
    """Windows of several sounds, which differ in frames."""
    values = [window for part in parts for window in part["audio_values"]]
    return {"audio_values": values, "audio_lens": torch.cat([part["audio_lens"] for part in parts])}


class _GroupedSound(torch.nn.Module):
    """The encoder of Qwen2.5-Omni, with another dimension of its heads, and an embedding for each group of what it
    makes (FunAudioChat). Units of speech are all one."""

    def __init__(self, audio: Mapping[str, Any]) -> None:
        super().__init__()
        config = transformers.Qwen2_5OmniAudioEncoderConfig(**{**audio, "attn_implementation": "eager"})
        self.continuous_audio_tower = Qwen2_5OmniAudioEncoder(config)
        outputs = audio["output_dim"]
        self.audio_tower = torch.nn.ModuleDict(
            {
                "embed_tokens": torch.nn.Embedding(audio["codebook_size"], outputs),
                **{f"{name}output_matching": torch.nn.Linear(outputs, outputs, False) for name in ("", "continual_")},
            }
        )
        self.size, self.unit = audio["group_size"], audio["pad_token_id"]
        self.adds = audio["continuous_features_mode"] == "add"

    def forward(self, sounds: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        return torch.cat([self._sound(**sound) for sound in sounds])

    def _sound(
        self, audio_values: torch.Tensor, audio_lens: torch.Tensor, audio_embeddings: torch.Tensor
    ) -> torch.Tensor:
        frames = int(audio_lens.sum())
        values = audio_values.transpose(0, 1).flatten(1)[:, :frames]
        lengths = torch.tensor([frames])
        after, _ = self.continuous_audio_tower._get_feat_extract_output_lengths(lengths)
        heard = self.continuous_audio_tower(values, feature_lens=lengths, aftercnn_lens=after).last_hidden_state
        count = self.size * int(audio_embeddings)
        heard = torch.nn.functional.pad(heard[:count], (0, 0, 0, max(0, count - len(heard))))
        parts = self.audio_tower
        found: torch.Tensor = parts["continual_output_matching"](heard.view(-1, self.size, heard.shape[1]).mean(1))
        units = parts["embed_tokens"].weight[self.unit].expand(len(found), -1)
        return found + parts["output_matching"](units) if self.adds else found


_GROUPED: Final = {
    **{**_WHISPER, "num_mel_bins": 8, "max_source_positions": 40, "n_window": 10, "output_dim": 64, "group_size": 3},
    **{"codebook_size": 12, "pad_token_id": 7, "continuous_features_mode": "add"},
}


def _funaudiochat(folder: Path, *, adds: bool = True) -> Composed:
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    audio = {**_GROUPED, "continuous_features_mode": "add" if adds else "replace"}
    config = {
        **{"architectures": ["FunAudioChatForConditionalGeneration"], "model_type": "funaudiochat"},
        **{"text_config": text.to_dict(), "audio_config": {**audio, "model_type": "funaudiochat_audio_encoder"}},
        **{"audio_token_index": _SOUND, "hidden_size": 64},
    }
    model: Composed = randomised(
        "funaudiochat", lambda: Composed(transformers.Qwen3ForCausalLM(text), _GroupedSound(audio), _SOUND)
    )
    model.save(folder, config, "language_model.", str)
    return model


def _grouped(random: torch.Generator, size: int) -> Picture:
    """A window and a half; or two and a little, with an odd number of positions."""
    frames = ([20, 9], [20, 20, 1])[size]
    values = torch.randn(len(frames), 8, 20, generator=random)
    for window, count in zip(values, frames, strict=True):
        window[:, count:] = 0
    count = -(-(sum(frames) // 4) // 3)
    tensors = {"audio_values": values, "audio_lens": torch.tensor(frames), "audio_embeddings": torch.tensor([count])}
    return Picture(tensors, [_SOUND] * count, modality="audio")


class _Tiled(torch.nn.Module):
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
        return Composed(transformers.Qwen2ForCausalLM(text), _Tiled(vision, layer), token("<IMG_CONTEXT>"))

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
"""As published, behind ``vision_model.radio_model.model.``."""


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
    _join_heads(folder)
    return model


def _join_heads(folder: Path) -> None:
    """Queries, keys and values as one product, as published."""
    file = folder / "model.safetensors"
    found = load_file(file)
    parts = ("q_proj", "k_proj", "v_proj")
    for name in [name for name in found if ".attention.q_proj." in name]:
        joint = torch.cat([found.pop(name.replace("q_proj", part)) for part in parts])
        found[name.replace("attention.q_proj", "attn.qkv")] = joint
    found = {name.replace(".attention.o_proj.", ".attn.proj."): tensor for name, tensor in found.items()}
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


def _four_a_tile(random: torch.Generator, size: int) -> Picture:
    made = _in_tiles(random, size)
    return Picture(made.tensors, [token("<image>")] * len(made.tokens))


class _NavitLayer(torch.nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(hidden, 1e-6) for _ in range(2))
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = torch.nn.ModuleDict({name: torch.nn.Linear(hidden, hidden) for name in parts})
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(hidden, inner), "fc2": torch.nn.Linear(inner, hidden)})
        self.heads = heads

    def forward(self, x: torch.Tensor, angles: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        """angles [patches, head_dim / 2]; apart [patches, patches]: who does not see whom."""
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

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        grids = [(rows, columns) for _, rows, columns in image_grid_thw.tolist()]
        parts = pixel_values.split([rows * columns for rows, columns in grids])
        return torch.cat([self._picture(*each) for each in zip(parts, grids, strict=True)])

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
        words = self.vte.weight
        return torch.cat((words[-4:-3], chances @ words[:-4], words[-3:-2]))


_WORDS: Final = 44


def _ovis2_5(folder: Path, *, window: int = 0) -> Composed:
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    vision = {**SIZES, "model_type": "siglip2_navit", "patch_size": PATCH, "image_size": 6 * PATCH, "num_patches": -1}
    vision |= {"hidden_stride": 2, "window_size": 2 * PATCH * window, "preserve_original_pe": True, "use_rope": True}
    vision |= {"temporal_patch_size": 1, "fullatt_block_indexes": "1" if window else None}
    config = {
        **{"architectures": ["Ovis2_5"], "model_type": "ovis2_5", "hidden_size": 64, "visual_vocab_size": _WORDS},
        **{"llm_config": text.to_dict(), "vit_config": vision, "image_token_id": token("<|image_pad|>")},
    }

    def make() -> Composed:
        return Composed(transformers.Qwen3ForCausalLM(text), _Navit(window), token("<|image_pad|>"))

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


_RADIO: Final = Kind(_four_a_tile, token("<image>"), cat())
_TILED: Final = Kind(_in_tiles, token("<IMG_CONTEXT>"), cat())
_OVIS: Final = Kind(_ovis_picture, token("<|image_pad|>"), cat())
_GROUPS: Final = Kind(_grouped, _SOUND, lambda parts: {"sounds": parts})
_KIMI: Final = Kind(_kimi_picture, token("<|image_pad|>"), cat())
PUBLISHED: Final[Mapping[str, Published]] = {
    "eagle2_5": Published("eagle_2_5_vl", eagle, _TILED),
    "eagle2_5_whole": Published("eagle_2_5_vl", partial(eagle, layer=-1), _TILED),
    "funaudiochat": Published("funaudiochat", _funaudiochat, _GROUPS),
    "funaudiochat_alone": Published("funaudiochat", partial(_funaudiochat, adds=False), _GROUPS),
    "kimi_k25": Published("kimi_k25", _kimi_k25, _KIMI),
    "kimi_vl": Published("kimi_vl", _kimi_vl, _KIMI),
    "llama_nemotron_vl": Published("Llama_Nemotron_Nano_VL", llama_nemotron_vl, _RADIO),
    "nemotron_h_vl": Published("NemotronH_Nano_VL_V2", nemotron_h_vl, _RADIO),
    "ovis2_5": Published("ovis2_5", _ovis2_5, _OVIS),
    "ovis2_5_windows": Published("ovis2_5", partial(_ovis2_5, window=1), _OVIS),
    "ultravox": Published("ultravox", ultravox, Kind(_spoken, _SOUND, _windows)),
    "ultravox_0.4": Published("ultravox", partial(ultravox, middle=False), Kind(_spoken, _SOUND, _windows)),
}
