"""Nemotron Parse in plain float32, written after NVIDIA's published code, with its names and files: C-RADIO, what makes
its states fewer, and mBART's decoder without positions."""

import json
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from safetensors.torch import save_file
from torch.nn.functional import interpolate, scaled_dot_product_attention

transformers: Any = untyped_transformers

_WIDTH, _HEADS, _LAYERS, _PATCH, _SIDE, _SIZE = 48, 4, 2, 8, 128, 48
_TEACHERS: Final = ({"name": "clip"}, {"name": "siglip", "use_summary": False}, {"name": "dino"}, {"name": "sam"})
_CLASSES, _REGISTERS = 4, 4
_SUMMARIES: Final = (0, 2, 3)
SIDES: Final = (96, 72)
"""Height and width of the one size of pictures: 12 by 9 patches, of which a row makes two states."""


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.LayerNorm(_WIDTH, 1e-6) for _ in range(2))
        self.attn, self.mlp = torch.nn.Module(), torch.nn.Module()
        self.attn.qkv, self.attn.proj = torch.nn.Linear(_WIDTH, 3 * _WIDTH), torch.nn.Linear(_WIDTH, _WIDTH)
        self.mlp.fc1, self.mlp.fc2 = torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.attn.qkv(self.norm1(states))  # type: ignore[operator]
        q, k, v = made.unflatten(2, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        states = states + self.attn.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[operator]
        inner: torch.Tensor = self.mlp.fc1(self.norm2(states))  # type: ignore[operator]
        states = states + self.mlp.fc2(torch.nn.functional.gelu(inner))  # type: ignore[operator]
        return states


class _Generator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedder = torch.nn.Linear(3 * _PATCH**2, _WIDTH, bias=False)
        self.pos_embed = torch.nn.Parameter(torch.zeros(1, (_SIDE // _PATCH) ** 2, _WIDTH))
        self.cls_token = torch.nn.Module()
        self.cls_token.token = torch.nn.Parameter(torch.zeros(_CLASSES + _REGISTERS, _WIDTH))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        rows, columns = (side // _PATCH for side in pixels.shape[2:])
        patches = pixels.unflatten(2, (rows, _PATCH)).unflatten(4, (columns, _PATCH))
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), rows * columns, -1)
        side = _SIDE // _PATCH
        places = self.pos_embed.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        longer = max(rows, columns)
        places = interpolate(places, size=(longer, longer), mode="bilinear", align_corners=False)
        places = places[:, :, :rows, :columns].flatten(2).transpose(1, 2)
        first: Any = self.cls_token.token
        return torch.cat((first.expand(len(pixels), -1, -1), self.embedder(patches) + places), 1)


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        radio: Any = torch.nn.Module()
        self.model_encoder: Any = torch.nn.Module()
        self.model_encoder.radio_model = radio
        radio.input_conditioner, radio.model = torch.nn.Module(), torch.nn.Module()
        radio.input_conditioner.register_buffer("norm_mean", torch.rand(3, 1, 1))
        radio.input_conditioner.register_buffer("norm_std", torch.rand(3, 1, 1) + 0.5)
        radio.register_buffer("summary_idxs", torch.tensor(_SUMMARIES))
        radio.model.patch_generator = _Generator()
        radio.model.blocks = torch.nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.conv1 = torch.nn.Conv1d(_WIDTH, _SIZE, 1)
        self.layer_norm1, self.layer_norm2, self.layer_norm3 = (torch.nn.LayerNorm(_SIZE, 1e-6) for _ in range(3))
        self.conv2 = torch.nn.Conv2d(_SIZE, _SIZE, (1, 4), (1, 4), bias=False)
        self.sum_proj = torch.nn.Linear(_WIDTH * len(_SUMMARIES), _SIZE)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        radio = self.model_encoder.radio_model
        norms = radio.input_conditioner
        states = radio.model.patch_generator((pixels - norms.norm_mean) / norms.norm_std)
        for block in radio.model.blocks:
            states = block(states)
        whole, places = states[:, list(_SUMMARIES)].flatten(1), states[:, _CLASSES + _REGISTERS :]
        places = self.layer_norm1(self.conv1(places.transpose(1, 2)).transpose(1, 2))
        grid = places.transpose(1, 2).unflatten(2, (pixels.shape[2] // _PATCH, -1))
        places = self.layer_norm2(self.conv2(grid).flatten(2).transpose(1, 2))
        return torch.cat((places, self.layer_norm3(self.sum_proj(whole)).unsqueeze(1)), 1)


class Parse(torch.nn.Module):
    """The whole model. ``decoder``: fields of its mBART. ``tied``: its head is the embedding, and its processor norms
    pixels."""

    def __init__(self, decoder: dict[str, Any], *, tied: bool = False) -> None:
        super().__init__()
        self.told, self.tied = decoder, tied
        self.encoder = _Encoder()
        self.decoder = transformers.MBartForCausalLM(transformers.MBartConfig(**decoder)).model.decoder
        self.lm_head = torch.nn.Linear(_SIZE, decoder["vocab_size"], bias=False)
        self.config = transformers.PreTrainedConfig(decoder_start_token_id=2, eos_token_id=3)
        self.generation_config = transformers.GenerationConfig(decoder_start_token_id=2, eos_token_id=3)

    def unplaced(self) -> "Parse":
        """Without positions of tokens, which its decoder does not have."""
        torch.nn.init.zeros_(self.decoder.embed_positions.weight)
        if self.tied:
            self.lm_head.weight = self.decoder.embed_tokens.weight
            norms = self.encoder.model_encoder.radio_model.input_conditioner
            norms.norm_mean, norms.norm_std = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
        return self

    def forward(self, pixel_values: torch.Tensor, decoder_input_ids: torch.Tensor) -> Any:
        states = self.encoder(pixel_values)
        made = self.decoder(input_ids=decoder_input_ids, encoder_hidden_states=states, use_cache=False)
        return transformers.modeling_outputs.Seq2SeqLMOutput(logits=self.lm_head(made.last_hidden_state))

    def save_pretrained(self, folder: Path) -> None:
        start, end = (getattr(self.config, f"{name}_token_id") for name in ("decoder_start", "eos"))
        args = {"model": "vit_small_patch16_224", "teachers": _TEACHERS, "register_multiple": 8, "cpe_max_size": _SIDE}
        sizes = {"hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS}
        config = {
            **{"architectures": ["NemotronParseForConditionalGeneration"], "model_type": "nemotron_parse"},
            **{"encoder": {"args": {**args, "cls_token_per_teacher": True}, "patch_size": _PATCH, **sizes}},
            **{"decoder": self.told, "image_size": SIDES, "max_sequence_length": 64, "tie_word_embeddings": self.tied},
            **{"decoder_start_token_id": start, "eos_token_id": end},
        }
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {
            name: tensor.contiguous()
            for name, tensor in self.state_dict().items()
            if "embed_positions" not in name
            and not (self.tied and (name == "lm_head.weight" or "input_conditioner" in name))
        }
        extra = {f"decoder.extra_{part}.0.weight": torch.ones(3, 3) for part in ("heads", "proj")}
        save_file({**tensors, **extra}, folder / "model.safetensors", {"format": "pt"})
