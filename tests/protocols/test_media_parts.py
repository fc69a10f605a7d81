"""Parts of messages that bring media: what is well formed, and what a refusal names."""

from typing import Any

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.media_parts import FIELD, field_of
from stentor.protocols.openai.messages import check_messages

PNG = "data:image/png;base64,AAAA"


def check(*parts: Any, role: str = "user") -> None:
    check_messages([{"role": role, "content": list(parts), "tool_call_id": "c"}])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": PNG * 1000, "detail": None}, "uuid": "a"},
        {"type": "image_url", "image_url": "https://x.test/a.png"},
        {"type": "image_url", "image_url": {"file_id": "file-1"}},
        {"type": "image_url", "image_url": None, "uuid": "a"},
        {"type": "image_url", "uuid": "a"},
        {"type": "video_url", "video_url": {"url": "https://x.test/a.mp4"}},
        {"type": "audio_url", "audio_url": {"url": "https://x.test/a.wav"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_url": "https://x.test/a.pdf"}},
    ],
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_media_of_openai_s_and_vllm_s_shapes_are_taken(part: dict[str, Any], role: str) -> None:
    check({"type": "text", "text": "a"}, part, role=role)


@pytest.mark.parametrize(
    ("part", "openai"),
    [
        ("a", {"type": "text", "text": "a"}),
        ({"text": "a"}, {"type": "text", "text": "a"}),
        ({"type": None, "text": "a", "lang": "en"}, {"type": "text", "text": "a", "lang": "en"}),
        ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "output_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"image_url": PNG}, {"type": "image_url", "image_url": PNG}),
        ({"image_url": None, "uuid": "a"}, {"type": "image_url", "image_url": None, "uuid": "a"}),
        (
            {"type": "input_image", "image_url": PNG, "detail": "low"},
            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        ),
    ],
)
def test_parts_of_vllm_s_other_shapes_become_openai_s(part: Any, openai: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [part]}]
    check_messages(messages)
    assert messages == [{"role": "user", "content": [openai]}]


@pytest.mark.parametrize("thinking", ["Hm", [{"type": "text", "text": "H"}, {"type": "text", "text": "m"}]])
def test_thinking_in_the_content_of_the_assistant_is_its_reasoning(thinking: Any) -> None:
    thought, said = {"type": "thinking", "thinking": thinking}, {"type": "text", "text": "a"}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": [thought, said]},
        {"role": "assistant", "content": [thought], "reasoning": "before"},
    ]
    check_messages(messages)
    assert messages == [
        {"role": "assistant", "content": [said], "reasoning_content": "Hm"},
        {"role": "assistant", "content": None, "reasoning": "before"},
    ]
    with pytest.raises(BadRequest) as refused:
        check_messages([{"role": "assistant", "content": [said, {"type": "thinking", "thinking": [5]}]}])
    assert refused.value.param == "messages[0].content[1].thinking"
    with pytest.raises(BadRequest):
        check_messages([{"role": "user", "content": [thought]}])


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url"}, ".image_url"),
        ({"type": "input_image", "image_url": ""}, ".image_url"),
        ({"type": "image_url", "image_url": 5}, ".image_url"),
        ({"type": "image_url", "image_url": ""}, ".image_url"),
        ({"type": "image_url", "image_url": {}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": 5}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": ""}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": "https://x.test/" + "a" * 9000}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": PNG, "file_id": "f"}}, ".image_url"),
        ({"type": "image_url", "image_url": {"file_id": ["f"]}}, ".image_url.file_id"),
        ({"type": "image_url", "image_url": {"file_id": "f" * 999}}, ".image_url.file_id"),
        ({"type": "image_url", "image_url": {"url": PNG, "detail": "all"}}, ".image_url.detail"),
        ({"type": "image_url", "image_url": {"url": PNG}, "uuid": ""}, ".uuid"),
        ({"type": "image_url", "image_url": {"url": PNG}, "uuid": 5}, ".uuid"),
        ({"type": "image_url", "image_url": {"url": PNG}, "uuid": "a" * 999}, ".uuid"),
        ({"type": "video_url", "video_url": {}}, ".video_url.url"),
        ({"type": "input_audio"}, ".input_audio"),
        ({"type": "input_audio", "input_audio": "AAAA"}, ".input_audio"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, ".input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": 5, "format": "wav"}}, ".input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, ".input_audio.format"),
        ({"type": "file", "file": {}}, ".file.file_data"),
        ({"type": "file", "uuid": "a"}, ".file"),
        ({"type": "file", "file": {"file_id": "a", "file_data": "b"}}, ".file"),
        ({"type": "file", "file": {"file_data": "b", "filename": 5}}, ".file.filename"),
        ({"type": "audio_embeds", "audio_embeds": "AAAA"}, ""),
        ({"type": "smell_url"}, ""),
        ({"type": ["image_url"]}, ""),
        (5, ""),
    ],
)
def test_a_part_that_is_none_is_refused_by_its_field(part: Any, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check({"type": "text", "text": "a"}, part)
    assert refused.value.param == f"messages[0].content[1]{field}"


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url", "image_url": {"url": PNG}}, "p.image_url.url"),
        ({"type": "image_url", "image_url": PNG}, "p.image_url"),
        ({"type": "image_url", "image_url": {"file_id": "f"}}, "p.image_url.file_id"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "p.input_audio.data"),
        ({"type": "file", "file": {"file_url": "x"}}, "p.file.file_url"),
    ],
)
def test_errors_of_its_content_name_the_field_that_holds_it(part: dict[str, Any], field: str) -> None:
    assert field_of(part, "p") == ("p", field)
    assert field_of({**part, FIELD: "input[3].content[0]"}, "p") == ("input[3].content[0]",) * 2
    assert field_of({**part, FIELD: "not a `field`"}, "p") == ("p", field), "what a client made up is not repeated"
