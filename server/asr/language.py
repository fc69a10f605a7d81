"""Which language somebody speaks: the model's own guess, from the first window."""

import math
from collections.abc import Sequence

import msgspec

from .model import TranscriptionModel
from .window_decoder import Window, WindowDecoder


class Detected(msgspec.Struct, frozen=True):
    code: str
    probability: float


async def detect_language(
    ear: WindowDecoder, model: TranscriptionModel, window: Window, among: Sequence[str] = ()
) -> Detected:
    """One token after the start of a transcript, the likeliest among all languages, or those of the codes ``among``.

    Raises as :meth:`.window_decoder.WindowDecoder.hear`.
    """
    if not model.multilingual:
        return Detected("en", 1.0)
    vocabulary = model.vocabulary
    codes = {id: code for code, id in vocabulary.languages.items() if not among or code in among}
    if len(codes) == 1:
        return Detected(next(iter(codes.values())), 1.0)
    answer = await ear.hear(window, [vocabulary.sot], end=vocabulary.eot, max_tokens=1, allowed=sorted(codes))
    return Detected(codes[answer.tokens[0]], math.exp(answer.logprobs[0].logprob))
