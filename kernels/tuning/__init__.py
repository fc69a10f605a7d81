"""Block sizes by GPU: what a launcher takes, from a measured file where there is one.

A file is JSON, ``{operation: {key: {"BLOCK_M": 64, …, "num_warps": 4, "num_stages": 3}}}``. Those shipped
lie beside this module, named after the GPU (``nvidia-h200.json``); ``stentor tune`` writes one to the
cache, which is read in preference.
"""

from .config import Config
from .table import load_table, overridden, pick, table_path, tuning_name, untuned
from .tunable import Tunable

__all__ = ["Config", "Tunable", "load_table", "overridden", "pick", "table_path", "tuning_name", "untuned"]
