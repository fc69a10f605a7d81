"""Checkpoints of Pocket TTS and of Phonon as transformers writes them, with made-up weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    GradiumPhononTTSConfig,
    GradiumPhononTTSForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.pocket_tts.feature_extraction_pocket_tts import PocketTTSFeatureExtractor

SPECIAL = {
    "audio_prompt_token": "<voice>",
    "audio_latent_token": "<latent>",
    "audio_prompt_bos_token": "<voice_bos>",
    "audio_bos_token": "<audio_bos>",
}
TEMPLATE = (
    "{% for message in messages %}{% for item in message['content'] %}{% if item['type'] == 'audio' %}"
    "{{ '<voice_bos><voice>' }}{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endfor %}{{ '<audio_bos>' }}"
)
DIM = 4
PROMPT_DIM = 6
"""Of the latents that Phonon's voices are."""


def write_tiny_pocket(folder: Path) -> Path:
    """Two voices: ``ann`` (latents of 20 frames) and ``bob`` (5 frames)."""
    return _write(folder, SPECIAL, TEMPLATE, PocketTTSConfig, PocketTTSForConditionalGeneration, DIM)


def write_tiny_phonon(folder: Path) -> Path:
    """The same voices, of other latents."""
    special = {name: token for name, token in SPECIAL.items() if name != "audio_prompt_bos_token"}
    template = TEMPLATE.replace("<voice_bos>", "")
    kind, model = GradiumPhononTTSConfig, GradiumPhononTTSForConditionalGeneration
    more = {"audio_prompt_dim": PROMPT_DIM, "duration_delta_embedding_dim": 8, "num_speakers": 2}
    return _write(folder, special, template, kind, model, PROMPT_DIM, more)


def _write(
    folder: Path,
    special: dict[str, str],
    template: str,
    kind: Any,
    whole: Any,
    prompt_dim: int,
    more: dict[str, Any] | None = None,
) -> Path:
    torch.manual_seed(3)
    codec = PocketTTSAudioTokenizerModel(
        PocketTTSAudioTokenizerConfig(
            sampling_rate=8000,
            hidden_size=16,
            num_filters=2,
            upsampling_ratios=[4, 2],
            latent_stride=4,
            latent_dim=DIM,
            upsample_groups=16,
            intermediate_size=32,
            num_attention_heads=2,
            num_key_value_heads=2,
            sliding_window=10,
            layer_scale_initial_scale=1.0,
        )
    )
    with torch.no_grad():
        for parameter in codec.parameters():
            parameter.mul_(0.7)
    codec.save_pretrained(folder / "codec")
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()))
    vocabulary = {letter: number for number, letter in enumerate(["<pad>", "<unk>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", extra_special_tokens=special
    )
    ids = {f"{name}_id": wrapped.convert_tokens_to_ids(token) for name, token in special.items()}
    config = kind(
        vocab_size=len(wrapped),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        latent_dim=DIM,
        pad_token_id=0,
        flow_head_config={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "latent_dim": DIM,
            "condition_dim": 32,
            "frequency_embedding_size": 8,
        },
        **ids,
        **(more or {}),
        initializer_range=0.15,
    )
    model = whole(config)
    model.latent_std.fill_(1.5)
    model.latent_mean.fill_(0.1)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, num_flow_steps=2, eos_threshold=4.0, pad_token_id=0
    )
    model.save_pretrained(folder)
    processor = PocketTTSProcessor(
        PocketTTSFeatureExtractor(sampling_rate=8000, frame_size=32, pad_to_multiple_of=32),
        wrapped,
        audio_tokenizer=PocketTTSAudioTokenizerModel.from_pretrained(folder / "codec"),
        chat_template=template,
    )
    processor.save_pretrained(folder)
    _name_codec(folder / "processor_config.json", "codec")
    (folder / "voices").mkdir()
    for name, frames in (("ann", 20), ("bob", 5)):
        save_file({"latents": torch.randn(frames, prompt_dim)}, folder / "voices" / f"{name}.safetensors")
    return folder


def _name_codec(file: Path, name: str) -> None:
    described = json.loads(file.read_bytes())
    described["audio_tokenizer"]["audio_tokenizer_name_or_path"] = name
    file.write_text(json.dumps(described))
