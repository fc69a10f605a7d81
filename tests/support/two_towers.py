"""Tiny random checkpoints of a tower for texts and one for pictures, whole as the published ones are."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from stentor.server.text.tokenizers.pieces import byte_alphabet

transformers: Any = untyped_transformers

SIDE: Final = 16
"""Pixels on each side of what a tower of one size sees."""
PATCH: Final = 4
BEGIN, END = 256, 257
"""Tokens around a text; those below are bytes."""
LONGEST: Final = 24
"""Tokens of a text."""
SIZES: Final[Mapping[str, Any]] = {"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT: Final[Mapping[str, Any]] = {
    **SIZES,
    "hidden_size": 32,
    "vocab_size": 258,
    "max_position_embeddings": LONGEST,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "pad_token_id": END,
}
VISION: Final[Mapping[str, Any]] = {**SIZES, "hidden_size": 64, "image_size": SIDE, "patch_size": PATCH}
_SQUARE: Final = {"height": SIDE, "width": SIDE}


def _clip() -> tuple[Any, Any]:
    config = transformers.CLIPConfig(text_config={**TEXT}, vision_config={**VISION}, projection_dim=24)
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    return transformers.CLIPModel(config), images


def _siglip() -> tuple[Any, Any]:
    text = {**TEXT, "projection_size": 64}
    config = transformers.SiglipConfig(text_config=text, vision_config={**VISION})
    return transformers.SiglipModel(config), transformers.SiglipImageProcessorPil(size=_SQUARE)


def _siglip2() -> tuple[Any, Any]:
    vision = {name: value for name, value in VISION.items() if name != "image_size"}
    text = {**TEXT, "projection_size": 64}
    config = transformers.Siglip2Config(text_config=text, vision_config={**vision, "num_patches": 16})
    images = transformers.Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=16)
    return transformers.Siglip2Model(config), images


_MAKERS: Final[Mapping[str, tuple[Callable[[], tuple[Any, Any]], str]]] = {
    "clip": (_clip, "CLIPProcessor"),
    "siglip": (_siglip, "SiglipProcessor"),
    "siglip2": (_siglip2, "Siglip2Processor"),
}
NAMES: Final = tuple(_MAKERS)


def write_towers(name: str, folder: Path) -> Any:
    """Into ``folder``; the model is transformers'."""
    make, processor = _MAKERS[name]
    torch.manual_seed(7)
    model, images = make()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.15)
    model.save_pretrained(folder)
    images.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": processor}))
    backend = Backend(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(["<s>", "</s>"])
    around = "<s> $A </s>" if name == "clip" else "$A </s>"
    backend.post_processor = TemplateProcessing(around, special_tokens=[("<s>", BEGIN), ("</s>", END)])
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "processor_class": processor}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return model


def ids_of(name: str, text: str) -> list[int]:
    """A text as the model's tokenizer writes it, filled up where the model wants it so."""
    ids = [*([BEGIN] if name == "clip" else []), *text.encode(), END]
    return ids if name == "clip" else ids + [END] * (LONGEST - len(ids))
