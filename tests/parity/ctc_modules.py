"""Tiny random models of transformers' with a CTC head, whose scores differ from position to position."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from stentor.tests.parity.test_whisper import sound
from stentor.tests.parity.transcribers import transformers

LETTERS: Final = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVKXJQZ'")
"""The vocabulary of wav2vec 2.0 for English, whose first token is the blank."""
SIZES: Final[Mapping[str, Any]] = {
    "vocab_size": len(LETTERS),
    "pad_token_id": 0,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
_CONVOLUTIONS: Final[Mapping[str, Any]] = {
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
_LAYER_NORMS: Final = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
_SEW: Final = {**_CONVOLUTIONS, "conv_dim": [8] * 13}
_LASR: Final = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "subsampling_conv_channels": 16,
    "num_mel_bins": 20,
    "conv_kernel_size": 9,
}
_GRANITE: Final = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_mel_bins": 20,
    "context_size": 16,
    "max_position_embeddings": 24,
    "vocab_size": len(LETTERS),
}
_OMNI: Final = {**_CONVOLUTIONS, **{name: SIZES[name] for name in SIZES if name.startswith(("hidden", "num", "inter"))}}
_NESTED: Final = {
    "Lasr": ("encoder_config", _LASR),
    "GraniteSpeech5": ("encoder_config", _GRANITE),
    "OmniASR": ("audio_config", _OMNI),
}
"""The table of the encoder, and its fields, where its configuration is one of its own."""
KINDS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "wav2vec2": ("Wav2Vec2", _CONVOLUTIONS),
    "wav2vec2, large": ("Wav2Vec2", {**_CONVOLUTIONS, **_LAYER_NORMS}),
    "wav2vec2, with an adapter": (
        "Wav2Vec2",
        {**_CONVOLUTIONS, "add_adapter": True, "num_adapter_layers": 1, "output_hidden_size": 24},
    ),
    "wav2vec2, of several languages": ("Wav2Vec2", {**_CONVOLUTIONS, **_LAYER_NORMS, "adapter_attn_dim": 4}),
    "hubert": ("Hubert", _CONVOLUTIONS),
    "hubert, with a batch norm": ("Hubert", {**_CONVOLUTIONS, "conv_pos_batch_norm": True}),
    "wavlm": ("WavLM", {**_CONVOLUTIONS, "num_buckets": 16}),
    "wav2vec2-bert": ("Wav2Vec2Bert", {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 5}),
    "wav2vec2-bert, with an adapter": ("Wav2Vec2Bert", {"add_adapter": True, "conv_depthwise_kernel_size": 5}),
    "wav2vec2-conformer": ("Wav2Vec2Conformer", {**_CONVOLUTIONS, "conv_depthwise_kernel_size": 5}),
    "wav2vec2-conformer, with rotary positions": (
        "Wav2Vec2Conformer",
        {**_CONVOLUTIONS, "position_embeddings_type": "rotary", "conv_depthwise_kernel_size": 5},
    ),
    "unispeech": ("UniSpeech", _CONVOLUTIONS),
    "unispeech-sat": ("UniSpeechSat", _CONVOLUTIONS),
    "data2vec": (
        "Data2VecAudio",
        {"conv_dim": [16] * 7, "conv_pos_kernel_size": 5, "num_conv_pos_embedding_groups": 2},
    ),
    "sew": ("SEW", _SEW),
    "sew-d": ("SEWD", {**_SEW, "position_buckets": 8, "max_position_embeddings": 64}),
    "lasr": ("Lasr", {}),
    "granite speech 5": ("GraniteSpeech5", {}),
    "granite speech 5, halving once": ("GraniteSpeech5", {"subsample_layers": [2]}),
    "omniasr": ("OmniASR", {}),
}
"""By what it shows: the beginning of transformers' class names, and fields of its configuration."""


def tiny(kind: str) -> Any:
    """transformers' model in float32."""
    torch.manual_seed(0)
    name, changes = KINDS[kind]
    given = {**SIZES, **changes}
    if name in _NESTED:
        table, sizes = _NESTED[name]
        given = {"vocab_size": len(LETTERS), table: {**sizes, **changes}}
        given |= {"blank_token_id": 2, "pad_token_id": 1} if name == "OmniASR" else {"pad_token_id": 0}
    config = getattr(transformers, f"{name}CTCConfig" if name in _NESTED else f"{name}Config")(**given)
    model = getattr(transformers, f"{name}ForCTC")(config).float().eval()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
            elif each.endswith("bias"):
                parameter.normal_(0, 0.1)
        _spread(model)
    return model


def _spread(model: Any) -> None:
    """Gives each token's scores a mean of 0 and a deviation of 2, but the blank's a higher mean."""
    head = model.ctc_head if hasattr(model, "ctc_head") else model.lm_head
    head.weight.normal_(0, 1.0)
    head.bias.zero_()
    made = model(**features(model, sound(5.0, 0))).logits[0]
    factor = 2 / made.std(0).mean()
    head.weight.mul_(factor)
    head.bias.copy_(made.mean(0) * -factor)
    head.bias[blank_of(model)] += 1.0


def blank_of(model: Any) -> int:
    """The number of the token that says nothing."""
    blank: int = getattr(model.config, "blank_token_id", model.config.pad_token_id)
    return blank


def extractor(model: Any) -> Any:
    kind = model.config.model_type
    if kind == "wav2vec2-bert":
        return transformers.SeamlessM4TFeatureExtractor()
    if kind == "lasr_ctc":
        return transformers.LasrFeatureExtractor(feature_size=model.config.encoder_config.num_mel_bins)
    if kind == "granite_speech5_ctc":
        return _GraniteFeatures(model.config.encoder_config.num_mel_bins)
    if kind == "omniasr_ctc":
        return transformers.OmniASRFeatureExtractor()
    return transformers.Wav2Vec2FeatureExtractor()


class _GraniteFeatures(transformers.SequenceFeatureExtractor):  # type: ignore[misc]
    """What transformers' GraniteSpeech5FeatureExtractor makes with torchaudio, by transformers' own spectrogram."""

    def __init__(self, bins: int) -> None:
        super().__init__(feature_size=4 * bins, sampling_rate=16_000, padding_value=0.0, num_mel_bins=bins)

    def __call__(self, samples: Any, **_: Any) -> dict[str, torch.Tensor]:
        count = 2 * -(-(len(samples) // 160) // 2)
        mel = spectrogram(
            np.pad(samples.astype(np.float64), (0, max(0, (count - 1) * 160 + 1 - len(samples)))),
            window_function(400, "hann", frame_length=512),
            frame_length=512,
            hop_length=160,
            power=2.0,
            mel_filters=mel_filter_bank(257, self.num_mel_bins, 0.0, 8000.0, 16_000, mel_scale="htk"),
            mel_floor=1e-10,
        )[:, :count]
        mel = np.log10(mel.T)
        mel = np.maximum(mel, mel.max() - 8.0) / 4 + 1
        around = np.pad(mel, ((1, 1), (0, 0)), mode="edge")
        joined = np.concatenate([mel, (around[2:] - around[:-2]) / 2], 1)
        return {"input_features": torch.from_numpy(joined.reshape(1, count // 2, -1)).float()}


def features(model: Any, pcm: bytes) -> dict[str, torch.Tensor]:
    """The input that the model's own processor makes, of audio filled with silence to a tenth of a second, or to what
    the first position sees."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    fewest = 2320 if model.config.model_type == "lasr_ctc" else 1600
    samples = np.pad(samples, (0, max(0, fewest - len(samples))))
    return dict(extractor(model)(samples, sampling_rate=16_000, return_tensors="pt"))


def write_languages(folder: Path) -> Path:
    """A model of English with an adapter for German, whose letters have other numbers, and one for Uzbek."""
    write_letters(folder, "wav2vec2, of several languages", target_lang="eng")
    letters = json.loads((folder / "vocab.json").read_text())
    german = {"<pad>": 0, "ß": 1, "|": 2, **{letter: 3 + place for place, letter in enumerate("ABCDEFGHIJKLMN")}}
    vocabularies = {"eng": letters, "deu": german, "uzb-script_latin": letters}
    (folder / "vocab.json").write_text(json.dumps(vocabularies))
    model = tiny("wav2vec2, of several languages")
    for seed, name in enumerate(("deu", "uzb-script_latin"), 1):
        torch.manual_seed(seed)
        tensors = {each: torch.randn_like(tensor) for each, tensor in model._get_adapters().items()}
        rows = len(vocabularies[name])
        tensors |= {"lm_head.weight": torch.randn(rows, 32), "lm_head.bias": torch.zeros(rows)}
        save_file(tensors, folder / f"adapter.{name}.safetensors")
    return folder


def write_letters(folder: Path, kind: str = "wav2vec2", letters: Sequence[str] = LETTERS, **settings: Any) -> Path:
    """A folder with a model, its vocabulary of letters and ``settings`` of its tokenizer."""
    model = tiny(kind)
    model.save_pretrained(folder)
    extractor(model).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: id for id, letter in enumerate(letters)}))
    named = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "word_delimiter_token": "|", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def write_omniasr(folder: Path, letters: Sequence[str]) -> Path:
    """A folder with an OmniASR whose tokenizer has ``letters``, as its makers' files have: with a plain space."""
    model = tiny("omniasr")
    model.config.update({"vocab_size": len(letters), "blank_token_id": 0, "architectures": [type(model).__name__]})
    model.config.save_pretrained(folder)
    extractor(model).save_pretrained(folder)
    backend = Backend(BPE({letter: id for id, letter in enumerate(letters)}, []))
    backend.normalizer = normalizers.Strip()
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in letters[:4]])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ParakeetTokenizer"}))
    return folder
