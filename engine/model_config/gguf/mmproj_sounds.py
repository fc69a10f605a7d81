"""Reads projector files with an audio encoder, alone or beside a vision encoder. Values without keys are those of all
published models of the family."""

from ..config_fields import MOST_LAYERS, ConfigError
from ..speech.whisper import MOST_MEL_BINS
from .mmproj_file import ProjectorFile, TextFile, Values, decoder
from .mmproj_vision import gemma4, qwen2_5, qwen3


def ultravox(file: ProjectorFile, text: TextFile) -> Values:
    """Ultravox from version 0.5; earlier files lack a norm."""
    if "mm.a.norm_mid.weight" not in file.shapes:
        raise ConfigError("the tensor mm.a.norm_mid.weight is missing")
    return {
        "hidden_size": file.outputs("mm.a.mlp.1.weight"),
        "stack_factor": file.audio.integer("projector.stack_factor"),
        "projector_act": "swiglu",
        "projector_ln_mid": True,
        "audio_config": {**file.whisper(), "model_type": "whisper"},
    }


def voxtral(file: ProjectorFile, text: TextFile) -> Values:
    return {"text_config": decoder(text, "llama"), "audio_config": file.whisper()}


def qwen2_audio(file: ProjectorFile, text: TextFile) -> Values:
    return {"text_config": decoder(text, "qwen2"), "audio_config": file.whisper()}


def qwen3_asr(file: ProjectorFile, text: TextFile) -> Values:
    return {"text_config": decoder(text, "qwen3"), "audio_config": _by_seconds(file)}


def _by_seconds(file: ProjectorFile) -> Values:
    """All published models encode each second of audio separately."""
    own = {"output_dim": file.embedding, "downsample_hidden_size": file.shapes.get("a.conv2d.1.weight", (0,))[-1]}
    encoder = {name: value for name, value in file.whisper().items() if name != "max_source_positions"}
    return {**encoder, **own}


def granite_speech(file: ProjectorFile, text: TextFile) -> Values:
    """A conformer (arXiv:2005.08100), and a Q-Former (arXiv:2301.12597) that makes a few embeddings of each window."""
    audio = file.audio
    hidden = audio.integer("embedding_length")
    encoder = {
        "input_dim": audio.integer("num_mel_bins", most=MOST_MEL_BINS),
        "num_layers": audio.integer("block_count", most=MOST_LAYERS),
        "hidden_dim": hidden,
        "feedforward_mult": file.outputs("a.blk.0.ffn_up.weight") // hidden,
        "num_heads": audio.integer("attention.head_count"),
        "dim_head": file.shapes.get("a.blk.0.attn_rel_pos_emb", (0,))[0],
        "output_dim": file.outputs("a.enc_ctc_out.weight"),
        "context_size": audio.integer("chunk_size"),
        "max_pos_emb": audio.integer("max_pos_emb"),
        "conv_kernel_size": audio.integer("conv_kernel_size"),
        "conv_expansion_factor": file.outputs("a.blk.0.conv_pw1.weight") // (2 * hidden),
    }
    ups = (f"a.proj_blk.{layer}.ffn_up.weight" for layer in range(MOST_LAYERS))
    former = {
        "model_type": "blip_2_qformer",
        "hidden_size": hidden,
        "encoder_hidden_size": hidden,
        "num_hidden_layers": sum(name in file.shapes for name in ups),
        "num_attention_heads": audio.integer("projector.head_count"),
        "intermediate_size": file.outputs("a.proj_blk.0.ffn_up.weight"),
        "cross_attention_frequency": 1,
    }
    return {
        "text_config": decoder(text, "granite"),
        "encoder_config": encoder,
        "projector_config": former,
        "window_size": audio.integer("projector.window_size"),
        "downsample_rate": audio.integer("projector.downsample_rate"),
        "has_lora_adapter": False,
    }


def qwen2_5_omni(file: ProjectorFile, text: TextFile) -> Values:
    return {
        **qwen2_5(file, text),
        "text_config": decoder(text, "qwen2_5_omni_text"),
        "audio_config": {**file.whisper(), "output_dim": file.audio.integer("projection_dim")},
        "position_id_per_seconds": 25,
    }


def qwen3_omni(file: ProjectorFile, text: TextFile) -> Values:
    return {
        "vision_config": qwen3(file, text)["vision_config"],
        "text_config": decoder(text, "qwen3_omni_moe_text"),
        "audio_config": _by_seconds(file),
        "position_id_per_seconds": 13,
    }


def gemma4_small(file: ProjectorFile, text: TextFile) -> Values:
    """Small Gemma 4: as :func:`gemma4`, with a Conformer for sounds beside the tower; both clip activations."""
    audio = file.audio
    encoder = {
        "hidden_size": audio.integer("embedding_length"),
        "num_hidden_layers": audio.integer("block_count", most=MOST_LAYERS),
        "num_attention_heads": audio.integer("attention.head_count"),
        "rms_norm_eps": audio.number("attention.layer_norm_epsilon"),
        "subsampling_conv_channels": [file.shapes.get(f"a.conv1d.{each}.weight", (0,))[-1] for each in range(2)],
        "conv_kernel_size": file.shapes.get("a.blk.0.conv_dw.weight", (0,))[0],
        "output_proj_dims": file.outputs("a.pre_encode.out.weight"),
        "use_clipped_linears": "a.blk.0.attn_q.input_max" in file.shapes,
    }
    return {**gemma4(file, text), "audio_config": encoder}
