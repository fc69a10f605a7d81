"""Tiny random Moonshines of transformers' own making."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers
from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.server.text.tokenizers.pieces import byte_alphabet

transformers: Any = untyped_transformers

START = 1
SHAPE: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 80,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_head_dim_to_multiple_of": 8,
}


def tiny(seed: int = 0, **changes: Any) -> Any:
    """transformers' model in float32."""
    torch.manual_seed(seed)
    config = transformers.MoonshineConfig(**{**SHAPE, **changes}, attn_implementation="eager")
    return enlarged(transformers.MoonshineForConditionalGeneration(config).float().eval())


STREAMING: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1600,
}
STREAMING_ENCODER: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "sliding_windows": [[16, 4], [5, 0], [3, 1]],
}


def tiny_streaming(seed: int = 0, encoder: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """The same of Moonshine Streaming; ``encoder``: changes of its encoder."""
    torch.manual_seed(seed)
    config = transformers.MoonshineStreamingConfig(
        **{**STREAMING, **changes}, encoder_config={**STREAMING_ENCODER, **(encoder or {})}, attn_implementation="eager"
    )
    return enlarged(transformers.MoonshineStreamingForConditionalGeneration(config).float().eval())


PROMPTED = (
    *("▁", "<|endoftext|>", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|pnc|>"),
    *("<|noitn|>", "<|notimestamp|>", "<|nodiarize|>", "<|en|>", "<|de|>", "<|uk|>", "<|ja|>"),
)
CONFORMER: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 72,
    "num_mel_bins": 16,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 5,
    "scale_input": False,
}
DECODER: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
}


def tiny_canary(encoder: Mapping[str, Any] | None = None, decoder: Mapping[str, Any] | None = None) -> Any:
    """A Canary, with changes of both parts."""
    torch.manual_seed(0)
    parts = {**CONFORMER, **(encoder or {})}, {**DECODER, **(decoder or {})}
    config = transformers.CanaryConfig(
        encoder_config=transformers.ParakeetEncoderConfig(**parts[0]),
        decoder_config=parts[1],
        vocab_size=parts[1]["vocab_size"],
        attn_implementation="eager",
    )
    return enlarged(transformers.CanaryForConditionalGeneration(config).float().eval())


def tiny_cohere(encoder: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """A Cohere Transcribe, with changes of both parts."""
    torch.manual_seed(0)
    parts = {**CONFORMER, "hidden_size": 36, **(encoder or {})}, {**DECODER, **changes}
    config = transformers.CohereAsrConfig(
        **parts[1], encoder_config=transformers.ParakeetEncoderConfig(**parts[0]), attn_implementation="eager"
    )
    return enlarged(transformers.CohereAsrForConditionalGeneration(config).float().eval())


def tiny_speech2text(**changes: Any) -> Any:
    """A Speech2Text. ``START`` is another token than its padding, which transformers gives no position."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 200,
        "d_model": 48,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 80,
        "decoder_ffn_dim": 72,
        "conv_channels": 40,
        "input_feat_per_channel": 16,
        "max_target_positions": 64,
        "pad_token_id": 3,
    }
    config = transformers.Speech2TextConfig(**{**sizes, **changes}, attn_implementation="eager")
    return enlarged(transformers.Speech2TextForConditionalGeneration(config).float().eval())


SEAMLESS: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 3,
    "speech_encoder_intermediate_size": 72,
    "feature_projection_input_dim": 32,
    "conv_depthwise_kernel_size": 5,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "char_vocab_size": 20,
    "t2u_vocab_size": 40,
    "t2u_encoder_layers": 1,
    "t2u_decoder_layers": 1,
    "t2u_encoder_ffn_dim": 32,
    "t2u_decoder_ffn_dim": 32,
    "t2u_encoder_attention_heads": 2,
    "t2u_decoder_attention_heads": 2,
    "t2u_variance_predictor_embed_dim": 48,
    "t2u_variance_predictor_hidden_dim": 16,
    "unit_hifi_gan_vocab_size": 40,
    "vocoder_offset": 0,
    "unit_embed_dim": 16,
    "lang_embed_dim": 8,
    "spkr_embed_dim": 8,
    "vocoder_num_langs": 4,
    "vocoder_num_spkrs": 3,
    "upsample_initial_channel": 32,
}


def tiny_seamless(which: str = "v2ForSpeechToText", **changes: Any) -> Any:
    """SeamlessM4T, of a version and for a task."""
    torch.manual_seed(0)
    version = "v2" if which.startswith("v2") else ""
    own = {"left_max_position_embeddings": 9, "right_max_position_embeddings": 4} if version else {}
    config = getattr(transformers, f"SeamlessM4T{version}Config")(
        **{**SEAMLESS, **own, **changes}, attn_implementation="eager"
    )
    return enlarged(getattr(transformers, f"SeamlessM4T{which}")(config).float().eval())


def enlarged(model: Any) -> Any:
    """With weights large enough for every part to count."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running_" in name:
                buffer.uniform_(0.6, 1.4)
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.6, 1.4)
            elif name == "model.encoder.conv1.weight":
                parameter.normal_(0, 3.0)
            else:
                parameter.normal_(0, 0.15)
    return model


def write_prompted(folder: Path, make: Callable[..., Any] = tiny_canary, names: Sequence[str] = PROMPTED) -> Path:
    """A folder with a Canary or a Cohere Transcribe and a tokenizer of 256 bytes, behind them the tokens ``names``."""
    model = make()
    model.config.eos_token_id = 256 + names.index("<|endoftext|>")
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(folder)
    backend = Backend(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write_moonshine(folder: Path, make: Callable[..., Any] = tiny, **changes: Any) -> Path:
    """A folder with a model of 1,000 tokens, made by ``make`` with changes, and a tokenizer of sentencepiece's form.

    That has three marks, bytes, letters and pairs of letters, some of which begin a word.
    """
    make(vocab_size=1000, **changes).save_pretrained(folder)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    pieces += [f"▁{letter}" for letter in letters] + [one + other for one in letters for other in letters]
    merges = [("▁", letter) for letter in letters] + [(one, other) for one in letters for other in letters]
    backend = Backend(
        BPE({piece: id for id, piece in enumerate(pieces[:1000])}, merges[:600], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in pieces[:3]])
    backend.save(str(folder / "tokenizer.json"))
    return folder
