"""Message parts with media or files, in the form of chat completions.

Parts of other protocols are translated into these; :data:`FIELD` then has the client's name of the part.
"""

import re
from typing import Any, Final

from ..common.bounds import chars_at_most
from ..common.errors import missing, refused, wrong
from ..common.limits import MAX_NAME_LENGTH
from .sampling import not_served

URL_PARTS: Final = ("image_url", "audio_url", "video_url")
EMBEDS_PART: Final = "image_embeds"
"""vLLM's part: a picture's embeddings, as base64 of a tensor, or an object with further tensors of the model."""
MEDIA_PARTS: Final = (*URL_PARTS, "input_audio", "file", EMBEDS_PART)
CLOSED_PARTS: Final = ("audio_embeds", "image_pil")
"""vLLM's parts that are refused."""
AUDIO_FORMATS: Final = ("wav", "mp3", "flac", "ogg", "opus", "m4a", "mp4", "aac", "webm", "aiff")
DETAILS: Final = ("auto", "low", "high", "original")
FIELD: Final = "_field"
"""Key of a part that was translated: its path in the client's request."""
MAX_URL_CHARS: Final = 8192
"""``data:`` URLs have no other limit than the body."""
MAX_FILE_NAME: Final = 512
_FILE_SOURCES: Final = ("file_data", "file_id", "file_url")
_PATH: Final = re.compile(r"[A-Za-z0-9_-]+(?:\[\d+\]|\.[a-z_]+)*")


def check_media_part(part: dict[str, Any], where: str) -> None:
    """``part`` is one of :data:`MEDIA_PARTS`. Raises BadRequest naming the field."""
    uuid = part.get("uuid")
    if not isinstance(uuid, str | None) or uuid == "":
        raise wrong(f"{where}.uuid", "must be a string that is not empty")
    chars_at_most(uuid, MAX_NAME_LENGTH, f"{where}.uuid")
    kind = part["type"]
    value = part.get(kind)
    if value is None or (uuid is not None and value == {}):
        if uuid is None or kind in ("file", EMBEDS_PART):
            raise missing(f"{where}.{kind}")
    elif kind == "input_audio":
        check_audio(value, f"{where}.input_audio")
    elif kind == "file":
        check_file(value, f"{where}.file")
    elif kind == EMBEDS_PART:
        check_embeds(value, f"{where}.{kind}")
    elif isinstance(value, str):
        check_url(value, f"{where}.{kind}")
    else:
        check_named(value, f"{where}.{kind}", "url")


def check_named(value: Any, where: str, url: str) -> None:
    """Media by its address, in the field ``url``, or by the id of a stored file. Raises BadRequest."""
    if not isinstance(value, dict):
        raise wrong(where, f"must be an object with `{url}`")
    if (value.get(url) is None) == (value.get("file_id") is None):
        if value.get(url) is None:
            raise missing(f"{where}.{url}")
        raise refused(where, f"give either `{url}` or `file_id`")
    if value.get(url) is not None:
        check_url(value[url], f"{where}.{url}")
    else:
        check_file_id(value["file_id"], f"{where}.file_id")
    check_detail(value.get("detail"), f"{where}.detail")


def check_detail(detail: Any, where: str) -> None:
    if detail is not None and detail not in DETAILS:
        raise wrong(where, f"must be one of {', '.join(DETAILS)}", "invalid_value")


def check_url(url: Any, where: str) -> None:
    if not isinstance(url, str) or not url:
        raise wrong(where, "must be a URL")
    if url[:5].lower() != "data:":
        chars_at_most(url, MAX_URL_CHARS, where)


def check_file_id(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name:
        raise wrong(where, "must be the id of a file")
    chars_at_most(name, MAX_NAME_LENGTH, where)


def check_audio(value: Any, where: str) -> None:
    """OpenAI's ``input_audio``. Raises BadRequest."""
    if not isinstance(value, dict):
        raise wrong(where, "must be an object with `data` and `format`")
    if not isinstance(value.get("data"), str):
        raise missing(f"{where}.data") if value.get("data") is None else wrong(f"{where}.data", "must be base64")
    if value.get("format") not in AUDIO_FORMATS:
        raise wrong(f"{where}.format", f"must be one of {', '.join(AUDIO_FORMATS)}", "invalid_value")


def check_file(value: Any, where: str) -> None:
    """A document: its content, its address, or the id of a stored one. Raises BadRequest."""
    if not isinstance(value, dict):
        raise wrong(where, "must be an object with `file_data` or `file_id`")
    given = [name for name in _FILE_SOURCES if value.get(name) is not None]
    if not given:
        raise missing(f"{where}.file_data")
    if len(given) > 1:
        raise refused(where, f"give either `{given[0]}` or `{given[1]}`")
    if given[0] == "file_id":
        check_file_id(value["file_id"], f"{where}.file_id")
    elif given[0] == "file_url":
        check_url(value["file_url"], f"{where}.file_url")
    elif not isinstance(value["file_data"], str) or not value["file_data"]:
        raise wrong(f"{where}.file_data", "must be base64")
    name = value.get("filename")
    if not isinstance(name, str | None):
        raise wrong(f"{where}.filename", "must be a string")
    chars_at_most(name, MAX_FILE_NAME, f"{where}.filename")


def check_embeds(value: Any, where: str) -> None:
    """Tensors as base64. Raises BadRequest."""
    if isinstance(value, str) and value:
        return
    if not isinstance(value, dict):
        raise wrong(where, "must be base64 of a tensor, or an object with such")
    for name in (EMBEDS_PART, "image_grid_thw"):
        given = value.get(name)
        if given is None and name == EMBEDS_PART:
            raise missing(f"{where}.{name}")
        if given is not None and (not isinstance(given, str) or not given):
            raise wrong(f"{where}.{name}", "must be base64 of a tensor")


def refuse_closed(kind: str, where: str) -> None:
    """Raises BadRequest for :data:`CLOSED_PARTS`."""
    if kind in CLOSED_PARTS:
        raise not_served(where, f"A content part of type `{kind}`")


def field_of(part: dict[str, Any], where: str) -> tuple[str, str]:
    """The part's name in errors, and the field with its content. ``where`` is its place in the messages."""
    given = part.get(FIELD)
    if isinstance(given, str) and len(given) <= MAX_NAME_LENGTH and _PATH.fullmatch(given):
        return given, given
    kind = part["type"]
    value = part.get(kind)
    if not isinstance(value, dict):
        return where, f"{where}.{kind}"
    names = ("url", "file_id", "data", "file_data", "file_url", EMBEDS_PART)
    return where, f"{where}.{kind}.{next((name for name in names if value.get(name) is not None), 'url')}"
