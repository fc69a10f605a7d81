"""What an operator may set."""

from pathlib import Path
from typing import Any

import pytest

from stentor.server.config.config import ConfigError, MediaConfig
from stentor.server.options.reading import read_config


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
        ("example.com", "*.cdn.test", "2606:4700::1111"), True, (81, 82, 8080), True, tmp_path, 1 << 20, 2.5, 3
    )


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
