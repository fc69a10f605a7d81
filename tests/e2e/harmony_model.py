"""A tiny gpt-oss with random weights: experts in MXFP4, sinks, and windows in every other layer."""

import json
from pathlib import Path
from typing import Any

import torch

from stentor.tests.engine.quantization.checkpoints import mxfp4_experts
from stentor.tests.parity import tiny
from stentor.tests.support.harmony import TEMPLATE, VOCAB, harmony_tokenizer


def make_gpt_oss(folder: Path) -> Any:
    """Writes the checkpoint; gives transformers' model of the same values.

    The logits of a head as small as this one's differ by less than 1, so that a bias of a request decides. The file of
    what to generate names no ``<|call|>``, as that of many conversions: the server has to know that it ends a turn.
    """
    tokenizer = harmony_tokenizer()
    config = tiny.ARCHITECTURES["gpt-oss"]()
    config.vocab_size = VOCAB
    config.max_position_embeddings = 2048
    config.rope_parameters["original_max_position_embeddings"] = 512
    config.bos_token_id, config.pad_token_id = map(tokenizer.token_to_id, ("<|startoftext|>", "<|endoftext|>"))
    config.eos_token_id = tokenizer.token_to_id("<|return|>")
    model = tiny.make_of(config, "gpt-oss", folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.05)
    model.save_pretrained(folder)
    mxfp4_experts(model, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [config.eos_token_id, config.pad_token_id]})
    )
    return model
