"""Which model a name means, and what is said of one that means another kind, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel

CHAT = ServedModel("chat", ("owner/writes", "writes"))
EARS = ServedModel("transcription", ("whisper-1", "ears"))
VOICE = ServedModel("speech", ("tts-1",))
ALL = ModelRegistry([CHAT, EARS, VOICE])


def refusal(registry: ModelRegistry, name: str | None, kind: ModelRole, param: str = "model") -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        registry.resolve(name, kind, param)
    return refused.value


def test_each_name_of_a_model_means_it_and_none_means_the_first() -> None:
    assert ALL.resolve("writes", "chat") == "writes"
    assert ALL.resolve("ears", "transcription") == "ears"
    assert ALL.resolve(None, "transcription") == "whisper-1"
    assert ALL.resolve(None, "chat") == "owner/writes"
    assert [model.names[0] for model in ALL] == ["owner/writes", "whisper-1", "tts-1"]


def test_a_name_that_nobody_has_is_not_found() -> None:
    error = refusal(ALL, "gpt-9", "speech", "session.model")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "session.model")
    assert "`gpt-9`" in error.message


def test_a_long_name_is_shown_in_part() -> None:
    assert len(refusal(ALL, "x" * 10_000, "chat").message) < 300


def test_a_model_of_another_kind_is_refused_with_the_one_that_would_do() -> None:
    error = refusal(ALL, "tts-1", "transcription")
    assert (error.status, error.code, error.param) == (400, "model_not_supported", "model")
    assert error.message == "`tts-1` is a speech model; this needs a transcription model: use `whisper-1`."


def test_where_no_model_would_do_the_refusal_says_how_to_have_one() -> None:
    alone = ModelRegistry([CHAT])
    assert "--transcription-model" in refusal(alone, "writes", "transcription").message
    assert "--speech-model" in refusal(alone, None, "speech").message
    assert refusal(alone, None, "speech").status == 400
    assert refusal(alone, "whisper-1", "speech").status == 404


@pytest.mark.parametrize("names", [("tts-1", "writes"), ("writes",)])
def test_two_models_of_one_name_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^a chat model and a speech model are both served as 'writes'$"):
        ModelRegistry([CHAT, EARS, ServedModel("speech", names)])


def test_one_model_may_be_given_a_name_twice() -> None:
    assert ModelRegistry([ServedModel("chat", ("a", "a"))]).resolve("a", "chat") == "a"


OPEN = ModelRegistry(
    [
        ServedModel("chat", ("writes",), patterns=("gpt-*", "claude-*-4*")),
        ServedModel("embedding", ("vectors",), patterns=("*",)),
        EARS,
    ]
)


def test_a_name_that_fits_a_pattern_means_the_model_and_stays_what_it_is() -> None:
    assert OPEN.resolve("gpt-5.2", "chat") == "gpt-5.2"
    assert OPEN.resolve("claude-sonnet-4-5", "chat") == "claude-sonnet-4-5"
    assert OPEN.find("gpt-5.2").names == ("writes",)
    assert refusal(OPEN, "Gpt-5", "chat").status == 404
    assert refusal(OPEN, "claude-3", "chat").status == 404
    assert OPEN.resolve(None, "chat") == "writes"
    assert OPEN.resolve("a\nb", "embedding") == "a\nb"


def test_what_a_request_needs_decides_between_patterns_and_a_name_wins_over_them() -> None:
    assert OPEN.find("gpt-5", kind="embedding").kind == "embedding"
    assert OPEN.find("gpt-5", kind="chat").kind == "chat"
    assert OPEN.find("anything").kind == "embedding"
    assert refusal(OPEN, "ears", "embedding").status == 400
    assert refusal(OPEN, "vectors", "chat").status == 400
    assert "gpt-5" not in OPEN, "it is nobody's name"


def test_the_chat_model_s_pattern_is_its_transcripts_too_where_nothing_else_transcribes() -> None:
    chat = ServedModel("chat", ("writes",), also=("transcription",), patterns=("*",))
    assert ModelRegistry([chat]).find("whisper-1", kind="transcription") is chat
    assert ModelRegistry([chat, EARS]).find("whisper-2", kind="transcription") is chat
    assert ModelRegistry([chat, EARS]).find("whisper-1", kind="transcription") is EARS


@given(
    st.one_of(st.none(), st.sampled_from(["writes", "ears", "tts-1"]), st.text()), st.sampled_from(["chat", "speech"])
)
def test_any_name_is_served_or_refused_by_name(name: str | None, kind: ModelRole) -> None:
    known = {each: model.kind for model in ALL for each in model.names}
    if name is None or known.get(name) == kind:
        assert known[ALL.resolve(name, kind)] == kind
    else:
        error = refusal(ALL, name, kind)
        assert (error.param, error.status) == ("model", 400 if name in known else 404)
