"""Finds the config for a launch: an override, the table of this GPU, or the launcher's own default."""

import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from ..forced import forced, forcing
from .config import Config

logger = logging.getLogger(__name__)

Table = Mapping[str, Mapping[str, Mapping[str, int]]]


def pick(operation: str, key: str, default: Config) -> Config:
    """Returns the config of one launch. ``key`` names what the best sizes depend on, never a batch size that varies.

    Whether products and sums may be fused belongs to the operation: it is taken from ``default``, whatever is forced.
    """
    here = forced.get()
    if here.config is not None and here.operation == operation:
        config = here.config
        if config.fuse_multiply_add == default.fuse_multiply_add:
            return config
        return replace(config, fuse_multiply_add=default.fuse_multiply_add)
    return default if here.untuned else _picked(here.gpu, operation, key, default)


def overridden(operation: str, config: Config) -> AbstractContextManager[None]:
    """Within the block, ``operation`` uses ``config`` whatever the tables say."""
    return forcing(operation=operation, config=config)


def untuned() -> AbstractContextManager[None]:
    """Within the block, launchers use their own defaults, except for what is :func:`overridden`."""
    return forcing(untuned=True)


def tuned_for(name: str) -> AbstractContextManager[None]:
    """Within the block, launchers use the table of another GPU, given by the name of its file."""
    return forcing(gpu=name)


@cache
def _picked(gpu: str | None, operation: str, key: str, default: Config) -> Config:
    """Returns the table's config. ``gpu``: None is the one present."""
    entry = _table(gpu).get(operation, {}).get(key)
    if entry is None:
        return default
    try:
        return default.replaced(entry)
    except ValueError as error:
        logger.warning("the tuning table's entry %s %s is passed over: %s", operation, key, error)
        return default


@cache
def _table(gpu: str | None) -> Table:
    name = gpu or tuning_name()
    return {} if name is None else load_table(name)


def tuning_name() -> str | None:
    """Returns the current GPU's name in file names (``nvidia-h200``); None without one."""
    if not torch.cuda.is_available():
        return None
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")


def table_path(name: str) -> Path:
    """Returns the path where ``stentor tune`` writes the table of a GPU."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stentor" / "tuning" / f"{name}.json"


def load_table(name: str) -> Table:
    """Returns the tuned table of a GPU, else the shipped one, else an empty one."""
    for path in (table_path(name), Path(__file__).parent / f"{name}.json"):
        if not path.is_file():
            continue
        try:
            return _checked(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            logger.warning("the tuning table %s is passed over: %s", path, error)
    return {}


def _checked(table: object) -> Table:
    if not isinstance(table, dict):
        raise ValueError("expected an object of operations")
    for operation, entries in table.items():
        if not isinstance(entries, dict):
            raise ValueError(f"{operation}: expected an object of keys")
        for key, sizes in entries.items():
            if not isinstance(sizes, dict) or not all(isinstance(size, int) and size > 0 for size in sizes.values()):
                raise ValueError(f"{operation} {key}: expected positive integers by name")
    return table
