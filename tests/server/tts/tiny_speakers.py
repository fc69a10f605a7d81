"""Language models that speak, with made-up weights: a decoder and a tokenizer with the words of each family."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from stentor.tests.engine.tts.tiny_codecs import write_snac, write_vocos
from stentor.tests.support.audio_models import write_tokenizer

transformers: Any = untyped_transformers

CODES: Final = 16
"""Entries of the codebooks of the tiny codecs."""
LLAMA3: Final = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_LLAMA: Final = ("<pad>", "</s>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_SPEECH: Final = ("<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>")


def write_orpheus(folder: Path) -> tuple[Path, Path]:
    """Its folder and that of its codec, which has 4 frames of 7 codes for two seconds."""
    words = [f"<custom_token_{number}>" for number in range(10 + 7 * CODES)]
    _write(folder, [*_LLAMA, *words], transformers.LlamaConfig, transformers.LlamaForCausalLM)
    return folder, write_snac(folder.with_name(f"{folder.name}-snac"), sampling_rate=4096)


def write_neutts(folder: Path) -> tuple[Path, Path]:
    markers = ("<|TEXT_REPLACE|>", "<|SPEECH_REPLACE|>", "<|TEXT_PROMPT_START|>", "<|TEXT_PROMPT_END|>", *_SPEECH)
    words = [f"<|speech_{number}|>" for number in range(CODES)]
    _write(folder, ["<pad>", "</s>", *markers, *words], transformers.Qwen2Config, transformers.Qwen2ForCausalLM)
    return folder, write_vocos(folder.with_name(f"{folder.name}-neucodec"), "neucodec")


def write_llasa(folder: Path) -> tuple[Path, Path]:
    markers = ("<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>", *_SPEECH)
    words = [f"<|s_{number}|>" for number in range(CODES)]
    _write(folder, [*_LLAMA, *markers, *words], transformers.LlamaConfig, transformers.LlamaForCausalLM)
    return folder, write_vocos(folder.with_name(f"{folder.name}-xcodec2"), "xcodec2")


def write_voice(folder: Path, name: str, text: str, codes: Sequence[int]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"text": text, "codes": list(codes)}))


def _write(folder: Path, words: Sequence[str], config: Any, model: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, words, LLAMA3)
    if "<|begin_of_text|>" in words:
        begin_with(folder, "<|begin_of_text|>")
    torch.manual_seed(7)
    made = model(
        config(
            vocab_size=256 + len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=None,
            eos_token_id=257,
            tie_word_embeddings=False,
            initializer_range=0.3,
        )
    )
    with torch.no_grad():
        for end in ("<|SPEECH_GENERATION_END|>", "<custom_token_2>"):
            if end in words:
                made.lm_head.weight[256 + list(words).index(end)] *= 0.5  # it ends some sentences, late
    made.save_pretrained(folder)


def begin_with(folder: Path, bos: str) -> None:
    """Has the tokenizer put ``bos`` before every prompt."""
    file = folder / "tokenizer.json"
    backend = Backend.from_file(str(file))
    backend.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))])
    backend.save(str(file))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
