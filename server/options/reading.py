"""The only place that reads options; :mod:`.option` lists them.

Each option is a flag ``--max-model-len``, a variable ``STENTOR_MAX_MODEL_LEN`` and a TOML key ``max-model-len``
(``max_model_len`` too). A flag overrides the environment, which overrides the file, which overrides the default.
Unknown options are errors that name the nearest known one.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stentor.protocols.ipc.flag import OPTION_PREFIX

from ..config.config import DEFAULTS, Config, ConfigError
from . import kinds
from .option import OPTIONS, Option

SERVICE_LINK: Final = re.compile(r"STENTOR_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Kubernetes sets these in every pod beside a service whose name begins with ``stentor``."""


CONFIG_FILE: Final = Option("config", "", kinds.FILE, "a TOML file with any of these options as keys", "server")


def read_config(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """The tree from all sources.

    Args:
        flags: options, by any of their names, to what the command line gave: a string, a list of strings, or a bool.
        environment: all variables of the process.

    Raises:
        ConfigError: a value is wrong, an option or variable is unknown, or the file cannot be read.
    """
    variables = _from_environment(environment)
    given_file = ("--config", flags["config"]) if "config" in flags else variables.pop("config", None)
    from_file: dict[str, tuple[str, object]] = {}
    if given_file is not None:
        from_file = _from_file(_parse(CONFIG_FILE, *given_file))
    known = {spelling: option for option, spelling in _spellings()}
    from_flags: dict[str, tuple[str, object]] = {}
    for name, raw in flags.items():
        if name != "config":
            _note(from_flags, known[name], name, f"--{name}", raw)
    given = from_file | variables | from_flags
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name in given:
            value = _parse(option, *given[option.name])
            values[option.path] = values[option.path] + value if option.path in values else value
    config: Config = _replace(DEFAULTS, values)
    completed = config.completed()
    try:
        completed.registry()
    except ValueError as error:
        raise ConfigError(f"{error}; give one of them another name") from None
    if completed.engine.worker.kv_offloading_size is not None and not completed.engine.scheduler.prefix_cache:
        raise ConfigError("--kv-offloading-size keeps cached prefixes, which --no-prefix-cache turns off")
    if completed.engine.scheduler.kv_events is not None:
        if not completed.engine.scheduler.prefix_cache:
            raise ConfigError("--kv-events-config tells of cached prefixes, which --no-prefix-cache turns off")
        if completed.engine.worker.kv_offloading_size is not None:
            raise ConfigError("--kv-events-config does not tell of blocks on the host: leave --kv-offloading-size out")
    if completed.memory_left <= 0:
        raise ConfigError(
            "--transcription-memory-share and --embedding-memory-share are 1 or more together; the chat model needs "
            "some memory, too"
        )
    return completed


def nearest(name: str, known: Iterator[str] | list[str]) -> str:
    """Advice for an unknown option: ``: …`` for one of another server, ``; did you mean …?`` or ""."""
    from .elsewhere import advice  # late: few need it

    if message := advice(name.removeprefix(OPTION_PREFIX).lower().replace("_", "-").removeprefix("--")):
        return message
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.7) or [each for each in known if each.startswith(name)]
    return f"; did you mean {close[0]}?" if close else ""


def _parse(option: Option, source: str, raw: object) -> Any:
    try:
        return option.kind.parse(raw)
    except kinds.Refused as refused:
        raise ConfigError(f"{source}: {refused}") from None
    except ValueError:
        got = "" if option.kind.secret else f", got {raw!r}"
        raise ConfigError(f"{source}: expected {option.kind.expected}{got}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, object]]:
    known = {
        OPTION_PREFIX + spelling.upper().replace("-", "_"): (option, spelling) for option, spelling in _spellings()
    }
    found: dict[str, tuple[str, object]] = {}
    for variable, raw in environment.items():
        if not variable.startswith(OPTION_PREFIX) or _is_service_link(variable, raw):
            continue
        if variable not in known:
            raise ConfigError(f"{variable}: no such option{nearest(variable, list(known))}")
        _note(found, *known[variable], variable, raw)
    return found


def _is_service_link(variable: str, raw: str) -> bool:
    # the service's own port comes under our option's name, with an address for its value
    return bool(SERVICE_LINK.fullmatch(variable) or (variable.endswith("_PORT") and re.match("(tcp|udp|sctp)://", raw)))


def _from_file(path: Path) -> dict[str, tuple[str, object]]:
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    known = {spelling: (option, spelling) for option, spelling in _spellings() if option is not CONFIG_FILE}
    found: dict[str, tuple[str, object]] = {}
    for key, raw in table.items():
        name = key.replace("_", "-")
        if name not in known:
            raise ConfigError(f"{path}: no option {key!r}{nearest(name, list(known))}")
        _note(found, *known[name], f"{path}: {key}", raw)
    return found


def _spellings() -> Iterator[tuple[Option, str]]:
    for option in (*OPTIONS, CONFIG_FILE):
        for spelling in option.spellings:
            yield option, spelling


def _note(found: dict[str, tuple[str, object]], option: Option, spelling: str, source: str, raw: object) -> None:
    """Adds one value; ``no-NAME`` is inverted here, so that other code only knows NAME."""
    if option.name in found:
        raise ConfigError(f"{source}: {option.name} is given twice, also as {found[option.name][0]}")
    if spelling in option.opposites:
        raw = not _parse(option, source, raw)
    found[option.name] = source, raw


def _replace(tree: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a struct with the fields at dotted paths replaced."""
    changes: dict[str, Any] = {}
    for field in {path.partition(".")[0] for path in values}:
        below = {path.partition(".")[2]: value for path, value in values.items() if path.partition(".")[0] == field}
        changes[field] = below[""] if "" in below else _replace(getattr(tree, field), below)
    return msgspec.structs.replace(tree, **changes)
