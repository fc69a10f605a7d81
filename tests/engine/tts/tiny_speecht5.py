"""A checkpoint of SpeechT5 and its vocoder as transformers writes them, with made-up weights."""

import io
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import (
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    SpeechT5Tokenizer,
)

SPEAKER_DIM = 6
RATE = 1600


def write_tiny_speecht5(folder: Path) -> Path:
    """Two voices: ``ann`` and ``bob``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(2)
    letters = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog", "Hello there. How are you?"] * 4),
        model_writer=letters,
        model_type="char",
        vocab_size=48,
        hard_vocab_limit=False,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    (folder / "spm_char.model").write_bytes(letters.getvalue())
    tokenizer = SpeechT5Tokenizer(str(folder / "spm_char.model"))
    tokenizer.save_pretrained(folder)
    config = SpeechT5Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_layers=1,
        decoder_ffn_dim=24,
        decoder_attention_heads=2,
        num_mel_bins=4,
        speech_decoder_prenet_units=8,
        speaker_embedding_dim=SPEAKER_DIM,
        speech_decoder_postnet_units=8,
        speech_decoder_postnet_layers=2,
        max_text_positions=40,
        max_speech_positions=300,
        encoder_max_relative_position=8,
        initializer_range=0.3,
        reduction_factor=4,
    )
    SpeechT5ForTextToSpeech(config).save_pretrained(folder)
    vocoder = SpeechT5HifiGanConfig(
        model_in_dim=4,
        sampling_rate=RATE,
        upsample_initial_channel=8,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3, 5]],
        initializer_range=0.4,
    )
    SpeechT5HifiGan(vocoder).save_pretrained(folder / "vocoder")
    (folder / "voices").mkdir()
    for name in ("ann", "bob"):
        save_file({"xvector": torch.randn(1, SPEAKER_DIM)}, folder / "voices" / f"{name}.safetensors")
    return folder
