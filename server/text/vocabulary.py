"""The tokens of a model as grammars see them: the same ones that the engine is told of."""

from collections.abc import Mapping

from stentor.engine.core.grammar.vocabulary import TokenBytes, VocabularyReader

from .grammar_tokens import tokens_by_id_alone, vocabulary_of
from .tokenizer import Tokenizer


def token_bytes_of(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> TokenBytes:
    """All tokens in one; takes some 0.1 s for 50,000: best off the event loop."""
    reader = VocabularyReader()
    whole: TokenBytes | None = None
    for piece in vocabulary_of(tokenizer, eos_token_ids):
        whole = reader.take(piece)
    return TokenBytes([], [], []) if whole is None else whole


def special_tokens_of(tokenizer: Tokenizer) -> Mapping[str, int]:
    """Ids by text, for :class:`..grammar.lark.Lark`."""
    return tokens_by_id_alone(tokenizer)
