"""A tokenizer's tokens as grammars see them."""

from collections.abc import Iterator, Mapping

from stentor.engine.core.grammar.vocabulary import TokenBytes, VocabularyReader, pieces_of
from stentor.protocols.ipc.actors import Vocabulary

from .tokenizer import Tokenizer


def special_tokens_of(tokenizer: Tokenizer) -> Mapping[str, int]:
    """Ids by text, for :class:`...grammar.lark.Lark`, of tokens that no text of a grammar matches.

    A grammar names such a token by its id. These are all added tokens except white space, special or not: a marker such
    as ``</think>`` must never match text.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    return {
        token.content: id for id, token in added.items() if id in tokenizer.special_ids or not token.content.isspace()
    }


def vocabulary_of(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> Iterator[Vocabulary]:
    """The messages that send the tokens to an engine; takes some microseconds a token. May run in any thread.

    ``eos_token_ids``: tokens that end a grammar; if empty, the tokenizer's own.
    """
    eos = frozenset(eos_token_ids)
    if not eos and tokenizer.eos_token_id is not None:
        eos = frozenset((tokenizer.eos_token_id,))
    highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=-1)
    tokens = [tokenizer.token_bytes(id) for id in range(highest + 1)]
    yield from pieces_of(tokens, frozenset(special_tokens_of(tokenizer).values()), eos)


def token_bytes_of(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> TokenBytes:
    """All tokens in one; takes some 0.1 s for 50,000: best off the event loop."""
    reader = VocabularyReader()
    whole: TokenBytes | None = None
    for piece in vocabulary_of(tokenizer, eos_token_ids):
        whole = reader.take(piece)
    return TokenBytes([], [], []) if whole is None else whole
