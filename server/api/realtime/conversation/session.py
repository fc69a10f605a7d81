"""The effective session: its initial settings, and a client's changes.

Only fields that are present change anything; null, an empty text and an empty list clear a field. A refused update
changes nothing.
"""

from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stentor.protocols.common.errors import missing, refused, wrong
from stentor.protocols.common.limits import MAX_TOOLS, Limits
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.realtime.session import (
    AudioInput,
    AudioOutput,
    Modality,
    NoiseReduction,
    RealtimeAudio,
    RealtimeSession,
    SemanticVad,
    ServerVad,
    Session,
    Transcription,
    TranscriptionAudio,
    TranscriptionSession,
)
from stentor.protocols.openai.realtime.update import (
    AnswerUpdate,
    InputUpdate,
    OutputUpdate,
    RealtimeUpdate,
    ResponseOutputUpdate,
    SemanticVadUpdate,
    ServerVadUpdate,
    SessionFields,
    TranscriptionSessionFields,
    read_fields,
)
from stentor.protocols.openai.responses.tools import chat_choice, chat_tools
from stentor.protocols.openai.sampling import not_served
from stentor.protocols.openai.tools import tool_use

from ....generation.error_fields import map_error_fields

_SHOWN: Final = ("type", "name", "description", "parameters")
_MODES: Final = ("none", "auto", "required")
_WITHOUT_TURN_DETECTION: Final = ("gpt-live-transcribe", "gpt-realtime-whisper")
"""Beginnings of names of OpenAI's transcription models that detect no turns. Whoever names one commits turns, and would
find the buffer empty if the server had committed one before."""

Changed = TypeVar("Changed", bound=msgspec.Struct)


class Models(Protocol):
    """The server's models, as sessions need them."""

    @property
    def can_speak(self) -> bool: ...

    @property
    def default_voice(self) -> str | None:
        """None without a speech model."""

    def check_voice(self, name: str, field: str) -> None:
        """Raises BadRequest for one that is not there."""

    def check_speed(self, speed: float, field: str) -> None:
        """Raises BadRequest for one that the speech model does not have."""

    def chat_model(self, name: str | None, field: str) -> str:
        """The served name. Raises BadRequest."""

    def same_chat_model(self, one: str, other: str) -> bool:
        """Whether two served names mean one model."""

    def transcription_model(self, name: str | None, field: str) -> str:
        """The served name. Raises BadRequest, also without a transcription model."""

    def language(self, name: str, field: str) -> str:
        """The code of a language that the transcription model knows. Raises BadRequest."""


NO_SPEECH_MODEL: Final = (
    "audio output needs a speech model, and none is served; ask for `text`, or start the server with --speech-model"
)


class SessionRules(msgspec.Struct, frozen=True):
    """Rules for this server's sessions."""

    models: Models
    limits: Limits
    carries_sound: bool = False
    """The transport does, in a format of its own: those of sessions stay as they are."""

    @property
    def modalities(self) -> list[Modality]:
        """The default."""
        return ["audio"] if self.models.can_speak else ["text"]

    # ---- whole sessions

    def realtime(self, id: str, model: str | None, expires_at: int, field: str = "model") -> RealtimeSession:
        """``field`` is where the model was named. Raises BadRequest."""
        return RealtimeSession(
            id=id,
            model=self.models.chat_model(model, field),
            output_modalities=self.modalities,
            expires_at=expires_at,
            audio=RealtimeAudio(output=AudioOutput(voice=self.models.default_voice)),
        )

    def transcription(self, id: str, expires_at: int, name: str | None = None) -> TranscriptionSession:
        """Raises BadRequest."""
        model = self.models.transcription_model(name, "model")
        audio_input = _detecting(AudioInput(transcription=Transcription(model)), name)
        return TranscriptionSession(id=id, expires_at=expires_at, audio=TranscriptionAudio(audio_input))

    def updated(self, session: Session, given: dict[str, Any], *, pristine: bool, has_spoken: bool) -> Session:
        """``session`` with the changes of ``given``.

        ``pristine``: no other event yet, so that its type may change. ``has_spoken``: audio was sent, so its voice must
        stay. Raises BadRequest naming the field.
        """
        update = read_fields(given, SessionFields, "session")
        match session, update:
            case RealtimeSession(), RealtimeUpdate():
                return self._realtime(session, update, has_spoken)
            case TranscriptionSession(), TranscriptionSessionFields():
                return self._transcription(session, update)
            case RealtimeSession(), TranscriptionSessionFields() if pristine:
                return self._transcription(self.transcription(session.id, session.expires_at), update)
            case TranscriptionSession(), RealtimeUpdate() if pristine:
                name = update.model or None
                begun = self.realtime(session.id, name, session.expires_at)
                return self._realtime(begun, update, has_spoken=False)
            case _:
                kind = "realtime" if isinstance(session, RealtimeSession) else "transcription"
                raise refused(
                    "session.type", f"this is a {kind} session and stays one; open another connection", "invalid_value"
                )

    def _realtime(self, session: RealtimeSession, update: RealtimeUpdate, has_spoken: bool) -> RealtimeSession:
        name = self.models.chat_model(update.model, "session.model") if update.model else session.model
        if not self.models.same_chat_model(name, session.model):
            raise wrong(
                "session.model",
                f"is `{session.model}` and stays it; open another connection for another model",
                "invalid_value",
            )
        session = self.answering(session, update, "session")
        audio = session.audio
        given = RealtimeAudio() if update.audio is None else audio
        if update.audio:
            if update.audio.input is not UNSET:
                given = replace(given, input=self._input(given.input, update.audio.input))
            if update.audio.output is not UNSET:
                output = self.output(given.output, update.audio.output, "session.audio.output")
                given = replace(given, output=output)
        if update.audio is None:
            given = replace(given, output=self.output(given.output, None, "session.audio.output"))
        if has_spoken and given.output.voice != audio.output.voice:
            raise wrong(
                "session.audio.output.voice",
                "cannot change any more: audio has been sent with it",
                "cannot_update_voice",
            )
        return replace(
            session,
            audio=given,
            include=_include(update.include, session.include),
            tracing=_kept(update.tracing, session.tracing, None),
            truncation=_kept(update.truncation, session.truncation, "auto"),
        )

    def _transcription(self, session: TranscriptionSession, update: TranscriptionSessionFields) -> TranscriptionSession:
        audio_input = session.audio.input
        if update.audio is not UNSET:
            given = None if update.audio is None else update.audio.input
            if given and given.transcription and given.turn_detection is UNSET:
                audio_input = _detecting(audio_input, given.transcription.model)
            audio_input = self._input(audio_input, given)
        if audio_input.transcription is None:
            model = self.models.transcription_model(None, "session.audio.input.transcription")
            audio_input = replace(audio_input, transcription=Transcription(model))
        include = _include(update.include, session.include)
        return replace(session, audio=TranscriptionAudio(audio_input), include=include)

    def carried(self, session: Session) -> Session:
        """With pcm formats, whatever it had."""
        audio_input = replace(session.audio.input, format=AudioInput().format)
        if isinstance(session, TranscriptionSession):
            return replace(session, audio=replace(session.audio, input=audio_input))
        output = replace(session.audio.output, format=AudioOutput().format)
        return replace(session, audio=replace(session.audio, input=audio_input, output=output))

    # ---- parts

    def answering(self, session: RealtimeSession, update: AnswerUpdate, where: str) -> RealtimeSession:
        """Applies the fields that sessions and responses share. Raises BadRequest naming the field below ``where``."""
        if update.prompt:
            raise not_served(f"{where}.prompt")
        modalities = update.output_modalities
        tools, choice = session.tools, session.tool_choice
        if update.tools is not UNSET:
            tools = _shown_tools(update.tools or [], where)
        if update.tool_choice is not UNSET:
            choice = _checked_choice(update.tool_choice, where)
        changed = replace(
            session,
            instructions=_kept(update.instructions, session.instructions, ""),
            tools=tools,
            tool_choice=choice,
            max_output_tokens=_kept(update.max_output_tokens, session.max_output_tokens, "inf"),
            parallel_tool_calls=_kept(update.parallel_tool_calls, session.parallel_tool_calls, UNSET),
            reasoning=_kept(update.reasoning, session.reasoning, UNSET),
        )
        if update.tools is not UNSET or update.tool_choice is not UNSET:
            _check_tools(changed, self.limits, where)
        if modalities is not UNSET:
            changed = replace(changed, output_modalities=self._modalities(modalities, where))
        return changed

    def _modalities(self, given: list[Modality] | None, where: str) -> list[Modality]:
        field = f"{where}.output_modalities"
        if not given:
            return self.modalities
        if len(given) != 1:
            raise wrong(field, 'must be ["text"] or ["audio"]', "invalid_value")
        if given == ["audio"] and not self.models.can_speak:
            raise refused(field, f"{NO_SPEECH_MODEL}", "unsupported")
        return given

    def output(self, output: AudioOutput, update: ResponseOutputUpdate | UnsetType | None, where: str) -> AudioOutput:
        """Raises BadRequest naming the field below ``where``."""
        if update is UNSET:
            return output
        first = self.models.default_voice
        if update is None:
            return AudioOutput(voice=first)
        voice = output.voice
        name = update.voice_name
        if name:
            self.models.check_voice(name, f"{where}.voice")
            voice = name
        elif name is not UNSET:
            voice = first
        speed = output.speed
        if isinstance(update, OutputUpdate):
            speed = _kept(update.speed, output.speed, 1.0)
            self.models.check_speed(speed, f"{where}.speed")
        return AudioOutput(
            format=_kept(UNSET if self.carries_sound else update.format, output.format, AudioOutput().format),
            voice=voice,
            speed=speed,
        )

    def _input(self, audio_input: AudioInput, update: InputUpdate | UnsetType | None) -> AudioInput:
        where = "session.audio.input"
        if update is UNSET:
            return audio_input
        if update is None:
            return AudioInput()
        transcription = audio_input.transcription
        if update.transcription is None:
            transcription = None
        elif update.transcription is not UNSET:
            merged = _merged(transcription or Transcription(), update.transcription)
            model = self.models.transcription_model(merged.model, f"{where}.transcription.model")
            transcription = self._with_languages(replace(merged, model=model), f"{where}.transcription")
        noise = audio_input.noise_reduction
        if update.noise_reduction is None:
            noise = None
        elif update.noise_reduction is not UNSET:
            noise = _merged(noise or NoiseReduction(), update.noise_reduction)
        given = UNSET if self.carries_sound else update.format
        return AudioInput(
            format=_kept(given, audio_input.format, AudioInput().format),
            transcription=transcription,
            noise_reduction=noise,
            turn_detection=_turn_detection(audio_input.turn_detection, update.turn_detection),
        )

    def _with_languages(self, transcription: Transcription, where: str) -> Transcription:
        """With languages that the model knows. Raises BadRequest."""
        language, languages = transcription.language, transcription.languages
        if language is not None:
            language = self.models.language(language, f"{where}.language")
        if languages is not None:
            languages = [
                self.models.language(name, f"{where}.languages[{place}]") for place, name in enumerate(languages)
            ]
        return replace(transcription, language=language, languages=languages)


def _detecting(audio_input: AudioInput, model: str | UnsetType | None) -> AudioInput:
    """Without the default turn detection if the client names a model that has none."""
    if not model or not model.startswith(_WITHOUT_TURN_DETECTION) or audio_input.turn_detection != ServerVad():
        return audio_input
    return replace(audio_input, turn_detection=None)


def _turn_detection(
    now: ServerVad | SemanticVad | None, update: ServerVadUpdate | SemanticVadUpdate | UnsetType | None
) -> ServerVad | SemanticVad | None:
    """Another kind of it begins with its own defaults."""
    match update:
        case None:
            return None
        case ServerVadUpdate():
            return _merged(now if isinstance(now, ServerVad) else ServerVad(), update)
        case SemanticVadUpdate():
            return _merged(now if isinstance(now, SemanticVad) else SemanticVad(), update)
        case _:
            return now


def _check_tools(session: RealtimeSession, limits: Limits, where: str) -> None:
    """Raises BadRequest naming the field below ``where``."""
    if not session.tools:
        return  # a choice may come before its tools
    names = {
        "tools[].function": f"{where}.tools[]",
        "tools": f"{where}.tools",
        "tool_choice.function": f"{where}.tool_choice",
        "tool_choice": f"{where}.tool_choice",
    }
    with map_error_fields(names):
        choice = chat_choice(session.tool_choice, session.tools)
        tool_use(ChatRequest(messages=[], tools=chat_tools(session.tools), tool_choice=choice), limits)


def _shown_tools(tools: list[Any], where: str) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        field = f"{where}.tools"
        raise wrong(field, f"has {len(tools)} items; at most {MAX_TOOLS} are allowed")
    shown = []
    for index, tool in enumerate(tools):
        field = f"{where}.tools[{index}]"
        kind = tool.get("type", "function") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise wrong(field, "must be an object of type `function`", "invalid_value")
        if kind != "function":
            raise not_served(f"{field}.type", f"`{field}.type`: a tool of type `{kind[:40]}`")
        if not isinstance(tool.get("name"), str):
            raise missing(f"{field}.name")
        shown.append({"type": "function", **{name: tool[name] for name in _SHOWN if tool.get(name) is not None}})
    return shown


def _checked_choice(choice: str | dict[str, Any] | None, where: str) -> str | dict[str, Any]:
    field = f"{where}.tool_choice"
    if choice is None or choice == "":
        return "auto"
    if isinstance(choice, str):
        if choice not in _MODES:
            raise wrong(field, f"must be {', '.join(_MODES)} or an object", "invalid_value")
        return choice
    kind = choice.get("type")
    if kind != "function":
        shown = kind[:40] if isinstance(kind, str) else ""
        raise not_served(f"{field}.type", f"`{field}.type`: a choice of type `{shown}`")
    if not isinstance(choice.get("name"), str):
        raise missing(f"{field}.name")
    return {"type": "function", "name": choice["name"]}


def _include(given: Any, now: Any) -> Any:
    return now if given is UNSET else list(dict.fromkeys(given or ())) or None


def _kept(given: Any, now: Any, cleared: Any) -> Any:
    if given is UNSET:
        return now
    return cleared if given is None else given


def _merged(now: Changed, update: msgspec.Struct) -> Changed:
    """Null, an empty text and an empty list give a field its default."""
    defaults = type(now)()
    changes = {}
    for name in update.__struct_fields__:
        value = getattr(update, name)
        if value is not UNSET:
            changes[name] = getattr(defaults, name) if value in (None, "", []) else value
    return replace(now, **changes)
