"""The media of a conversation: which of its parts are some, and whether the model and the operator take them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from stentor.engine.model_config.towers.media_spec import MediaSpec, Modality
from stentor.protocols.common.bounds import LIST_TOO_LONG
from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.openai.media_parts import EMBEDS_PART, MEDIA_PARTS, field_of

from ..config.media import MediaConfig
from .parts import Detail, Embeds, MediaPart

Message = dict[str, Any]

_MODALITIES: Final[Mapping[str, Modality]] = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    EMBEDS_PART: "image",
}
_PLURALS: Final[Mapping[Modality, str]] = {"image": "images", "video": "videos", "audio": "audio"}


class Accepted(msgspec.Struct, frozen=True):
    """Inputs of a prompt besides text."""

    counts: Mapping[Modality, int]
    """Most of each modality; missing ones are unsupported."""
    closed: bool = False
    """The model could take some, but the operator has closed it to all."""
    embeds: bool = False
    """Whether clients may send their own embeddings of a picture."""

    @classmethod
    def of(cls, spec: MediaSpec | None, config: MediaConfig) -> "Accepted":
        """``spec`` is the model's."""
        if spec is None:
            return TEXT_ONLY
        if config.language_model_only:
            return cls({}, closed=True)
        allowed: dict[Modality, int] = {modality: getattr(config.counts, modality) for modality in spec.placeholders}
        counts = {modality: min(1, most) if spec.encoded else most for modality, most in allowed.items()}
        return cls(counts, embeds=config.mm_embeds)


TEXT_ONLY: Final = Accepted({})


def adds_special_tokens(asked: bool | None, accepted: Accepted, template: str) -> bool:
    """Whether the tokens that begin and end a text are added to what the ``template`` renders.

    If the request does not say, as transformers does: its processors, which models with media have, add them where
    the template leaves that to them (LLaVA's, which saw BOS in training); its tokenizers do not.
    """
    return accepted != TEXT_ONLY and "bos_token" not in template if asked is None else asked


def collect_media(
    messages: Sequence[Message], accepted: Accepted, where: str = "messages"
) -> tuple[list[Message], list[MediaPart]]:
    """The messages with ``{"type": "image"}``, ``video`` or ``audio``, as in chat templates, in place of their media;
    and the media in order.

    The messages have been checked, and files in them have been read (:mod:`.files`). Messages without media are not
    copied; ``where`` is their field. Raises BadRequest naming a part of an unsupported modality, or beyond the limit.
    """
    collector = _Collector(accepted)
    told = [collector.message(message, f"{where}[{index}]") for index, message in enumerate(messages)]
    return told, collector.found


def holds_media(messages: Sequence[Message]) -> bool:
    """Whether any of them, which have been checked, has media or files."""
    contents = (message.get("content") for message in messages)
    return any(_is_media(part) for content in contents if isinstance(content, list) for part in content)


class _Collector:
    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._counts: dict[Modality, int] = {}
        self.found: list[MediaPart] = []

    def message(self, message: Message, where: str) -> Message:
        content = message.get("content")
        if not isinstance(content, list) or not any(map(_is_media, content)):
            return message
        parts = [self._part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        return {**message, "content": parts}

    def _part(self, part: Any, where: str) -> Any:
        if not _is_media(part):
            return part
        place, param = field_of(part, where)
        if part["type"] == "file":
            raise refused(place, "files are not read here; send its text", "unsupported")
        modality = _MODALITIES[part["type"]]
        self._count(modality, place)
        if part["type"] == EMBEDS_PART and not self._accepted.embeds:
            raise refused(place, "embeddings are taken with --enable-mm-embeds alone; send the picture", "unsupported")
        self.found.append(_media_part(part, modality, param))
        return {"type": modality}

    def _count(self, modality: Modality, place: str) -> None:
        check_modality(modality, place, self._accepted)
        most = self._accepted.counts[modality]
        count = self._counts[modality] = self._counts.get(modality, 0) + 1
        if count > most:
            raise _too_many(modality, most, place)


def check_modality(modality: Modality, place: str, accepted: Accepted) -> None:
    """Raises BadRequest for media at ``place`` that the model does not support."""
    if accepted.closed:
        raise refused(place, "this server takes no media (--language-model-only); leave it out", "unsupported")
    if modality not in accepted.counts:
        others = ", ".join(_PLURALS[known] for known in accepted.counts)
        instead = f"it takes text and {others}" if others else "it takes text only"
        raise refused(place, f"the model takes no {_PLURALS[modality]}; {instead}", "unsupported")
    if not accepted.counts[modality]:
        raise _too_many(modality, 0, place)


def _too_many(modality: Modality, most: int, place: str) -> BadRequest:
    named = modality if most == 1 or modality == "audio" else f"{modality}s"
    limit = f"at most {most} {named} in one prompt (--limit-mm-per-prompt)"
    return BadRequest(f"`{place}`: this server takes {limit}.", place, LIST_TOO_LONG)


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in MEDIA_PARTS


def _media_part(part: dict[str, Any], modality: Modality, param: str) -> MediaPart:
    value = part.get(part["type"])
    uuid = part.get("uuid") or ""
    if part["type"] == EMBEDS_PART:
        given: dict[str, Any] = value if isinstance(value, dict) else {EMBEDS_PART: value}
        return MediaPart(modality, "", param, embeds=Embeds(given[EMBEDS_PART], given.get("image_grid_thw") or ""))
    if value is None:
        return MediaPart(modality, "", param, uuid)
    if isinstance(value, str):
        return MediaPart(modality, value, param, uuid)
    if part["type"] == "input_audio":
        return MediaPart(modality, f"data:audio/{value['format']};base64,{value['data']}", param, uuid)
    detail: Detail = value.get("detail") or "auto"
    return MediaPart(modality, value.get("url") or "", param, uuid, value.get("file_id") or "", detail)
