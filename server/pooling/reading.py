"""Converts texts and conversations to tokens for a pooling model."""

import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from stentor.engine.model_config.encoders.pooling import NEMOTRON_VL
from stentor.engine.processes.exception_groups import first_cause
from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.openai.chat import template_kwargs
from stentor.protocols.openai.media_parts import MEDIA_PARTS
from stentor.protocols.openai.sampling import not_served
from stentor.protocols.pooling.common import InputFields, PoolingFields, Side
from stentor.protocols.pooling.contents import Content, Text

from ..common.errors import Overloaded
from ..media.chat_media import NO_MEDIA, ConversationMedia, PlacedMedia, TakingModel
from ..media.collect import adds_special_tokens, collect_media
from ..overload.memory_budget import MemoryShare
from ..text.errors import TemplateError, TemplatesWait, TextTooLong
from .affix_tokens import AffixTokens
from .model import EmbeddingModel
from .purposes import prompt_of

_AT_A_TIME: Final = 64
"""Texts of one job of the tokenizer's threads, so that other requests need not wait for all."""
WITH_MEDIA: Final = 8
"""Conversations with media that are read before any of them is pooled; their processed media are in memory then."""
_RETRY_SECONDS: Final = 2
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_SIDES: Final = ("query", "document")
"""Roles of messages that have the model's prompts of these names (NVIDIA's embedders of pictures)."""
WRITTEN_PICTURE: Final = "<image> "
"""A picture in their texts, and in those of their rerankers."""
_NO_ENDS: Final = AffixTokens((), ())


T = TypeVar("T")


class Prompt(msgspec.Struct, frozen=True):
    """One text, or two that are read together."""

    ids: list[int]
    skip: int = 0
    """Tokens at the beginning that are not pooled."""
    parts: tuple[int, ...] = ()
    """Ends of parts that are pooled on their own, of which the first begins behind ``skip``; empty: none."""
    second: int = 0
    """Beginning of the second of two texts, for models with token types."""
    media: PlacedMedia = msgspec.field(default_factory=PlacedMedia)
    picture: tuple[int, int] | None = None
    """The half-open range of tokens of which the one vector is made, while vectors of tokens are of all; None: all."""


class LengthLimit(msgspec.Struct, frozen=True):
    """Length limit of a text in tokens, and the handling of longer ones."""

    most: int
    cut: Side | None = None
    """The side that is truncated; None: long texts are refused."""
    way: str = "`truncate_prompt_tokens`"
    """How a request would have it cut; "": it cannot."""
    named: str = "truncate_prompt_tokens"
    """The field that may say how many."""

    @property
    def uncut(self) -> "LengthLimit":
        """The same for what is never truncated, which is not offered either."""
        return replace(self, cut=None, way="")

    @classmethod
    def of(cls, model: EmbeddingModel, fields: PoolingFields, most: int = 0) -> "LengthLimit":
        """``most`` is the operator's bound, 0 for none. Raises BadRequest."""
        if fields.padding == "max_length" and not model.pads:
            raise not_served("padding", "`padding: max_length`, of a model whose texts were not padded in training,")
        length = min(model.max_length, most or model.max_length)
        wanted = fields.truncate_prompt_tokens
        if wanted is None:
            return cls(length)
        if wanted > length:
            raise wrong("truncate_prompt_tokens", f"({wanted}) is more than the {length} tokens that the model takes")
        return cls(length if wanted < 0 else wanted, fields.truncation_side or "right")

    def within(self, ids: list[int], ends: AffixTokens, field: str) -> list[int]:
        """``ids`` within the limit, truncated between ``ends``. Raises BadRequest."""
        if len(ids) <= self.most:
            return ids
        if self.cut is None:
            raise self.too_long(len(ids), field)
        room = self.most - ends.length
        if room < 1:
            raise self.none_left(ends.length)
        inner = ids[len(ends.before) : len(ids) - len(ends.after)]
        return [*ends.before, *cut(inner, room, self.cut), *ends.after]

    def too_long(self, tokens: int, field: str, counted: str = "") -> BadRequest:
        """``counted`` says what ``tokens`` are of, or that there are more."""
        instead = f", or set {self.way} to have the rest cut off" if self.way else ""
        return BadRequest(
            f"`{field}` has {counted}{tokens} tokens; the model takes at most {self.most}. Shorten it{instead}.",
            field,
            "context_length_exceeded",
            lengths=(tokens, self.most),
        )

    def none_left(self, special: int) -> BadRequest:
        """For a text, by its ``special`` tokens, which are not cut."""
        return wrong(self.named, f"leaves {self.most} tokens, which the model's {special} special ones take up")


def cut(ids: list[int], most: int, side: Side = "right") -> list[int]:
    if len(ids) <= most:
        return ids
    return ids[:most] if side == "right" else ids[len(ids) - most :]


async def read_texts(
    model: EmbeddingModel,
    texts: Sequence[Text],
    room: LengthLimit,
    field: str,
    *,
    special: bool = True,
    prompt: str = "",
) -> list[Prompt]:
    """One for each text, or its token ids, which are taken as they are. ``prompt`` goes before every text.

    Raises BadRequest naming the text, as ``field`` and its place.
    """
    written = [text for text in texts if isinstance(text, str)]
    several = len(texts) > 1
    ends = model.ends if special else _NO_ENDS
    skip = 0
    if written and prompt and not model.config.modules.include_prompt:
        skip = len(ends.before) + len((await encode(model, [prompt], special=False))[0])
    try:
        most = None if room.cut else room.most
        encoded = iter(await encode(model, [prompt + text for text in written], special=special, most=most))
    except TextTooLong as error:
        raise room.too_long(error.fewest, field, "a text with at least ") from None
    prompts = []
    for place, text in enumerate(texts):
        where = f"{field}[{place}]" if several else field
        if not isinstance(text, str):
            prompts.append(Prompt(model.filled(_checked(model, text, room, where))))
            continue
        fitting = room.within(next(encoded), ends, where)
        if len(fitting) <= skip:
            raise wrong(where, "must hold at least one token")
        prompts.append(Prompt(model.filled(fitting), skip))
    return prompts


async def read_parts(
    model: EmbeddingModel, texts: Sequence[str], room: LengthLimit, field: str, *, special: bool, prompt: str
) -> Prompt:
    """One prompt with all ``texts``, each a part of its own. ``prompt`` goes before the first.

    Raises BadRequest naming an empty text, and where all are too long together: nothing is cut.
    """
    room = room.uncut
    try:
        before, *each = await encode(model, [prompt, *texts], special=False, most=room.most)
    except TextTooLong as error:
        raise room.too_long(error.fewest, field, "a text with at least ") from None
    for place, text in enumerate(each):
        if not text:
            raise wrong(f"{field}[{place}]", "must hold at least one token")
    ends = model.ends if special else _NO_ENDS
    begin = [*ends.before, *before]
    ids = [*begin, *chain.from_iterable(each), *ends.after]
    if len(ids) > room.most:
        raise room.too_long(len(ids), field)
    parts = tuple(accumulate(map(len, each), initial=len(begin)))[1:]
    return Prompt(model.filled(ids), len(begin), parts)


async def encode(
    model: EmbeddingModel, texts: Sequence[str], *, special: bool, most: int | None = None
) -> list[list[int]]:
    """Raises :class:`..text.errors.TextTooLong` where one must have more than ``most`` tokens, and costs a lot."""
    if model.config.modules.lower_case:
        texts = [text.lower() for text in texts]
    if model.config.modules.bare:
        texts = [" ".join(text.translate(_NO_PUNCTUATION).split()) for text in texts]
    encoded: list[list[int]] = []
    for start in range(0, len(texts), _AT_A_TIME):
        some = texts[start : start + _AT_A_TIME]
        encoded += await model.pool.encode_batch(some, special, most_tokens=most, field="input")
    return encoded


def _checked(model: EmbeddingModel, ids: list[int], room: LengthLimit, field: str) -> list[int]:
    if not ids:
        raise wrong(field, "must hold at least one token")
    vocab = model.config.vocab_size
    if max(ids) >= vocab:
        place = next(place for place, token in enumerate(ids) if token >= vocab)
        raise BadRequest(
            f"`{field}[{place}]`: token id {ids[place]} is outside the model's vocabulary (0 to {vocab - 1}). Were "
            "they made by the tokenizer of another model? LangChain's OpenAIEmbeddings does so unless "
            "check_embedding_ctx_length=False is set; or send texts.",
            field,
            "invalid_value",
        )
    return room.within(ids, _NO_ENDS, field)


async def side_by_side(read: Callable[[T], Awaitable[Prompt]], given: Sequence[T]) -> list[Prompt]:
    """The prompts of ``read`` for each, in order. Raises the first error."""
    made: dict[int, Prompt] = {}

    async def one(place: int, each: T) -> None:
        made[place] = await read(each)

    try:
        async with anyio.create_task_group() as group:
            for place, each in enumerate(given):
                group.start_soon(one, place, each)
    except BaseExceptionGroup as errors:
        raise first_cause(errors) from None
    return [made[place] for place in range(len(given))]


class Reading(msgspec.Struct, frozen=True):
    """How a request's conversations are read."""

    fields: InputFields
    room: LengthLimit
    memory: MemoryShare
    """In which their media count."""
    most_chars: int
    """Characters of the texts of one conversation, after its files have been read."""
    trusts_templates: bool


async def read_content(
    model: EmbeddingModel, reading: Reading, content: Content, where: str, prompt: str = ""
) -> Prompt:
    """User content of the field ``where``, rendered by the model's chat template. ``prompt`` becomes the system's text.
    Raises as :func:`read_messages`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if prompt and not model.lone_pictures:
        messages.insert(0, {"role": "system", "content": prompt})
    return await read_messages(model, reading, messages, where)


async def read_messages(
    model: EmbeddingModel,
    reading: Reading,
    messages: list[dict[str, Any]],
    where: str,
    template_options: Mapping[str, Any] | None = None,
) -> Prompt:
    """One conversation of the field ``where``, rendered by the model's chat template, or in the format of a model
    without one for pictures. ``template_options`` are the caller's, besides the request's.

    Raises BadRequest, and Overloaded if too many templates of requests, or media, wait.
    """
    fields, room = reading.fields, reading.room
    if model.config.architecture == NEMOTRON_VL and fields.chat_template is None:
        return await _read_prefixed(model, reading, messages, where)
    if model.media is None:
        messages, media = collect_media(messages, model.accepted, where)[0], NO_MEDIA
    else:
        messages, media = await _taken(model, reading, messages, where)
    if model.lone_pictures and (media.made or model.media_alone):
        return await _read_alone(model, reading, messages, media, where)
    template, known = fields.chat_template, model.pool.chat_template
    if template is None and not model.pool.tokenizer.template_source:
        raise refused(where, "the model has no chat template; send texts as `input`", "unsupported")
    source = model.pool.tokenizer.template_source if template is None or known.has(template) else template
    trusted = reading.trusts_templates or known.has(template or "")
    kwargs = {**template_kwargs(fields, known.reserved, trusted=trusted), **(template_options or {})}
    text = media.text
    try:
        ids = await model.pool.render_chat(
            messages,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            chat_template=template,
            template_kwargs=kwargs,
            documents=fields.documents,
            add_special_tokens=adds_special_tokens(fields.add_special_tokens, model.accepted, source),
            most_tokens=None if room.cut else room.most,
            media=text,
        )
    except TextTooLong as error:
        raise room.too_long(error.fewest, where, "at least ") from None
    except TemplatesWait as error:
        raise Overloaded(str(error), "templates_full", _RETRY_SECONDS) from None
    except TemplateError as error:
        raise BadRequest(str(error), where if template is None else "chat_template", "template_error") from None
    if not ids:
        raise wrong(where, "must hold at least one token")
    placed = PlacedMedia()
    if model.media is not None and text is not None:
        placed = model.media.place(ids, media, text.order, model.pool.tokenizer)
    if len(ids) > room.most:
        if room.cut is None:
            raise room.too_long(len(ids), where)
        first = 0 if room.cut == "right" else len(ids) - room.most
        placed = placed.within(first, first + room.most, room.named)
        ids = cut(ids, room.most, room.cut)
    return Prompt(ids, media=placed)


async def read_written(
    model: EmbeddingModel,
    reading: Reading,
    parts: list[dict[str, Any]],
    text: str,
    where: str,
    *,
    room: LengthLimit,
    end: Sequence[int] = (),
    special: bool = False,
) -> Prompt:
    """``text`` unchanged, with the positions of its media, and the tokens ``end`` behind it. ``special``: between the
    tokenizer's special tokens. Raises BadRequest, also for what is beyond ``room``, where texts alone are truncated,
    and Overloaded."""
    media = NO_MEDIA
    if parts and model.media is not None:
        _, media = await _taken(model, reading, [{"role": "user", "content": parts}], where)
    stands = media.text
    try:
        (ids,) = await encode(model, [text if stands is None else stands.expand(text)], special=special)
    except TemplateError as error:
        raise BadRequest(str(error), where, "template_error") from None
    room = room.uncut if parts or end else room
    ids = room.within([*ids, *end], model.ends if special else _NO_ENDS, where)
    placed = PlacedMedia()
    if model.media is not None and stands is not None:
        placed = model.media.place(ids, media, stands.order, model.pool.tokenizer)
    return Prompt(ids, media=placed)


async def _read_prefixed(model: EmbeddingModel, reading: Reading, messages: list[dict[str, Any]], where: str) -> Prompt:
    """One message in NVIDIA's format: a prompt by its role, or else the system's text; its pictures, then its texts."""
    *system, message = messages
    if [each.get("role") for each in system] not in ([], ["system"]):
        raise refused(where, "the model embeds one message; send others apart", "unsupported")
    side = message.get("role")
    prefix = "".join(text for each in system for text in _texts_of(each))
    prefix = prompt_of(model.config, side) if side in _SIDES else prefix
    text, pictures = taken_apart(message.get("content") or "")
    written = f"{prefix}{WRITTEN_PICTURE * len(pictures)}{text}"
    return await read_written(model, reading, pictures, written, where, room=reading.room, special=True)


def taken_apart(content: Content) -> tuple[str, list[dict[str, Any]]]:
    """The text of some content, and its media."""
    if isinstance(content, str):
        return content, []
    pictures = [part for part in content if part["type"] in MEDIA_PARTS]
    return "".join(part[part["type"]] for part in content if part["type"] not in MEDIA_PARTS), pictures


async def _taken(
    model: EmbeddingModel, reading: Reading, messages: list[dict[str, Any]], where: str
) -> tuple[list[dict[str, Any]], ConversationMedia]:
    assert model.media is not None
    taking = TakingModel(model.accepted, model.client.ready, model.pool.tokenizer)
    return await model.media.take(messages, taking, reading.fields, reading.most_chars, reading.memory, where)


async def _read_alone(
    model: EmbeddingModel, reading: Reading, messages: list[dict[str, Any]], media: ConversationMedia, where: str
) -> Prompt:
    """One text, or one picture without any: with the words that the model was trained to read around it."""
    texts = [text for message in messages for text in _texts_of(message)]
    if not media.made:
        (prompt,) = await read_texts(model, ["\n".join(texts)], reading.room, where)
        return prompt
    words = model.markers.picture
    if len(media.made) > 1 or any(text.strip() not in words for text in texts):
        raise refused(where, "the model makes vectors of one image or of one text; send them apart", "unsupported")
    assert model.media is not None
    if not words:
        ids, placed = model.media.place_alone(media)
        return Prompt(ids, media=placed)
    text = media.text
    assert text is not None
    try:
        (ids,) = await encode(model, [text.expand(words)], special=model.markers.affixed)
    except TemplateError as error:
        raise BadRequest(str(error), where, "template_error") from None
    ids = reading.room.uncut.within(ids, _NO_ENDS, where)
    placed = model.media.place(ids, media, text.order, model.pool.tokenizer)
    if not model.markers.one_vector:
        return Prompt(ids, media=placed)
    (span,) = placed.spans
    return Prompt(ids, media=placed, picture=(span.start - 1, span.start + span.length + 1))


def _texts_of(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]
