"""Every kernel that has block sizes to search, over all operations. Imports Triton."""

from importlib import import_module

from .tuning import Tunable

_MODULES = (
    "norm.tunables",
    "activation.tunables",
    "embedding.tunables",
    "kv_cache.tunables",
    "rotate_and_write.tunables",
    "linear_fp8.triton_gemv",
    "linear_fp8.triton_skinny",
    "linear_fp8.triton_tiles",
    "linear_w4.tunables",
    "linear_gguf.tunables",
    "linear_coded.tunables",
    "moe.tunables",
    "attention.decode_tunables",
    "attention.prefill_tunables",
    "latent_attention.tunables",
    "sparse_index.tunables",
    "varlen_attention.tunables",
    "causal_conv.tunables",
    "gated_delta.tunables",
    "mamba2.tunables",
    "sampling.tunables",
)
"""Each has ``tunables() -> list[Tunable]``."""


def all_tunables() -> list[Tunable]:
    """In the order in which a tuner takes them."""
    found: list[Tunable] = []
    for name in _MODULES:
        found += import_module(f"stentor.kernels.{name}").tunables()
    return found
