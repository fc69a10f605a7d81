"""A vision model of SmolVLM-256M's sizes, without a download: for ``stentor serve --load-format dummy``.

Weights are drawn by the server. The tokenizer has a token for each byte, and others that no text is made of, so that
the vocabulary is as large as the model's; the processor and the chat template do what SmolVLM's do.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .series import CONFIGS

_FOLDER: Final = CONFIGS / "smolvlm-256m"
_SPECIAL: Final = (
    *("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
_TEMPLATE: Final = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'] is string %}{{ ': ' + message['content'] }}{% else %}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def write_seeing_model(folder: Path, *, tiles: int = 4) -> None:
    """Makes ``folder`` such a model, which cuts a picture into so many tiles on its longer side."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_FOLDER / "config.json", folder)
    config: dict[str, Any] = json.loads((_FOLDER / "config.json").read_text())
    size = config["text_config"]["vocab_size"]
    special = {size - len(_SPECIAL) + place: text for place, text in enumerate(_SPECIAL)}
    _write(folder / "tokenizer.json", made_up_tokenizer(size, special | {config["image_token_id"]: "<image>"}))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "Idefics3Processor",
            "eos_token": "<end_of_utterance>",
            "pad_token": "<end_of_utterance>",
            "clean_up_tokenization_spaces": False,
        },
    )
    side = config["vision_config"]["image_size"]
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_image_splitting": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": side},
            "size": {"longest_edge": tiles * side},
        },
    )
    patches = (side // config["vision_config"]["patch_size"]) ** 2
    tokens = patches // config["scale_factor"] ** 2
    _write(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": tokens})
    (folder / "chat_template.jinja").write_text(_TEMPLATE)


def made_up_tokenizer(size: int, special: Mapping[int, str]) -> Mapping[str, Any]:
    """The content of ``tokenizer.json``: a byte's id is its value, those of special tokens are given, and the rest of
    ``size`` are words that no text is made of."""
    from tokenizers import AddedToken, Tokenizer  # late: the tools that need none start without
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {special.get(id, f"Ġword{id}"): id for id in range(len(alphabet), size)}
    made = Tokenizer(BPE({**{letter: id for id, letter in enumerate(alphabet)}, **vocabulary}, []))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = Decoder()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special.values()])
    found: Mapping[str, Any] = json.loads(made.to_str())
    return found


def _write(file: Path, what: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(what))
