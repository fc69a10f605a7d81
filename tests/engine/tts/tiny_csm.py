"""A checkpoint of CSM as transformers writes it, with made-up weights. Mimi's strides are the published ones, which the
processor counts frames by."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    EncodecFeatureExtractor,
    GenerationConfig,
    MimiConfig,
    PreTrainedTokenizerFast,
)

from stentor.tests.support.audio_models import write_tokenizer

_WORDS = ("<pad>", "</s>", "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|begin_of_text|>[' ~ message['role'] ~ ']' }}"
    "{% for item in message['content'] %}"
    "{% if item['type'] == 'text' %}{{ item['text'] ~ '<|end_of_text|>' }}{% else %}"
    "{{ '<|AUDIO|><|audio_eos|>' }}{% endif %}{% endfor %}{% endfor %}"
)
CODES = 16


def write_tiny_csm(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    write_tokenizer(folder, _WORDS, _TEMPLATE)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _WORDS}
    codec = MimiConfig(
        hidden_size=16,
        num_filters=2,
        codebook_size=CODES,
        codebook_dim=8,
        vector_quantization_hidden_dimension=8,
        num_quantizers=3,
        num_semantic_quantizers=1,
        upsample_groups=16,
        num_hidden_layers=2,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=6,
        layer_scale_initial_scale=1.0,
    )
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "num_codebooks": 3,
        "vocab_size": CODES,
        "initializer_range": 0.2,
    }
    config = CsmConfig(
        **sizes,
        text_vocab_size=len(tokenizer),
        max_position_embeddings=256,
        codebook_pad_token_id=CODES - 1,
        codebook_eos_token_id=0,
        bos_token_id=ids["<|begin_of_text|>"],
        pad_token_id=ids["<pad>"],
        audio_token_id=ids["<|AUDIO|>"],
        audio_eos_token_id=ids["<|audio_eos|>"],
        depth_decoder_config={**sizes, "backbone_hidden_size": 32, "max_position_embeddings": 4},
        codec_config=codec.to_dict(),
    )
    model = CsmForConditionalGeneration(config)
    with torch.no_grad():
        for layer in model.codec_model.quantizer.modules():
            if hasattr(layer, "embed_sum"):
                layer.embed_sum.normal_()
        model.codec_model.decoder.decoder_seanet.layers[-1].conv.weight.mul_(0.02)
        model.lm_head.weight[0] *= 1.8  # the first code of a frame that may end the sentence
        model.depth_decoder.codebooks_head.weight[..., 0] *= 1.8
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.9, top_k=8, pad_token_id=ids["<pad>"])
    model.depth_decoder.generation_config = GenerationConfig(do_sample=True, temperature=0.9, top_k=8)
    model.save_pretrained(folder)
    extractor = EncodecFeatureExtractor(sampling_rate=24000)
    CsmProcessor(extractor, tokenizer, chat_template=_TEMPLATE).save_pretrained(folder)
    return folder
