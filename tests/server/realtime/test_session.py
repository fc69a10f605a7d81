"""What a client may change of its session, and what the session is afterwards."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeSessionCreateRequest, RealtimeTranscriptionSessionCreateRequest

from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.session import RealtimeSession, ServerVad, Session
from stentor.server.api.realtime.conversation.machine import TABLE, Event, Illegal, SessionMachine, State
from stentor.server.api.realtime.conversation.session import SessionRules
from stentor.tests.server.realtime.test_any_session import SESSIONS
from stentor.tests.server.realtime.wire import EXTENSIONS
from stentor.tests.wire.validate import check_object

TOOL: dict[str, Any] = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}


class Models:
    can_speak = True
    default_voice = "joe"

    def check_speed(self, speed: float, field: str) -> None:
        if speed == 1.3:
            raise refused(field, "it has no such speed", "unsupported")

    def check_voice(self, name: str, field: str) -> None:
        if name not in ("joe", "ann", "alloy"):
            raise BadRequest(f"`{field}`: nobody is called so.", field)

    def chat_model(self, name: str | None, field: str) -> str:
        if name not in (None, "chat", "alias", "another"):
            raise BadRequest(f"`{field}`: there is no such model.", field, status=404)
        return name or "chat"

    def same_chat_model(self, one: str, other: str) -> bool:
        return one == other or {one, other} == {"chat", "alias"}

    def language(self, name: str, field: str) -> str:
        if name not in ("en", "de"):
            raise BadRequest(f"`{field}`: the model does not hear `{name}`.", field)
        return name

    def transcription_model(self, name: str | None, field: str) -> str:
        if name not in (None, "ears", "gpt-realtime-whisper"):
            raise BadRequest(f"`{field}`: there is no such model.", field, status=404)
        return "ears"


RULES = SessionRules(Models(), Limits())
BEGUN = RULES.realtime("sess_1", None, 1)


def updated(
    update: dict[str, Any], session: Session = BEGUN, *, pristine: bool = False, has_spoken: bool = False
) -> Session:
    return RULES.updated(session, {"type": "realtime", **update}, pristine=pristine, has_spoken=has_spoken)


def realtime(update: dict[str, Any], session: Session = BEGUN, *, has_spoken: bool = False) -> RealtimeSession:
    changed = updated(update, session, has_spoken=has_spoken)
    assert isinstance(changed, RealtimeSession)
    return changed


def test_a_session_begins_as_the_protocol_says() -> None:
    reported = json.loads(msgspec.json.encode(BEGUN))
    check_object(RealtimeSessionCreateRequest, reported, EXTENSIONS)
    assert reported["output_modalities"] == ["audio"]
    assert reported["max_output_tokens"] == "inf"
    assert reported["audio"] == {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": None,
            "noise_reduction": None,
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
                "idle_timeout_ms": None,
                "create_response": True,
                "interrupt_response": True,
            },
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "joe", "speed": 1.0},
    }
    check_object(
        RealtimeTranscriptionSessionCreateRequest, msgspec.json.encode(RULES.transcription("sess_1", 1)), EXTENSIONS
    )


def test_only_fields_that_are_there_change() -> None:
    first = realtime(
        {"instructions": "Be brief.", "tools": [TOOL], "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    )
    second = realtime({"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 0.7}}}}, first)
    assert (second.instructions, second.tools) == ("Be brief.", [TOOL])
    assert second.audio.input.format == first.audio.input.format
    assert second.audio.input.turn_detection == ServerVad(threshold=0.7)
    third = realtime(
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}}}, second
    )
    assert third.audio.input.turn_detection == ServerVad(threshold=0.7, silence_duration_ms=200)
    assert first.audio.input.turn_detection == ServerVad()


@pytest.mark.parametrize(
    ("given", "cleared"),
    [
        ({"instructions": ""}, {"instructions": None}),
        ({"tools": []}, {"tools": None}),
        ({"max_output_tokens": None}, {"max_output_tokens": "inf"}),
        ({"truncation": None}, {"truncation": "auto"}),
        ({"include": []}, {"include": None}),
        ({"audio": {"input": {"transcription": None}}}, {"audio": {"input": {"transcription": None}}}),
        ({"audio": {"output": {"voice": None}}}, {"audio": {"output": {"voice": "joe"}}}),
        ({"audio": {"output": {"speed": None}}}, {"audio": {"output": {"speed": 1.0}}}),
        ({"output_modalities": []}, {"output_modalities": ["audio"]}),
    ],
)
def test_null_an_empty_text_and_an_empty_list_clear(given: dict[str, Any], cleared: dict[str, Any]) -> None:
    full = realtime(
        {
            "instructions": "Be brief.",
            "tools": [TOOL],
            "max_output_tokens": 7,
            "truncation": "disabled",
            "include": ["item.input_audio_transcription.logprobs"],
            "output_modalities": ["text"],
            "audio": {
                "input": {"transcription": {"model": "ears", "language": "en"}},
                "output": {"voice": "ann", "speed": 1.2},
            },
        }
    )
    assert realtime(given, full) == realtime(cleared, full) != full


def test_turns_can_be_left_to_the_client_and_taken_back() -> None:
    manual = realtime({"audio": {"input": {"turn_detection": None}}})
    assert manual.audio.input.turn_detection is None
    again = realtime({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}, manual)
    assert again.audio.input.turn_detection == ServerVad()


def test_who_names_a_transcription_model_without_turn_detection_commits_turns() -> None:
    def detection(session: Session, **given: Any) -> Any:
        transcription = {"transcription": {"model": "gpt-realtime-whisper"}}
        update = {"type": session_type(session), "audio": {"input": {**transcription, **given}}}
        return RULES.updated(session, update, pristine=False, has_spoken=False).audio.input.turn_detection

    def session_type(session: Session) -> str:
        return "realtime" if isinstance(session, RealtimeSession) else "transcription"

    begun = RULES.transcription("sess_1", 1)
    assert begun.audio.input.turn_detection == ServerVad()
    assert detection(begun) is None
    assert detection(begun, turn_detection={"type": "server_vad"}) == ServerVad()
    assert RULES.transcription("sess_1", 1, "gpt-realtime-whisper").audio.input.turn_detection is None
    assert detection(BEGUN) == ServerVad(), "the turns of a conversation are those of the model that answers"


def test_a_language_that_is_not_heard_is_refused_by_its_field() -> None:
    with pytest.raises(BadRequest, match=r"`session.audio.input.transcription.languages\[1\]`: .* `xx`"):
        realtime({"audio": {"input": {"transcription": {"languages": ["en", "xx"]}}}})
    with pytest.raises(BadRequest, match=r"`session.audio.input.transcription.language`: .* `tlh`"):
        realtime({"audio": {"input": {"transcription": {"language": "tlh"}}}})


def test_an_empty_language_is_none() -> None:
    named = realtime({"audio": {"input": {"transcription": {"language": "en", "prompt": "Names."}}}})
    cleared = realtime({"audio": {"input": {"transcription": {"language": ""}}}}, named)
    assert cleared.audio.input.transcription is not None
    assert cleared.audio.input.transcription.language is None
    assert cleared.audio.input.transcription.prompt == "Names."
    assert cleared.audio.input.transcription.model == "ears"


def test_what_the_server_tells_can_be_sent_back() -> None:
    reported = json.loads(msgspec.json.encode(realtime({"tools": [TOOL], "audio": {"input": {"transcription": {}}}})))
    assert msgspec.to_builtins(realtime(reported)) == reported


def test_another_name_of_the_same_model_changes_nothing() -> None:
    assert realtime({"model": "alias"}).model == "chat"


@pytest.mark.parametrize(
    ("update", "param", "code"),
    [
        ({"model": "another"}, "session.model", "invalid_value"),
        ({"model": "nobody"}, "session.model", None),
        ({"output_modalities": ["text", "audio"]}, "session.output_modalities", "invalid_value"),
        ({"output_modalities": ["video"]}, "session.output_modalities[0]", "invalid_value"),
        ({"tracing": 5}, "session.tracing", "invalid_value"),
        ({"tracing": {"metadata": {"a": {"b": "c"}}}}, "session.tracing.metadata", "invalid_value"),
        ({"max_output_tokens": 4097}, "session.max_output_tokens", "invalid_value"),
        ({"max_output_tokens": "many"}, "session.max_output_tokens", "invalid_value"),
        ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "session.tools[1].type", "unsupported"),
        ({"tools": [{"type": "function"}]}, "session.tools[0].name", "missing_required_parameter"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "session.tools[0].parameters.type", None),
        ({"tools": [TOOL, TOOL]}, "session.tools[1].name", "invalid_value"),
        ({"tool_choice": "sometimes"}, "session.tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "session.tool_choice.name", None),
        ({"prompt": {"id": "pmpt_1"}}, "session.prompt", "unsupported"),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 2}}, "session.truncation.retention_ratio", None),
        ({"audio": {"output": {"speed": 2}}}, "session.audio.output.speed", "invalid_value"),
        ({"audio": {"output": {"voice": "bob"}}}, "session.audio.output.voice", None),
        ({"audio": {"output": {"speed": 1.3}}}, "session.audio.output.speed", "unsupported"),
        ({"audio": {"input": {"format": {"type": "audio/ogg"}}}}, "session.audio.input.format.type", None),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
            "session.audio.input.format.rate",
            None,
        ),
        ({"audio": {"input": {"transcription": {"model": "x"}}}}, "session.audio.input.transcription.model", None),
        ({"audio": {"input": {"turn_detection": {"threshold": 0.5}}}}, "session.audio.input.turn_detection.type", None),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 100}}}},
            "session.audio.input.turn_detection.idle_timeout_ms",
            "invalid_value",
        ),
        ({"modalities": ["text"]}, "session.modalities", "unknown_parameter"),
        ({"type": "transcription"}, "session.type", "invalid_value"),
        ({"type": "translation"}, "session.type", "invalid_value"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(update: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        updated(update)
    assert refused.value.param == param
    assert code is None or refused.value.code == code
    assert param.removeprefix("session.") in refused.value.message


def test_the_voice_stays_once_it_has_spoken() -> None:
    with pytest.raises(BadRequest, match="cannot change any more"):
        realtime({"audio": {"output": {"voice": "ann"}}}, has_spoken=True)
    assert realtime({"audio": {"output": {"voice": "joe", "speed": 1.5}}}, has_spoken=True).audio.output.speed == 1.5


@given(st.lists(st.sampled_from(SESSIONS), max_size=6))
def test_whatever_is_sent_the_session_is_one_that_the_sdk_knows(updates: list[Any]) -> None:
    session: Session = BEGUN
    for update in updates:
        if not isinstance(update, dict):
            continue
        before = msgspec.json.encode(session)
        with contextlib.suppress(BadRequest):
            session = updated(update, session)
            continue
        assert msgspec.json.encode(session) == before
    check_object(RealtimeSessionCreateRequest, msgspec.json.encode(session), EXTENSIONS)


# ---- the machine


def test_every_event_leads_to_a_state_that_the_table_has() -> None:
    assert TABLE.keys() == set(State)
    assert {state for events in TABLE.values() for state in events.values()} <= TABLE.keys()
    assert {event for events in TABLE.values() for event in events} == set(Event)


@given(st.lists(st.sampled_from(Event)))
def test_the_machine_takes_what_the_table_has_and_nothing_else(events: list[Event]) -> None:
    machine = SessionMachine()
    for event in events:
        before = machine.state
        try:
            machine.take(event)
        except Illegal:
            assert event not in TABLE[before]
            assert machine.state is before
        else:
            assert machine.state is TABLE[before][event]


@pytest.mark.parametrize("state", [state for state in State if state is not State.ENDED])
def test_a_response_ends_only_where_one_is_open(state: State) -> None:
    responds = state in (State.RESPONDING, State.OVERLAPPING)
    assert (Event.RESPONSE_ENDED in TABLE[state]) == responds == (Event.CANCEL in TABLE[state])
    assert (Event.RESPOND in TABLE[state]) == (state in (State.IDLE, State.SPEAKING))
