"""The media of a conversation on their way to the engine: fetched, made into a model's inputs, placed in its prompt."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import anyio
import anyio.to_thread
import msgspec

from stentor.engine.client.media import Media
from stentor.engine.model_config.towers.media_spec import MediaSpec, Modality
from stentor.engine.processes.exception_groups import first_cause
from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.ipc.actors import EngineReady
from stentor.protocols.ipc.cache_groups import group_of

from ..common.fair_queue import current_owner
from ..overload.memory_budget import MemoryShare
from ..text.templates.placeholders import MediaText
from ..text.tokenizers.tokenizer import Tokenizer
from .collect import Accepted, collect_media
from .document_reader import DocumentReader
from .fetching.loading import MediaLoader
from .files import Message, has_files, read_files
from .parts import Embeds, MediaPart
from .processed_cache import ProcessedMedia
from .processor import MediaProcessor, Wanted
from .processors.processor_options import request_options
from .refusal import Refusal

_AT_ONCE: Final = 8
"""Media of one request that are fetched or made at the same time."""


class MediaFields(Protocol):
    """A request's options for media."""

    mm_processor_kwargs: dict[str, Any] | None
    media_io_kwargs: dict[str, Any] | None


class TakingModel(NamedTuple):
    """The model whose prompt media become part of."""

    accepted: Accepted
    ready: EngineReady | None
    """Of its engine; None before it is ready."""
    tokenizer: Tokenizer


class ConversationMedia(msgspec.Struct, frozen=True):
    """The processed media of one conversation, in order."""

    made: Sequence[ProcessedMedia] = ()
    fields: Sequence[str] = ()
    """The field of the request for each."""

    @property
    def text(self) -> MediaText | None:
        """Their places in the text of the prompt; None without media."""
        if not self.made:
            return None
        replacements: dict[str, list[str]] = {}
        for media in self.made:
            replacements.setdefault(media.modality, []).append(media.replacement)
        return MediaText({media.modality: media.written for media in self.made}, replacements)


NO_MEDIA: Final = ConversationMedia()


class PlacedMedia(msgspec.Struct, frozen=True):
    """Media with their positions in a prompt."""

    spans: list[Media] = msgspec.field(default_factory=list)
    tokens: Mapping[Modality, int] = msgspec.field(default_factory=dict)
    """Prompt tokens of media, by modality."""
    held: int = 0
    """Bytes that the request's memory share counts for them, until the engine has them."""

    def within(self, first: int, end: int, field: str = "truncate_prompt_tokens") -> "PlacedMedia":
        """The media of the prompt's tokens [first, end), cut as ``field`` requires. Raises BadRequest if a cut is
        inside a piece of media."""
        kept = []
        for span in self.spans:
            if span.start < 0:
                kept.append(span)
                continue
            behind = span.start + span.length
            if any(span.start < edge < behind for edge in (first, end)):
                raise BadRequest(f"`{field}` cuts through an image, sound or video; name another number.", field)
            if span.start >= first and behind <= end:
                kept.append(span._replace(start=span.start - first))
        return PlacedMedia(kept, self.tokens, self.held)


def _check_texts(messages: Sequence[Message], sent: Sequence[Message], media: MediaText, where: str) -> None:
    """Raises BadRequest for a text with a placeholder of media, which could not be told from the media's. ``sent``: the
    messages before their files became texts and pictures."""
    for index, (message, before) in enumerate(zip(messages, sent, strict=True)):
        content, own = message.get("content"), before.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        in_place = isinstance(content, list) and isinstance(own, list) and len(own) == len(content)
        for place, part in enumerate(parts):
            text = part.get("text")
            if not isinstance(text, str) or not (found := media.held_by(text)):
                continue
            field = f"{where}[{index}].content" + (f"[{place}]" if in_place else "")
            raise refused(field, f"it holds `{found}`, which stands for media; leave it out of texts", "template_error")


class ChatMedia:
    """Media processing of one model."""

    def __init__(
        self,
        loader: MediaLoader,
        documents: DocumentReader,
        processor: MediaProcessor | None = None,
        spec: MediaSpec | None = None,
        hidden: int = 0,
    ) -> None:
        """``processor``, ``spec`` and ``hidden``, the width of an embedding or 0, are those of a multimodal model; for
        a text model, files become texts."""
        self._loader = loader
        self._documents = documents
        self.processor: Final = processor
        self._ids: Mapping[Modality, int] = {} if spec is None else spec.placeholders
        self._marks = frozenset(spec.marks if spec is not None and spec.joined else ())
        """Tokens that see media with those beside them, and belong to these."""
        self._layers = 0 if spec is None else spec.layers
        self._hidden = hidden
        self.alone: Final = spec is not None and spec.alone
        """Whether a picture is a whole prompt, without text."""

    def close(self) -> None:
        """Ends the processes."""
        self._documents.close()
        if self.processor is not None:
            self.processor.close()

    async def take(
        self,
        messages: Sequence[Message],
        model: TakingModel,
        fields: MediaFields,
        most_chars: int,
        memory: MemoryShare | None,
        where: str = "messages",
        *,
        as_text: bool = True,
    ) -> tuple[list[Message], ConversationMedia]:
        """The messages of the field ``where`` as :func:`.collect.collect_media` returns them, after the caller's own
        files in them were read; and the processed media. ``as_text``: media are written as text, so that texts may not
        contain placeholders.

        Raises BadRequest, also if the engine has loaded only the model's text part, and as
        :meth:`_prepare_all`.
        """
        sent, options = messages, request_options(fields.mm_processor_kwargs, fields.media_io_kwargs)
        if has_files(messages):
            load = partial(self._loader.named, owner=current_owner.get())
            sees = bool(model.accepted.counts.get("image")) and not lacks_encoder(model.ready)
            messages = await read_files(messages, load, self._documents.read, most_chars, where, sees=sees)
        told, parts = collect_media(messages, model.accepted, where)
        if not parts:
            return told, NO_MEDIA
        check_encoder(model.ready, parts[0].param)
        made = await self._prepare_all(parts, options, memory, model.tokenizer)
        if as_text and made.text is not None:
            _check_texts(told, sent, made.text, where)
        return told, made

    async def _prepare_all(
        self,
        parts: Sequence[MediaPart],
        options: dict[str, object],
        memory: MemoryShare | None,
        tokenizer: Tokenizer,
    ) -> ConversationMedia:
        """Loads and processes the media in parallel, counted in ``memory``. Raises BadRequest naming the part,
        Unavailable and Overloaded."""
        modalities = [part.modality for part in parts]
        made: list[ProcessedMedia | None] = [None] * len(parts)
        places = anyio.Semaphore(_AT_ONCE)

        async def prepare_one(place: int, part: MediaPart) -> None:
            looked_at = {**options, "detail": "low"} if part.detail == "low" else options
            alone = modalities.count(part.modality) == 1
            async with places:
                if part.embeds is not None:
                    made[place] = await self._take(part, part.embeds, memory, tokenizer)
                else:
                    made[place] = await self._prepare(part, looked_at, alone, memory)

        try:
            async with anyio.create_task_group() as group:
                for place, part in enumerate(parts):
                    group.start_soon(prepare_one, place, part)
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from None
        return ConversationMedia([each for each in made if each is not None], [part.param for part in parts])

    async def _prepare(
        self, part: MediaPart, options: dict[str, object], alone: bool, memory: MemoryShare | None
    ) -> ProcessedMedia:
        named = bool(part.url or part.file)
        data = (await self._loader.load(part, current_owner.get())).data if named else None
        fetched = 0 if data is None else len(data)
        with held(memory, fetched, part.param):
            return await self._make(Wanted(part.modality, data, part.param, part.uuid, options, alone), memory)

    async def sound(self, wav: bytes, param: str, memory: MemoryShare) -> ConversationMedia:
        """One sound of the server's own making, for which ``param`` is to blame. Raises as :meth:`_prepare_all`."""
        with held(memory, len(wav), param):
            return ConversationMedia([await self._make(Wanted("audio", wav, param), memory)], [param])

    async def _make(self, wanted: Wanted, memory: MemoryShare | None) -> ProcessedMedia:
        assert self.processor is not None, "media are refused where there is none"
        made = await self.processor.process(wanted, current_owner.get())
        if memory is not None:
            memory.add(made.bytes, wanted.param)
        return made

    async def _take(
        self, part: MediaPart, embeds: Embeds, memory: MemoryShare | None, tokenizer: Tokenizer
    ) -> ProcessedMedia:
        """A client's own embeddings of a picture."""
        assert self.processor is not None, "media are refused where there is none"
        if self._layers or not self._hidden:
            raise refused(part.param, "the model takes more of a picture than its embeddings; send it", "unsupported")
        with held(memory, 2 * len(embeds.data), part.param):
            sample = await self.processor.process(Wanted("image", await anyio.to_thread.run_sync(_dot), part.param), "")
            placeholder = tokenizer.name_of(self._ids["image"])
            try:
                made = await anyio.to_thread.run_sync(_made_of_embeds, embeds, self._hidden, sample, placeholder)
            except Refusal as refusal:
                raise BadRequest(f"`{part.param}`: {refusal}.", part.param, "invalid_value") from None
        if memory is not None:
            memory.add(made.bytes, part.param)
        return made

    def place(
        self, tokens: Sequence[int], media: ConversationMedia, order: Sequence[str], tokenizer: Tokenizer
    ) -> PlacedMedia:
        """Finds the media's positions in the prompt's tokens; ``order``: modalities in the text's order.

        Raises BadRequest for other placeholders in it: those in a client's text cannot be told from the media's.
        """
        if not media.made:
            return PlacedMedia()
        following: dict[str, list[tuple[ProcessedMedia, str]]] = {}
        for one, param in reversed([*zip(media.made, media.fields, strict=True)]):
            following.setdefault(one.modality, []).append((one, param))
        spans: list[Media] = []
        counts: dict[Modality, int] = {}
        at = 0
        ids = set(self._ids.values())
        places = [place for place, token in enumerate(tokens) if token in ids]
        for modality in order:
            one, param = following[modality].pop()
            id, count = self._count(one, tokenizer, param)
            own = places[at : at + count]
            if len(own) < count or any(tokens[place] != id for place in own):
                raise _forged()
            at += count
            counts[one.modality] = counts.get(one.modality, 0) + count
            if self._marks:
                own = _between(tokens, own, self._marks, spans[-1].start + spans[-1].length if spans else 0)
            length = own[-1] + 1 - own[0]
            runs = _runs(own) if length > len(own) else ()
            made = Media(one.payload, one.digest, own[0], length, one.grid, one.interval, runs, param)
            spans.append(made._replace(causal=one.modality == "audio"))
        if at != len(places):
            raise _forged()
        return PlacedMedia(spans, counts, sum(one.bytes for one in media.made))

    def place_alone(self, media: ConversationMedia) -> tuple[list[int], PlacedMedia]:
        """The prompt of the only picture of ``media``, for models with pictures :attr:`alone`, and that picture in
        it."""
        (one,), (param,) = media.made, media.fields
        span = Media(one.payload, one.digest, 0, 1, field=param)
        return [self._ids[one.modality]], PlacedMedia([span], {one.modality: 1}, one.bytes)

    @staticmethod
    def place_encoded(media: ConversationMedia) -> PlacedMedia:
        """The only picture of ``media``, which stands nowhere in a prompt."""
        (one,), (param,) = media.made, media.fields
        return PlacedMedia([Media(one.payload, one.digest, field=param)], {}, one.bytes)

    def _count(self, media: ProcessedMedia, tokenizer: Tokenizer, param: str) -> tuple[int, int]:
        """The placeholder token of ``media``, and the number of embeddings. Some models treat videos as pictures.

        Raises BadRequest where there are none: a sound may be shorter than an embedding.
        """
        for modality in (media.modality, "image"):
            id = self._ids.get(modality)
            if id is not None and (count := media.replacement.count(tokenizer.name_of(id))):
                return id, count
        raise refused(param, "the model makes nothing of it: it is too short or too small", "invalid_value")


def _between(tokens: Sequence[int], places: Sequence[int], marks: frozenset[int], least: int) -> list[int]:
    """A medium's ascending positions with those of the marks before it, from ``least`` on, in it and behind it."""
    first, last = places[0], places[-1]
    while first > least and tokens[first - 1] in marks:
        first -= 1
    while last + 1 < len(tokens) and tokens[last + 1] in marks:
        last += 1
    own = set(places)
    return [place for place in range(first, last + 1) if place in own or tokens[place] in marks]


def _runs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending positions as intervals [first, end), counted from the first position."""
    cuts = [at for at in range(1, len(places)) if places[at] != places[at - 1] + 1]
    begins, ends = (0, *cuts), (*cuts, len(places))
    return tuple(
        (places[first] - places[0], places[end - 1] + 1 - places[0]) for first, end in zip(begins, ends, strict=True)
    )


def _dot() -> bytes:
    from .embeds import dot  # late, and in a thread: numpy and Pillow, which few servers need

    return dot()


def _made_of_embeds(embeds: Embeds, hidden: int, sample: ProcessedMedia, placeholder: str) -> ProcessedMedia:
    from .embeds import made_of_embeds

    return made_of_embeds(embeds, hidden, sample, placeholder)


def check_encoder(ready: EngineReady | None, param: str) -> None:
    """Raises BadRequest if the engine has loaded only the model's text part."""
    if lacks_encoder(ready):
        raise refused(param, "the model is served without its encoder: it takes text only", "unsupported")


def lacks_encoder(ready: EngineReady | None) -> bool:
    """Whether the engine has loaded only its model's text part."""
    return ready is not None and group_of(ready.groups, "cross") is None


@contextmanager
def held(memory: MemoryShare | None, size: int, param: str) -> Iterator[None]:
    """While the block uses it."""
    if memory is None:
        yield
        return
    memory.add(size, param)
    try:
        yield
    finally:
        memory.add(-size)


def _forged() -> BadRequest:
    return BadRequest(
        "`messages`: a text holds a token that stands for images, sounds or videos; leave it out.",
        "messages",
        "invalid_value",
    )
