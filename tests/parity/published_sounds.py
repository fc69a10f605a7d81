"""Tiny random models that hear, whose classes transformers does not have: Ultravox, FunAudioChat and MiDashengLM;
and Fun-ASR-Nano under its makers' names."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from stentor.tests.parity.composed import Composed, Published
from stentor.tests.parity.pictures import Kind, Picture, Tensors
from stentor.tests.support.vision_models import TEXT, VOCAB, randomised, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


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
        tower: Any = self.continuous_audio_tower
        after, _ = tower._get_feat_extract_output_lengths(lengths)
        heard = self.continuous_audio_tower(values, feature_lens=lengths, aftercnn_lens=after).last_hidden_state
        count = self.size * int(audio_embeddings)
        heard = torch.nn.functional.pad(heard[:count], (0, 0, 0, max(0, count - len(heard))))
        parts: Any = self.audio_tower
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


def _apart(parts: Sequence[Tensors]) -> dict[str, Any]:
    return {"sounds": parts}


class _Patch(torch.nn.Module):
    """A layer of Dasheng's encoder."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.LayerNorm(width, 1e-6) for _ in range(2))
        self.attn = torch.nn.ModuleDict(
            {"qkv": torch.nn.Linear(width, 3 * width), "proj": torch.nn.Linear(width, width)}
        )
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(width, inner), "fc2": torch.nn.Linear(inner, width)})
        self.heads = heads

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        attention: Any = self.attn
        network: Any = self.mlp
        q, k, v = attention["qkv"](self.norm1(x)).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        scores = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
        made = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        x = x + attention["proj"](made.transpose(0, 1).flatten(1))
        grown: torch.Tensor = network["fc2"](torch.nn.functional.gelu(network["fc1"](self.norm2(x))))
        return x + grown


class _Dasheng(torch.nn.Module):
    """MiDashengLM's encoder and projector, as its makers' code describes them."""

    def __init__(self, audio: Mapping[str, Any], stack: int, outputs: int) -> None:
        super().__init__()
        width, bins, window = audio["embed_dim"], audio["n_mels"], audio["target_length"] // 4
        encoder: Any = torch.nn.Module()
        encoder.init_bn = torch.nn.BatchNorm2d(bins)
        encoder.patch_embed = torch.nn.ModuleDict({"proj": torch.nn.Conv2d(1, width, (bins, 4), (bins, 4))})
        encoder.time_pos_embed = torch.nn.Parameter(torch.empty(1, width, 1, window))
        encoder.freq_pos_embed = torch.nn.Parameter(torch.empty(1, width, 1, 1))
        layers = (_Patch(width, audio["num_heads"], int(width * audio["mlp_ratio"])) for _ in range(audio["depth"]))
        encoder.blocks = torch.nn.ModuleList(layers)
        encoder.norm = torch.nn.LayerNorm(width, 1e-6)
        self.audio_encoder, self.window, self.stack = encoder, window, stack
        products = torch.nn.Linear(width * stack, outputs), torch.nn.GELU(), torch.nn.Linear(outputs, outputs)
        self.audio_projector = torch.nn.ModuleDict({"net": torch.nn.Sequential(*products)})

    def forward(self, sounds: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        return torch.cat([self._sound(**sound) for sound in sounds])

    def _sound(self, audio_values: torch.Tensor, audio_lens: torch.Tensor) -> torch.Tensor:
        frames = int(audio_lens.sum())
        values = audio_values.transpose(0, 1).flatten(1)[None, None, :, : frames + 1]
        encoder = self.audio_encoder
        x = encoder.init_bn(values.transpose(1, 2)).transpose(1, 2)
        x = encoder.patch_embed["proj"](x)
        seen = torch.arange(x.shape[-1]) < frames // 4
        made = []
        for part, known in zip(x.split(self.window, -1), seen.split(self.window), strict=True):
            here = part + encoder.time_pos_embed[..., : part.shape[-1]] + encoder.freq_pos_embed
            states = here[0, :, 0].T
            for layer in encoder.blocks:
                states = layer(states, known)
            made.append(encoder.norm(states))
        whole = torch.cat(made)
        projector: Any = self.audio_projector
        found: torch.Tensor = projector["net"](whole[: len(whole) // self.stack * self.stack].view(-1, self.stack * 32))
        return found


_DASHENG: Final = {
    **{"embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "n_mels": 8, "target_length": 40},
    **{"patch_size": [8, 4], "patch_stride": [8, 4]},
}
"""Windows of ten positions."""


def midashenglm(folder: Path) -> Composed:
    inner = {name: value for name, value in TEXT.items() if name != "rope_parameters"}
    text = transformers.Qwen2Config(**inner, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    stored = {**text.to_dict(), "model_type": "qwen2_5_omni_text"}
    stored["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    config = {
        **{"architectures": ["MiDashengLMModel"], "model_type": "midashenglm", "text_config": stored},
        **{"audio_encoder_config": _DASHENG, "subsample_factor": 3, "audio_token_id": _SOUND},
    }
    model: Composed = randomised(
        "midashenglm", lambda: Composed(transformers.Qwen2ForCausalLM(text), _Dasheng(_DASHENG, 3, 64), _SOUND)
    )
    model.save(folder, config, "decoder.", str)
    return model


def _patches(random: torch.Generator, size: int) -> Picture:
    """Frames of one window, the last of which completes a patch that is not seen; or of two and a half."""
    frames = ([23], [40, 40, 18])[size]
    values = torch.randn(len(frames), 8, 40, generator=random)
    values[-1, :, frames[-1] + 1 :] = 0
    count = (sum(frames) + 1) // 4 // 3
    return Picture({"audio_values": values, "audio_lens": torch.tensor(frames)}, [_SOUND] * count, modality="audio")


class _Named(torch.nn.Module):
    """Fun-ASR-Nano's encoder and adaptor, of whose embeddings the first ones of a sound stand in the prompt."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.inner = transformers.FunAsrNanoModel(config)
        self.inner.language_model = None

    def forward(self, sounds: Sequence[Mapping[str, torch.Tensor]]) -> torch.Tensor:
        made = (self.inner.get_audio_features(**sound, return_dict=True).pooler_output for sound in sounds)
        return torch.cat([each[: _eighth(len(each))] for each in made])


def _eighth(frames: int) -> int:
    once = 1 + (frames - 3 + 2) // 2
    twice = 1 + (once - 3 + 2) // 2
    return max((twice - 1) // 2 + 1, 1)


_BLOCKS, _TIMED = 3, 2


def funasr(folder: Path) -> Composed:
    """As its makers' code and files for vLLM name its tensors."""
    text = transformers.Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=False)
    sizes = {"layer_norm_eps": 1e-12, "num_attention_heads": 4}
    config = transformers.FunAsrNanoConfig(
        text_config=text.to_dict(),
        audio_config={
            **sizes,
            **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": _BLOCKS + _TIMED},
            **{"num_timestamp_prediction_layers": _TIMED, "fsmn_kernel_size": 5},
        },
        adaptor_config={
            **sizes,
            **{"hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 2, "projector_hidden_size": 40},
        },
    )
    stored = {
        **{**text.to_dict(), "architectures": ["FunASRForConditionalGeneration"], "audio_token_id": _SOUND},
        "audio_encoder_conf": {
            **{"output_size": 32, "attention_heads": 4, "linear_units": 48, "num_blocks": _BLOCKS, "kernel_size": 5},
            **{"tp_blocks": _TIMED, "sanm_shift": 0, "normalize_before": True},
        },
        "audio_adaptor_conf": {"ffn_dim": 40, "attention_heads": 4, "n_layer": 2, "use_low_frame_rate": True},
    }
    model: Composed = randomised(
        "funasr", lambda: Composed(transformers.Qwen3ForCausalLM(text), _Named(config), _SOUND)
    )
    model.save(folder, stored, "llm.", _name_of_makers)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [each for each in tensors if each.startswith("audio_encoder.") and ".linear_q." in each]:
        parts = [tensors.pop(name.replace(".linear_q.", f".linear_{part}.")) for part in "qkv"]
        tensors[name.replace(".linear_q.", ".linear_q_k_v.")] = torch.cat(parts)
    unused = {"ctc_decoder.blocks.0.norm1.weight": torch.zeros(4), "ctc.ctc_lo.bias": torch.zeros(4)}
    save_file({**tensors, **unused}, file)
    return model


def _name_of_makers(name: str) -> str:
    name = name.removeprefix("inner.")
    if name.startswith("multi_modal_projector.linear_"):
        return name.replace("multi_modal_projector.linear_", "audio_adaptor.linear")
    stack, _, rest = name.partition(".layers.")
    number, _, part = rest.partition(".")
    layer = int(number)
    if stack == "multi_modal_projector":
        front = f"audio_adaptor.blocks.{layer}"
    elif part.startswith("final_layernorm."):
        return part.replace("final_layernorm", f"audio_encoder.{'after' if layer == _BLOCKS - 1 else 'tp'}_norm")
    elif layer >= _BLOCKS:
        front = f"audio_encoder.tp_encoders.{layer - _BLOCKS}"
    else:
        front = f"audio_encoder.encoders.{layer - 1}" if layer else "audio_encoder.encoders0.0"
    for own, makers in _MAKERS_PARTS.items():
        part = part.replace(own, makers)
    return f"{front}.{part}"


_MAKERS_PARTS: Final[Mapping[str, str]] = {
    **{f"{part}_proj": f"linear_{'out' if part == 'o' else part}" for part in "qkvo"},
    **{"input_layernorm": "norm1", "post_attention_layernorm": "norm2", "mlp.fc": "feed_forward.w_"},
    "fsmn.conv": "fsmn_block",
}


def _framed(random: torch.Generator, size: int) -> Picture:
    frames = (9, 20)[size]
    tensors = {"input_features": torch.randn(1, frames, 560, generator=random)}
    tensors["input_features_mask"] = torch.ones(1, frames, dtype=torch.int64)
    return Picture(tensors, [_SOUND] * (2, 3)[size], modality="audio")


_GROUPS: Final = Kind(_grouped, _SOUND, _apart)
HEARING: Final[Mapping[str, Published]] = {
    "funaudiochat": Published("funaudiochat", _funaudiochat, _GROUPS),
    "funaudiochat_alone": Published("funaudiochat", partial(_funaudiochat, adds=False), _GROUPS),
    "funasr": Published("funasr", funasr, Kind(_framed, _SOUND, _apart)),
    "midashenglm": Published("midashenglm", midashenglm, Kind(_patches, _SOUND, _apart)),
    "ultravox": Published("ultravox", ultravox, Kind(_spoken, _SOUND, _windows)),
    "ultravox_0.4": Published("ultravox", partial(ultravox, middle=False), Kind(_spoken, _SOUND, _windows)),
}
