"""A tokenizer for models that come without one: every token is written as its number."""

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from .tokenizer import Tokenizer


def number_tokenizer(vocab_size: int) -> Tokenizer:
    """Text such as ``12 7 400`` stands for those token ids; any other word for token 0."""
    backend = Backend(WordLevel({str(id): id for id in range(vocab_size)}, unk_token="0"))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, {})
