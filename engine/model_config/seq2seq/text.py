"""Describes encoder-decoders from text, or from a picture, to text as values. Torch-free."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.cache import CacheSpec
from ..spec.model import Backbone, HeadTransformSpec, cache_groups_of
from ..spec.picture_source import PictureSource
from ..spec.seq2seq import EMBEDDING, Seq2SeqConfig
from ..spec.token_input import TokenInputSpec

HONOURED: Final = ("forced_bos_token_id", "bad_words_ids")
"""Fields of a generation_config.json that count for these models alone."""


class Stack(msgspec.Struct, frozen=True):
    """The encoder or the decoder: from tokens to hidden states."""

    layers: Backbone
    input: TokenInputSpec
    norm: str
    """Stored name of the norm behind the layers, of their kind; "": none."""
    words: str = EMBEDDING
    """Name of the embeddings of tokens, which are usually those of both stacks."""


class Decoding:
    """What a config tells of its decoder if that is a stack."""

    __slots__ = ()
    decoder_stack: Stack

    @property
    def decoder(self) -> Backbone:
        return self.decoder_stack.layers

    @property
    def decoder_norm(self) -> str:
        return self.decoder_stack.norm

    @property
    def decoder_input(self) -> TokenInputSpec:
        return self.decoder_stack.input


class Rename(NamedTuple):
    """Stored names that begin with a match of the regular expression ``pattern`` begin, here, with what ``name`` makes
    of its groups."""

    pattern: str
    name: str


UNUSED_PART: Final = "unused"
"""The name of all tensors of parts that are not used."""


def renamed(stored: str, renames: Iterable[Rename]) -> str:
    """A stored name as the first of ``renames`` that matches changes it."""
    for pattern, name in renames:
        if (found := re.match(pattern, stored)) is not None:
            return found.expand(name) + stored[found.end() :]
    return stored


class TextToTextConfig(Decoding, Seq2SeqConfig, frozen=True, kw_only=True):
    """An encoder of a text, of a picture, or of a picture and a text behind it; and a decoder that attends to it."""

    encoder_stack: Stack | None
    """Of texts; None if the decoder attends to what :attr:`pictures` makes of a picture."""
    decoder_stack: Stack
    pictures: PictureSource | None = None
    """None: a text is all that the encoder takes."""
    decoder_start: tuple[int, ...]
    """Tokens with which every output begins before the first sampled one."""
    bounded: bool = True
    """Whether positions are stored for so many tokens; otherwise both stacks take any number."""
    scale_logits: float = 1.0
    logits_softcap: float = 0.0
    head_transform: HeadTransformSpec | None = None
    """What stands before the head (BLIP)."""
    logits_bias: str = ""
    """Stored name of what is added to logits if a file has it; "": nothing."""
    renames: tuple[Rename, ...] = ()
    """From stored names to those here; the first that matches counts."""
    never: tuple[int, ...] = ()
    """Tokens that no output contains."""
    unused: tuple[str, ...] = ()
    """Ends of the stored names of tensors that files may have and the model does not use."""

    @property
    def longest_text(self) -> int:
        """Most tokens of a text that the encoder takes; 0 if it takes none."""
        if self.encoder_stack is None:
            return 0
        return self.source_positions - (0 if self.pictures is None else self.pictures.states)

    @property
    def logits_scale(self) -> float:
        return self.scale_logits

    @property
    def head_dim(self) -> int:
        return self.decoder.layers[0].attention.head_dim

    @property
    def cache_groups(self) -> tuple[CacheSpec, ...]:
        return cache_groups_of(self.decoder.layers)

    def name_of(self, stored: str) -> str:
        return renamed(stored, self.renames)

    def within(self, tokens: int) -> "TextToTextConfig":
        """The model with outputs of at most so many tokens, and texts of at most so many as the encoder's input unless
        this has pictures."""
        decoder = _within(self.decoder_stack, tokens)
        if self.pictures is not None or self.encoder_stack is None:
            return replace(self, max_position=tokens, decoder_stack=decoder)
        encoder = _within(self.encoder_stack, tokens)
        return replace(self, source_positions=tokens, max_position=tokens, decoder_stack=decoder, encoder_stack=encoder)

    def check(self) -> "TextToTextConfig":
        """The config. Raises :class:`..config_fields.ConfigError` for contradictory fields."""
        for stack in (self.encoder_stack, self.decoder_stack):
            for layer in () if stack is None else stack.layers.layers:
                layer.check()
        if self.encoder_stack is not None and self.longest_text < 1:
            raise ConfigError(
                f"a picture takes all of the encoder's {self.source_positions} positions, expected some for texts"
            )
        if not self.decoder_start:
            raise ConfigError("no decoder_start_token_id is given, with which outputs begin")
        largest = max((*self.decoder_start, *self.eos_token_ids, *self.never))
        if largest >= self.vocab_size:
            raise ConfigError(f"the token {largest} is named, of a vocabulary of {self.vocab_size}")
        return self


def _within(stack: Stack, tokens: int) -> Stack:
    return replace(stack, layers=replace(stack.layers, max_position=tokens))


def decoder_start_of(config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that outputs begin with: ``decoder_start_token_id``, else ``bos_token_id``, and, if there is one,
    ``forced_bos_token_id``. Those of generation_config.json count before those of config.json."""
    places = Fields(generation), Fields(config)

    def first(name: str) -> int | None:
        return next((fields.token_id(name) for fields in places if fields.has(name)), None)

    start = first("decoder_start_token_id")
    start = first("bos_token_id") if start is None else start
    return tuple(token for token in (start, first("forced_bos_token_id")) if token is not None)


def never_of(config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that no output contains: ``bad_words_ids`` of one token each. Raises
    :class:`..config_fields.ConfigError` for longer ones."""
    listed = next((each["bad_words_ids"] for each in (generation, config) if each.get("bad_words_ids")), ())
    found: list[int] = []
    for words in listed if isinstance(listed, Sequence) else (listed,):
        match words:
            case [int(token)] if token >= 0:
                found.append(token)
            case _:
                raise ConfigError(f"bad_words_ids holds {str(words)[:60]!r}, expected lists of one token each")
    return tuple(found)


def eos_of(config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that end an output."""
    return Fields(generation).token_ids("eos_token_id") or Fields(config).token_ids("eos_token_id")
