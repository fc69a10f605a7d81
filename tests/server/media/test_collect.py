"""Which media a prompt may hold, and what templates are given in their place."""

from typing import Any

import pytest

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.media_parts import check_media_part
from stentor.server.config.media import MediaConfig, MediaCounts
from stentor.server.media.collect import TEXT_ONLY, Accepted, collect_media
from stentor.server.media.parts import MediaPart

SEES = MediaSpec({"image": 5, "video": 6})
TEXT = {"type": "text", "text": "a"}


def image(url: str = "https://x.test/a.png", **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def accepted(spec: MediaSpec | None = SEES, **fields: Any) -> Accepted:
    return Accepted.of(spec, MediaConfig(**fields))


def test_media_are_found_in_order_and_leave_their_modality_behind() -> None:
    video = {"type": "video_url", "video_url": {"url": "https://x.test/b.mp4"}, "uuid": "u"}
    stored = {"type": "image_url", "image_url": {"file_id": "file-1"}}
    plain = {"role": "assistant", "content": "b"}
    given = [user(TEXT, image(detail="low"), TEXT), plain, user(video, stored, {"type": "image_url", "uuid": "v"})]
    messages, found = collect_media(given, accepted())
    assert messages == [
        user(TEXT, {"type": "image"}, TEXT),
        plain,
        user({"type": "video"}, {"type": "image"}, {"type": "image"}),
    ]
    assert messages[1] is plain
    assert given[0]["content"][1] == image(detail="low"), "what the client sent is not changed"
    assert found == [
        MediaPart("image", "https://x.test/a.png", "messages[0].content[1].image_url.url", detail="low"),
        MediaPart("video", "https://x.test/b.mp4", "messages[2].content[0].video_url.url", "u"),
        MediaPart("image", "", "messages[2].content[1].image_url.file_id", file="file-1"),
        MediaPart("image", "", "messages[2].content[2].image_url", "v"),
    ]


@pytest.mark.parametrize("nothing", [{}, {"image_url": None}, {"image_url": {}}])
def test_media_that_are_kept_are_named_without_their_address(nothing: dict[str, Any]) -> None:
    part = {"type": "image_url", "uuid": "v", **nothing}
    check_media_part(part, "part")
    (found,) = collect_media([user(part)], accepted())[1]
    assert (found.modality, found.url, found.uuid) == ("image", "", "v")
    with pytest.raises(BadRequest, match="image_url"):
        check_media_part({"type": "image_url", **nothing}, "part")


def test_audio_that_is_brought_along_becomes_an_address() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}
    (found,) = collect_media([user(part)], accepted(MediaSpec({"audio": 7})))[1]
    assert (found.modality, found.url) == ("audio", "data:audio/mp3;base64,AAAA")
    assert found.param == "messages[0].content[0].input_audio.data"


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (TEXT_ONLY, "the model takes no images; it takes text only"),
        (accepted(MediaSpec({"audio": 7})), "the model takes no images; it takes text and audio"),
        (accepted(language_model_only=True), "takes no media"),
        (accepted(None, language_model_only=True), "it takes text only"),
        (accepted(counts=MediaCounts(image=0)), "at most 0 images"),
    ],
)
def test_what_the_model_or_the_operator_does_not_take_is_refused_by_its_part(limits: Accepted, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        collect_media([user(TEXT), user(TEXT, image())], limits)
    assert (refused.value.status, refused.value.param) == (400, "messages[1].content[1]")


def test_media_are_counted_over_the_whole_conversation_each_modality_by_itself() -> None:
    video = {"type": "video_url", "video_url": {"url": "https://x.test/b.mp4"}}
    limits = accepted(counts=MediaCounts(image=2, video=1))
    collect_media([user(image(), video), user(image())], limits)
    with pytest.raises(BadRequest, match="at most 2 images in one prompt") as refused:
        collect_media([user(image(), video), user(image(), image())], limits)
    assert (refused.value.param, refused.value.code) == ("messages[1].content[1]", "array_above_max_length")
