"""Biases by token id, of whichever form the request has."""

from stentor.protocols.openai.logit_bias import Biases, by_token, parse_logit_bias, texts_of
from stentor.protocols.openai.sampling import SamplingFields

from .chat_model import ChatModel


async def token_biases(chat: ChatModel, request: SamplingFields) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, by id. A text that is biased stands for each of its tokens, without special ones.

    The request has been checked. Raises BadRequest for a token that the vocabulary does not have.
    """
    given = request.logit_bias
    if isinstance(given, list):
        texts = texts_of(given)
        tokens = await chat.pool.encode_batch(texts, False, field="logit_bias") if texts else []
        biases: Biases | None = by_token(given, dict(zip(texts, tokens, strict=True)))
    else:
        biases = given
    return parse_logit_bias(biases, chat.vocab_size)
