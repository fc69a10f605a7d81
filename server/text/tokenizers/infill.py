"""Fill-in-the-middle: tokens by which code models get the text before and behind a gap."""

from typing import Final

import msgspec

from .tokenizer import Tokenizer

_NAMED: Final = ("prefix_token", "suffix_token", "middle_token")
"""Names of the tokens in a GGUF file."""
_KNOWN: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
)
_FILE: Final = "<|file_sep|>"
_ENDS: Final = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", _FILE, "<|file_separator|>", "<|repo_name|>", "<reponame>"),
    *("<|endoftext|>", "<｜end▁of▁sentence｜>", "▁<EOT>"),
)
"""Tokens that end the filled-in text, besides the end of a turn."""


class Infill(msgspec.Struct, frozen=True):
    """Token texts of one model, and the ids that end its output."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[int, ...]
    file: str = ""
    """Text before another file's name; empty if the model has no token for it."""

    def prompt(self, before: str, after: str) -> str:
        """The prompt of a gap between two texts."""
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """The fill-in-the-middle tokens of a model; None without them."""
    ids = {token.content: id for id, token in tokenizer.backend.get_added_tokens_decoder().items()}
    own = tuple(tokenizer.special_tokens.get(name, "") for name in _NAMED)
    for names in (own, *_KNOWN):
        if all(name in ids for name in names):
            ends = (ids[name] for name in (*_ENDS, *names) if name in ids)
            return Infill(names[0], names[1], names[2], tuple(ends), _FILE if _FILE in ids else "")
    return None
