"""Filling in the middle: the tokens by which models for code are given what stands before a gap and behind it."""

from dataclasses import dataclass
from typing import Final

from .tokenizer import Tokenizer

_NAMED: Final = ("prefix_token", "suffix_token", "middle_token")
"""What a GGUF file calls its own."""
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
"""With which models end what they fill in, besides the end of a turn."""


@dataclass(frozen=True)
class Infill:
    """The texts of one model's tokens, and the ids of those that end what it fills in."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[int, ...]
    file: str = ""
    """What stands before the name of another file of the project; empty where the model has no token for it."""

    def prompt(self, before: str, after: str) -> str:
        """Of a gap between two texts."""
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """None of a model that has no such tokens."""
    ids = {token.content: id for id, token in tokenizer.backend.get_added_tokens_decoder().items()}
    own = tuple(tokenizer.special_tokens.get(name, "") for name in _NAMED)
    for names in (own, *_KNOWN):
        if all(name in ids for name in names):
            ends = (ids[name] for name in (*_ENDS, *names) if name in ids)
            return Infill(names[0], names[1], names[2], tuple(ends), _FILE if _FILE in ids else "")
    return None
