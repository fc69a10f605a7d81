"""Times of the words of a transcript, by a pooling model that scores them (Qwen3-ForcedAligner)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.ipc.audio import SAMPLE_RATE
from stentor.protocols.ipc.pooling import Pooled, Pooling

from ..asr.alignment import SpokenWord, in_order
from ..asr.languages import name_of
from ..audio.encode import wav_header
from ..common.keys import Caller
from ..media.chat_media import check_encoder
from ..observability.request import current_record
from ..overload.request_context import RequestContext
from ..pooling.model import EmbeddingModel
from ..pooling.reading import Prompt, encode
from ..pooling.running import PoolingJob
from ..text.errors import TextTooLong

MOST_SECONDS: Final = 180
"""Of a sound, as in its makers' code."""
_LANGUAGES: Final = ("de", "en", "es", "fr", "it", "ko", "pt", "ru", "yue", "zh")
"""Those of its training, but for Japanese, whose words a library finds there that is not used here."""
_SOUND: Final = "<|audio_start|><|audio_pad|><|audio_end|>"
_RAW: Final = Pooling("token_classify", activate=False)


class Aligner(msgspec.Struct, frozen=True):
    """For all requests."""

    model: EmbeddingModel

    def check(self, language: str | None, param: str) -> None:
        """Raises BadRequest for a language whose words it does not time; None is one that nobody has named."""
        if language is not None and language not in _LANGUAGES:
            known = ", ".join(_LANGUAGES)
            why = f"`{self.model.name}` times no words of {name_of(language)}, but of {known}; use json or text"
            raise refused(param, why, "unsupported_value")

    async def times(
        self, pcm: bytes, words: Sequence[SpokenWord], caller: Caller, context: RequestContext, field: str
    ) -> list[int]:
        """Milliseconds at which each word begins and ends, in order. ``pcm`` of the field ``field`` as in
        :class:`stentor.protocols.ipc.audio`.

        Raises BadRequest for more words than its context has room for, and as :meth:`..pooling.running.PoolingJob.run`.
        """
        if not words:
            return []
        check_encoder(self.model.client.ready, field)
        job = PoolingJob(
            self.model,
            context.queue_slot,
            current_record.get(),
            priority=context.priority(0),
            salt=caller.cache_salt(None),
        )
        prompt = await self._prompt(pcm, words, job, field)
        (scores,) = await job.run([prompt], _RAW, field)
        return in_order([self._class_ms * each for each in _likeliest(scores)])

    @property
    def _class_ms(self) -> float:
        head = self.model.config.score
        assert head is not None, "an aligner scores"
        return head.class_ms

    async def _prompt(self, pcm: bytes, words: Sequence[SpokenWord], job: PoolingJob, field: str) -> Prompt:
        model, head = self.model, self.model.config.score
        assert model.media is not None, "an aligner hears"
        assert head is not None
        assert head.scored_token is not None
        mark = 2 * model.pool.tokenizer.name_of(head.scored_token)
        wav = wav_header(SAMPLE_RATE, len(pcm)) + pcm
        media = await model.media.sound(wav, field, job.memory)
        text = media.text
        assert text is not None
        whole = text.expand(_SOUND + "".join(word.text + mark for word in words))
        try:
            (ids,) = await encode(model, [whole], special=False, most=model.max_length)
        except TextTooLong as error:
            raise self._too_long(error.fewest, field) from None
        if len(ids) > model.max_length:
            raise self._too_long(len(ids), field)
        return Prompt(ids, media=model.media.place(ids, media, text.order, model.pool.tokenizer))

    def _too_long(self, tokens: int, field: str) -> BadRequest:
        return BadRequest(
            f"`{field}` has a part with {tokens} tokens of sound and words; `{self.model.name}` times at most "
            f"{self.model.max_length}. Ask for json or text.",
            field,
            "context_length_exceeded",
            lengths=(tokens, self.model.max_length),
        )


def aligner_of(model: EmbeddingModel | None) -> Aligner | None:
    """None for a model that times no words."""
    head = None if model is None else model.config.score
    return Aligner(model) if model is not None and head is not None and head.class_ms else None


def _likeliest(scores: Pooled) -> list[int]:
    """The class of each row."""
    import numpy as np  # late: a server starts without it

    rows = np.frombuffer(scores.data, "<f4").reshape(scores.rows, scores.columns)
    found: list[int] = rows.argmax(1).tolist()
    return found
