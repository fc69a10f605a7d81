"""The config.json of Fun-ASR-Nano's files for vLLM in the form of transformers' class, for its encoder. Torch-free."""

import re
from collections.abc import Mapping
from typing import Final

from ..config_fields import ConfigError, Fields
from .common import expect

MODEL_TYPE: Final = "funasr"
"""What these files are called here: their own model type is that of their decoder, whose fields they have."""
TRUNCATED: Final = "keeps_first_embeddings"
"""The field of the class's config that says that a sound has fewer embeddings than its encoder makes."""
FRAMES: Final = 7, 80
"""Stacked frames, and bins of each."""
_EPS: Final = 1e-12
_KNOWN: Final[Mapping[str, object]] = {"normalize_before": True, "sanm_shift": 0}
_PARTS: Final[Mapping[str, str]] = {
    **{"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    **{"feed_forward.w_1": "mlp.fc1", "feed_forward.w_2": "mlp.fc2", "self_attn.fsmn_block": "self_attn.fsmn.conv"},
    **dict.fromkeys(("self_attn.linear_out", "self_attn.out_proj"), "self_attn.o_proj"),
    **{f"self_attn.linear_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "self_attn.linear_q_k_v": "self_attn.qkv_proj",
}
"""Names within a layer."""
_LAYER: Final = re.compile(
    r"\A(?P<stack>audio_encoder\.(?:encoders0?|tp_encoders)|audio_adaptor\.blocks)\.(?P<layer>\d+)\."
    r"(?P<part>.+)\.(?P<end>weight|bias)\Z"
)


def embeddings_of(frames: int) -> int:
    """How many of a sound's embeddings, one for each stacked frame, stand in a prompt: about the first eighth."""
    for _ in range(3):
        frames = (frames - 1) // 2 + 1
    return max(frames, 1)


def with_tower_of_fun_asr(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config.json of transformers' class for the encoder of such files; any other is returned as it is.

    Raises :class:`..config_fields.ConfigError`.
    """
    if config.get("model_type") != MODEL_TYPE:
        return config
    whole = Fields(config)
    encoder, adaptor = Fields(whole.table("audio_encoder_conf") or {}), Fields(whole.table("audio_adaptor_conf") or {})
    expect(encoder, _KNOWN)
    expect(adaptor, {"downsample_rate": 1, "use_low_frame_rate": True})
    hidden, width = whole.integer("hidden_size"), encoder.integer("output_size", 256)
    for name, size in (("llm_dim", hidden), ("encoder_dim", width)):
        if (told := adaptor.integer(name, size)) != size:
            raise ConfigError(f"audio_adaptor_conf.{name} is {told}, expected {size}")
    heads = {"audio_encoder_conf": encoder.integer("attention_heads", 4)}
    heads["audio_adaptor_conf"] = adaptor.integer("attention_heads", 8)
    for (part, count), size in zip(heads.items(), (width, hidden), strict=True):
        if size % count:
            raise ConfigError(f"attention_heads of {part} is {count}, which does not divide {size} dimensions")
    timed = encoder.integer("tp_blocks")
    stacked, bins = FRAMES
    return {
        **{"architectures": ["FunAsrNanoForConditionalGeneration"], "model_type": "fun_asr_nano", TRUNCATED: True},
        "audio_config": {
            **{"model_type": "fun_asr_nano_encoder", "hidden_size": width, "layer_norm_eps": _EPS},
            **{"num_attention_heads": heads["audio_encoder_conf"], "num_mel_bins": bins, "num_stacked_frames": stacked},
            "intermediate_size": encoder.integer("linear_units", 2048),
            "num_hidden_layers": encoder.integer("num_blocks", 6) + timed,
            "num_timestamp_prediction_layers": timed,
            "fsmn_kernel_size": encoder.integer("kernel_size", 11),
        },
        "adaptor_config": {
            **{"hidden_size": hidden, "intermediate_size": hidden // 4, "layer_norm_eps": _EPS},
            "num_attention_heads": heads["audio_adaptor_conf"],
            "num_hidden_layers": adaptor.integer("n_layer", 2),
            "projector_hidden_size": adaptor.integer("ffn_dim", 2048),
        },
        "text_config": {"model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": 1},
        **{name: config[name] for name in ("audio_token_id",) if name in config},
    }


def name_of_transformers(stored: str, blocks: int, layers: int) -> str:
    """A stored tensor's name in transformers' class, whose queries, keys and values are three
    (``qkv_proj``: all of them). ``blocks``: layers of the encoder before those that were trained for times; ``layers``:
    all of its layers."""
    if (found := _LAYER.match(stored)) is not None:
        stack, layer = found["stack"], int(found["layer"])
        part = _PARTS.get(found["part"], found["part"])
        if stack == "audio_adaptor.blocks":
            return f"model.multi_modal_projector.layers.{layer}.{part}.{found['end']}"
        first = {"encoders0": 0, "encoders": 1, "tp_encoders": blocks}[stack.partition(".")[2]]
        return f"model.audio_tower.layers.{first + layer}.{part}.{found['end']}"
    for name, last in (("after_norm", blocks), ("tp_norm", layers)):
        stored = stored.replace(f"audio_encoder.{name}.", f"model.audio_tower.layers.{last - 1}.final_layernorm.")
    return stored.replace("audio_adaptor.linear", "model.multi_modal_projector.linear_")
