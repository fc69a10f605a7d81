"""Codecs with made-up weights: NeuCodec and XCodec2 as transformers writes them, SNAC under its makers' names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

transformers: Any = untyped_transformers

SNAC: Final[Mapping[str, Any]] = {
    "sampling_rate": 24000,
    "decoder_dim": 16,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 16,
    "codebook_dim": 4,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
LATENT: Final = 12


def write_vocos(folder: Path, kind: str) -> Path:
    """A whole model, encoders included; ``kind`` is ``neucodec`` or ``xcodec2``."""
    torch.manual_seed(3)
    semantic = transformers.Wav2Vec2BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        feature_projection_input_dim=16,
        conv_depthwise_kernel_size=3,
    )
    named = {"neucodec": "NeuCodec", "xcodec2": "Xcodec2"}[kind]
    config = getattr(transformers, f"{named}Config")(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        encoder_hidden_size=4,
        downsampling_ratios=[2, 4, 5],
        semantic_model_config=semantic,
        quantization_dim=64,
        quantization_levels=[4, 4],
    )
    model = getattr(transformers, f"{named}Model")(config)
    nn.init.normal_(model.acoustic_decoder.head.linear.weight, std=0.1)
    model.save_pretrained(folder)
    return folder


def write_snac(folder: Path, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {**SNAC, **changed}
    torch.manual_seed(5)
    model = Snac(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5) if parameter.dim() > 1 else nn.init.uniform_(parameter, -0.1, 0.1)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return folder


class Snac(nn.Module):
    """The decoder in torch's own layers, under the names that published files have."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.strides = config["vq_strides"]
        size, width = config["codebook_size"], config["codebook_dim"]
        self.quantizer = nn.Module()
        self.quantizer.quantizers = nn.ModuleList(_Level(size, width) for _ in self.strides)
        channels, depthwise = config["decoder_dim"], config["depthwise"]
        layers: list[nn.Module] = []
        if depthwise:
            layers += [_conv(LATENT, LATENT, 7, groups=LATENT), _conv(LATENT, channels, 1)]
        else:
            layers += [_conv(LATENT, channels, 7)]
        for rate in config["decoder_rates"]:
            layers.append(_Block(channels, channels // 2, rate, config["noise"], depthwise))
            channels //= 2
        layers += [_Snake(channels), _conv(channels, 1, 7), nn.Tanh()]
        self.decoder = nn.Module()
        self.decoder.model = nn.Sequential(*layers)

    def forward(self, codes: list[torch.Tensor]) -> torch.Tensor:
        """[samples] of the codes of each level."""
        levels = zip(self.quantizer.quantizers, codes, self.strides, strict=True)  # type: ignore[arg-type]
        latents = [
            level.out_proj(level.codebook(its)[None].transpose(1, 2)).repeat_interleave(stride, -1)
            for level, its, stride in levels
        ]
        made: torch.Tensor = self.decoder.model(sum(latents))  # type: ignore[operator]
        return made.flatten()


class _Level(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(size, width)
        self.out_proj = _conv(width, LATENT, 1)


class _Snake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.sin(self.alpha * hidden).pow(2) / (self.alpha + 1e-9)


class _Unit(nn.Module):
    def __init__(self, channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            _Snake(channels),
            _conv(channels, channels, 7, dilation=dilation, groups=groups),
            _Snake(channels),
            _conv(channels, channels, 1),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.block(hidden)
        return hidden + inner


class Noise(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = weight_norm(nn.Conv1d(channels, channels, 1, bias=False))
        self.drawn = torch.zeros(0)
        """[steps], set by the test."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.linear(hidden)
        return hidden + self.drawn * scaled


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, noise: bool, depthwise: bool) -> None:
        super().__init__()
        wider = nn.ConvTranspose1d(
            channels, out, 2 * stride, stride, padding=(stride + 1) // 2, output_padding=stride % 2
        )
        layers: list[nn.Module] = [_Snake(channels), weight_norm(wider)]
        layers += [Noise(out)] if noise else []
        layers += [_Unit(out, dilation, out if depthwise else 1) for dilation in (1, 3, 9)]
        self.block = nn.Sequential(*layers)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.block(hidden)
        return made


def _conv(channels: int, out: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> nn.Module:
    padding = (kernel - 1) * dilation // 2
    made = nn.Conv1d(channels, out, kernel, padding=padding, dilation=dilation, groups=groups)
    weight_norm(made)  # in place
    return made
