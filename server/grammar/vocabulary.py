"""The tokens of a model as grammars see them."""

from collections.abc import Iterable

from stentor.engine.grammar.vocabulary import TokenBytes

from ..text.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, size: int, eos: Iterable[int]) -> TokenBytes:
    """``size`` tokens, of which ``eos`` end an answer. Takes some 0.1 s for 50,000: best off the event loop."""
    ending = sorted(id for id in set(eos) if 0 <= id < size)
    # one that ends an answer is no text, whatever the tokenizer says of it
    special = sorted(id for id in tokenizer.special_ids.union(ending) if id < size)
    return TokenBytes([tokenizer.token_bytes(id) for id in range(size)], special, ending)


def special_tokens_of(tokenizer: Tokenizer, eos: Iterable[int] = ()) -> dict[str, int]:
    """Ids by text, for :class:`.lark.Lark`: those that the vocabulary has as special."""
    ids = tokenizer.special_ids.union(eos)
    return {text: id for id in sorted(ids) if (text := tokenizer.backend.id_to_token(id))}
