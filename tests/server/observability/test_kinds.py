"""The address of a collector, as options give it."""

from pathlib import Path

import pytest

from stentor.server.config.config import ConfigError
from stentor.server.options import kinds
from stentor.server.options.reading import read_config


@pytest.mark.parametrize("given", ["collector:4318", "ftp://collector", "http://", "http://c:port", "http://c:0", ""])
def test_what_is_no_address_is_refused_and_not_shown(given: str) -> None:
    with pytest.raises(ConfigError, match=r"^--otlp-endpoint: expected an http:// or https:// address such as [^']*$"):
        read_config({"otlp-endpoint": given}, {})


def test_a_toml_value_of_another_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "stentor.toml"
    file.write_text("otlp-endpoint = 4318\n")
    with pytest.raises(ConfigError, match="expected an http://"):
        read_config({"config": str(file)}, {})


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise ModuleNotFoundError

    for absent in (missing, lambda _name: None):
        monkeypatch.setattr(kinds, "find_spec", absent)
        with pytest.raises(ConfigError, match=r"^--otlp-endpoint: traces need .* install stentor\[otel\]"):
            read_config({"otlp-endpoint": "http://collector:4318"}, {})
