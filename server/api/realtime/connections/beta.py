"""The beta of the Realtime API: other names of events and parts, and a flat session.

Both directions are translated to the current API, so that no other file knows the beta.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.client import (
    AnyClientEvent,
    ItemCreate,
    ResponseCreate,
    SessionUpdate,
    TranscriptionSessionUpdate,
    decode_event,
)
from stentor.protocols.openai.realtime.server import (
    ErrorEvent,
    ItemDone,
    ServerEvent,
    SessionCreated,
    SessionUpdated,
)
from stentor.protocols.openai.realtime.session import TranscriptionSession

from ....generation.error_fields import renamed

Fields = dict[str, Any]

_FORMATS: Final = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_FORMATS_NOW: Final = {old: now for now, old in _FORMATS.items()}
_PARTS: Final = {"output_text": "text", "output_audio": "audio"}
_PARTS_NOW: Final = {old: now for now, old in _PARTS.items()}
_EVENTS: Final = {
    "conversation.item.added": "conversation.item.created",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
_SAME: Final = ("instructions", "tools", "tool_choice", "tracing", "model", "include", "metadata", "conversation")
_PATHS: Final = {
    "audio.input.format": "input_audio_format",
    "audio.input.format.type": "input_audio_format",
    "audio.input.transcription": "input_audio_transcription",
    "audio.input.noise_reduction": "input_audio_noise_reduction",
    "audio.input.turn_detection": "turn_detection",
    "audio.output.format": "output_audio_format",
    "audio.output.format.type": "output_audio_format",
    "audio.output.voice": "voice",
    "audio.output.speed": "speed",
    "output_modalities": "modalities",
    "max_output_tokens": "max_response_output_tokens",
}
"""Fields of sessions and responses, and their names in the beta."""
_ERROR_FIELDS: Final = {
    f"{where}.{now}": f"{where}.{then}" for where in ("session", "response") for now, then in _PATHS.items()
}
FLAT_ERROR_FIELDS: Final = {f"session.{now}": then for now, then in _PATHS.items()}
"""Of a session that is a request's body."""
_DROPPED: Final = ("temperature", "client_secret", "id", "object", "expires_at")
"""Fields without meaning today."""
_TEMPERATURE: Final = 0.8
"""The beta's default in sessions."""


class BetaDialect:
    """A :class:`.event_queue.Dialect`."""

    def decode(self, message: bytes, limits: Limits) -> AnyClientEvent:
        event = decode_event(message, limits)
        match event:
            case SessionUpdate(session=dict() as session):
                return replace(event, session=session_now(session, "realtime"))
            case TranscriptionSessionUpdate():
                return SessionUpdate(event_id=event.event_id, session=session_now(event.session, "transcription"))
            case ItemCreate():
                return replace(event, item=_item_now(event.item))
            case ResponseCreate(response=dict() as response):
                return replace(event, response=_response_now(response))
            case _:
                return event

    def encode(self, event: ServerEvent) -> bytes | None:
        if isinstance(event, ItemDone):
            return None
        if isinstance(event, ErrorEvent):
            message, param = renamed(event.error.message, event.error.param, _ERROR_FIELDS)
            event = replace(event, error=replace(event.error, message=message, param=param))
        fields: Fields = msgspec.to_builtins(event)
        fields["type"] = _EVENTS.get(fields["type"], fields["type"])
        if isinstance(event, SessionCreated | SessionUpdated):
            if isinstance(event.session, TranscriptionSession):
                fields["type"] = f"transcription_{fields['type']}"
            fields["session"] = session_then(fields["session"])
        elif "item" in fields:
            fields["item"] = _item_then(fields["item"])
        elif "response" in fields:
            fields["response"] = _response_then(fields["response"])
        return encode(fields)


# ---- as it is now


def session_now(session: Fields, kind: str) -> Fields:
    """A session that a client of the beta sends. Raises as :func:`_audio_now`."""
    now: Fields = {"type": kind}
    audio_input, audio_output = _audio_now(session, now, "session")
    audio = {name: part for name, part in (("input", audio_input), ("output", audio_output)) if part}
    if audio:
        now["audio"] = audio
    for name, value in session.items():
        if name in _SAME:
            now[name] = value
    return now


def _audio_now(fields: Fields, now: Fields, where: str) -> tuple[Fields, Fields]:
    """Moves fields to their current places; unknown ones stay and are refused by name. Raises BadRequest, by the
    current name, for an unknown format."""
    audio_input: Fields = {}
    audio_output: Fields = {}
    for name, value in fields.items():
        match name:
            case "modalities":
                now["output_modalities"] = _modalities_now(value)
            case "max_response_output_tokens" | "max_output_tokens":
                now["max_output_tokens"] = value
            case "input_audio_format":
                audio_input["format"] = _format_now(value, f"{where}.audio.input.format")
            case "output_audio_format":
                audio_output["format"] = _format_now(value, f"{where}.audio.output.format")
            case "input_audio_transcription":
                audio_input["transcription"] = value
            case "input_audio_noise_reduction":
                audio_input["noise_reduction"] = value
            case "turn_detection":
                audio_input["turn_detection"] = _detection_now(value)
            case "voice" | "speed":
                audio_output[name] = value
            case _ if name not in (*_SAME, *_DROPPED, "type", "input"):
                now[name] = value
    return audio_input, audio_output


def _modalities_now(value: Any) -> Any:
    if isinstance(value, list) and "audio" in value:
        return ["audio"]
    return value


def _format_now(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return value
    if value not in _FORMATS_NOW:
        raise wrong(field, f"must be one of {', '.join(_FORMATS_NOW)}", "invalid_value")
    return {"type": _FORMATS_NOW[value]}


def _detection_now(value: Any) -> Any:
    return {"type": "server_vad", **value} if isinstance(value, dict) else value


def _response_now(response: Fields) -> Fields:
    now: Fields = {}
    _, audio_output = _audio_now(response, now, "response")
    audio_output.pop("speed", None)
    if audio_output:
        now["audio"] = {"output": audio_output}
    for name in _SAME:
        if name in response:
            now[name] = response[name]
    if isinstance(response.get("input"), list):
        now["input"] = [_item_now(item) if isinstance(item, dict) else item for item in response["input"]]
    return now


def _item_now(item: Fields) -> Fields:
    content = item.get("content")
    if not isinstance(content, list):
        return item
    return {**item, "content": [_part_named(part, _PARTS_NOW, item.get("role")) for part in content]}


def _part_named(part: Any, names: Mapping[str, str], role: Any) -> Any:
    if not isinstance(part, dict) or role != "assistant":
        return part
    kind = part.get("type")
    return {**part, "type": names[kind]} if isinstance(kind, str) and kind in names else part


# ---- as it was then


def session_then(session: Fields) -> Fields:
    """A session as clients of the beta know it."""
    audio_input = session["audio"]["input"]
    then: Fields = {
        "id": session["id"],
        "object": session["object"],
        "expires_at": session["expires_at"],
        "input_audio_format": _FORMATS[audio_input["format"]["type"]],
        "input_audio_transcription": audio_input["transcription"],
        "input_audio_noise_reduction": audio_input["noise_reduction"],
        "turn_detection": _detection_then(audio_input["turn_detection"]),
        "include": session["include"],
    }
    if session["type"] == "transcription":
        return then
    audio_output = session["audio"]["output"]
    return {
        **then,
        **{name: session[name] for name in ("model", "instructions", "tools", "tool_choice", "tracing")},
        "modalities": _modalities_then(session["output_modalities"]),
        "max_response_output_tokens": session["max_output_tokens"],
        "output_audio_format": _FORMATS[audio_output["format"]["type"]],
        "voice": audio_output["voice"],
        "speed": audio_output["speed"],
        "temperature": _TEMPERATURE,
    }


def _modalities_then(modalities: list[str]) -> list[str]:
    return ["text", "audio"] if modalities == ["audio"] else modalities


def _detection_then(detection: Fields | None) -> Fields | None:
    if detection is None:
        return None
    return {name: value for name, value in detection.items() if name != "idle_timeout_ms"}


def _response_then(response: Fields) -> Fields:
    then = {name: value for name, value in response.items() if name not in ("audio", "output_modalities")}
    then["output"] = [_item_then(item) for item in response["output"]]
    then["modalities"] = _modalities_then(response["output_modalities"])
    if response["usage"] is not None:
        details = dict(response["usage"]["input_token_details"])
        del details["cached_tokens_details"]
        then["usage"] = {**response["usage"], "input_token_details": details}
    if "audio" in response:
        output = response["audio"]["output"]
        then["voice"] = output["voice"]
        then["output_audio_format"] = _FORMATS[output["format"]["type"]]
    return then


def _item_then(item: Fields) -> Fields:
    if "content" not in item:
        return item
    return {**item, "content": [_part_named(part, _PARTS, item["role"]) for part in item["content"]]}
