"""The files of models that write about a picture, without weights: a tokenizer of bytes, and a processor of pixels."""

import json
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from stentor.server.media.processors.images.parse import ParseImages
from stentor.server.media.processors.images.pix2struct import Pix2StructImages
from stentor.server.text.tokenizers.pieces import byte_alphabet

transformers: Any = untyped_transformers

START: Final = 256
END: Final = 257
TASK: Final = 258
VOCAB: Final = 260
SPECIAL: Final[dict[str, Any]] = {
    **{"vocab_size": VOCAB, "bos_token_id": START, "eos_token_id": END, "pad_token_id": END},
    "decoder_start_token_id": START,
}
"""Fields of a decoder with this vocabulary."""
SIDES: Final = {
    "BlipProcessor": (32, 32),
    "DonutProcessor": (32, 64),
    "Florence2Processor": (64, 64),
    "NemotronParseProcessor": (96, 72),
    "NougatProcessor": (64, 32),
    "TrOCRProcessor": (32, 32),
}
"""Height and width of pixels."""
SHAPED: Final = "Pix2StructProcessor"
"""One that leaves pictures their shape."""
OWN_NORMS: Final = ("NemotronParseProcessor",)
"""Those whose pixels the encoder norms."""


def images_of(name: str) -> Any:
    """The image processor of the processor ``name``: transformers', if it has one."""
    if name == SHAPED:
        return Pix2StructImages(max_patches=49, patch_size={"height": 8, "width": 8})
    height, width = SIDES[name]
    size = {"height": height, "width": width}
    match name:
        case "DonutProcessor":
            return transformers.DonutImageProcessorPil(size=size, do_align_long_axis=False)
        case "Florence2Processor":
            return transformers.CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
        case "BlipProcessor":
            return transformers.BlipImageProcessorPil(size=size)
        case "NemotronParseProcessor":
            return ParseImages(size=size, image_mean=[0.0] * 3, image_std=[1.0] * 3)
        case "NougatProcessor":
            return transformers.NougatImageProcessorPil(size=size)
        case _:
            return transformers.ViTImageProcessorPil(size=size)


def write_files(folder: Path, name: str) -> None:
    """Writes them for the processor ``name``. Texts that get special tokens stand between ``<s>`` and ``</s>``."""
    backend = Tokenizer(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    names = ("<s>", "</s>", "<s_cord-v2>")
    backend.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in names])
    backend.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)])
    backend.save(str(folder / "tokenizer.json"))
    images_of(name).save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "do_normalize": name not in OWN_NORMS, "processor_class": name})
    )
