"""What an operator may set."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.server.app.media import MediaOpener
from stentor.server.config.config import ConfigError, StoreConfig
from stentor.server.config.media import MediaConfig, MediaCounts
from stentor.server.media.processor import Wanted
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.processors.processor_options import loading_options, with_defaults
from stentor.server.options.reading import read_config
from stentor.server.storage.opening import make_store
from stentor.tests.server.media.families import PROCESSED
from stentor.tests.server.media.pictures import picture, png


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def media(**flags: Any) -> MediaConfig:
    return read_config({f"media-{name.replace('_', '-')}": raw for name, raw in flags.items()}, {}).media


def test_without_a_word_only_public_hosts_are_fetched_from_by_https() -> None:
    config = media()
    assert not config.allow_private
    assert not config.allow_http
    assert (config.domains, config.ports, config.root) == ((), (), None)
    assert config.max_bytes > 0
    assert config.timeout > 0


def test_every_option_is_understood(tmp_path: Path) -> None:
    config = media(
        domain=["Example.com", "*.cdn.test", "2606:4700::1111"],
        port=["8080", "81,82"],
        root=str(tmp_path),
        max_bytes="1MiB",
        timeout="2.5",
        max_fetches="3",
        allow_private=True,
        allow_http=True,
    )
    assert config == MediaConfig(
        domains=("example.com", "*.cdn.test", "2606:4700::1111"),
        allow_http=True,
        ports=(81, 82, 8080),
        allow_private=True,
        root=tmp_path,
        max_bytes=1 << 20,
        timeout=2.5,
        max_fetches=3,
    )


def test_options_have_vllm_s_names_too(tmp_path: Path) -> None:
    names = {"STENTOR_ALLOWED_MEDIA_DOMAINS": "a.test,b.test", "STENTOR_ALLOWED_LOCAL_MEDIA_PATH": str(tmp_path)}
    config = read_config({}, names).media
    assert (config.domains, config.root) == (("a.test", "b.test"), tmp_path)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("image=4", MediaCounts(image=4)),
        ("image=4, video=0,audio=1", MediaCounts(4, 0, 1)),
        ('{"image": 4, "video": 0}', MediaCounts(image=4, video=0)),
        ('{"video": {"count": 1, "num_frames": 32}}', MediaCounts(video=1)),
    ],
)
def test_counts_of_media_are_pairs_or_json(text: str, counts: MediaCounts) -> None:
    assert read_config({"limit-mm-per-prompt": text}, {}).media.counts == counts


@pytest.mark.parametrize(
    "text",
    ["4", "image", "image=", "image=-1", "image=x", "sound=1", "image=1,image=2", "{}", "{", '{"image": null}', "{1}"],
)
def test_what_is_no_count_of_media_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--limit-mm-per-prompt: expected a count"):
        read_config({"limit-mm-per-prompt": text}, {})


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("domain", ["https://example.com"]),
        ("domain", ["example.com/path"]),
        ("domain", ["example.com:80"]),
        ("domain", ["*"]),
        ("domain", ["a.*.com"]),
        ("domain", ["a..com"]),
        ("domain", ["exämple.com"]),
        ("domain", [""]),
        ("port", ["0"]),
        ("port", ["65536"]),
        ("root", "/no/such/folder"),
        ("root", "/etc/passwd"),
        ("max_bytes", "0"),
        ("timeout", "0"),
        ("timeout", "inf"),
        ("max_fetches", "0"),
    ],
)
def test_what_would_mean_something_else_than_was_meant_is_refused(name: str, raw: object) -> None:
    with pytest.raises(ConfigError, match=f"--media-{name.replace('_', '-')}: expected"):
        media(**{name: raw})


@pytest.mark.anyio
async def test_the_operator_s_options_of_media_reach_the_model_s_processor(tmp_path: Path) -> None:
    PROCESSED["qwen2_5_vl"](tmp_path)
    flags = {"mm-processor-kwargs": '{"max_pixels": 256}', "media-io-kwargs": '{"video": {"num_frames": 8}}'}
    opener = MediaOpener(read_config(flags, {}), make_store(StoreConfig()), CollectorRegistry())
    processor = opener.open(tmp_path, "m", MediaSpec({"image": 5})).processor
    assert processor is not None
    try:
        made = await processor.process(Wanted("image", png(64, 64), "messages[0]"), "")
    finally:
        processor.close()
    own = ModelProcessor(tmp_path).image(picture(64, 64), {"max_pixels": 256}, alone=True)
    assert made.replacement == own.replacement


@pytest.mark.parametrize(
    ("defaults", "given", "expected"),
    [
        ({"max_pixels": 9, "fps": 2}, {}, {"size": {"longest_edge": 9}, "fps": 2}),
        ({"max_pixels": 9}, {"max_pixels": 4}, {"size": {"longest_edge": 4}}),
        ({"max_pixels": 9}, {"size": {"longest_edge": 4}}, {"size": {"longest_edge": 4}}),
        ({"size": {"longest_edge": 9}}, {"min_pixels": 4}, {"size": {"longest_edge": 9, "shortest_edge": 4}}),
        ({"num_frames": 8}, {"fps": 2}, {"fps": 2}),
        ({"fps": 2}, {"num_frames": 8}, {"num_frames": 8}),
        ({"num_frames": 8}, loading_options({"video": {"num_frames": -1}}), {"num_frames": None}),
    ],
)
def test_an_option_of_a_request_replaces_each_default_that_means_the_same(
    defaults: dict[str, object], given: dict[str, object], expected: dict[str, object]
) -> None:
    assert with_defaults(given, defaults) == expected


@pytest.mark.parametrize(
    ("flag", "raw", "says"),
    [
        ("mm-processor-kwargs", '{"crop_size": 3}', "crop_size` is not taken"),
        ("mm-processor-kwargs", '{"max_pixels": -1}', "must be a whole number above 0"),
        ("mm-processor-kwargs", "[]", "expected JSON such as"),
        ("media-io-kwargs", '{"audio": {}}', "known is `video`"),
    ],
)
def test_options_of_media_that_no_request_may_have_are_refused_at_start(flag: str, raw: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config({flag: raw}, {})
