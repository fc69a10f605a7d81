"""The memory layout of the paged KV cache.

As tensors, keys are ``[blocks, kv_heads, head_dim, block_size]`` and values ``[blocks, kv_heads, block_size,
head_dim]``. A slot is ``block * block_size + offset``.

Values are contiguous. Keys are contiguous on the CPU, where scores vectorise over the keys of a block. On CUDA keys lie
in memory as values do and are viewed through a transpose, so that a token's key is written, and a tile of keys read, in
whole cache lines. Strides tell the two apart, so one reference and one Triton kernel take both.

8-bit caches have scales. float8 has a fixed one per head, ``[kv_heads]``. int8 has one per token and head, ``[blocks,
kv_heads, block_size]``, which is written with its codes.
"""

import torch
from torch import Tensor

from ..guards import FLOATS, check_float32, describe

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
INT8 = torch.int8
INT8_MAX = 127.0

BLOCK_MULTIPLE = 16
"""Block sizes are multiples of this: the keys that one vector of scores spans."""


def kv_cache_shape(
    num_blocks: int, num_kv_heads: int, head_dim: int, block_size: int
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Returns the shapes of the key and the value cache of one layer, as every operation sees them.

    Raises:
        ValueError: ``block_size`` is not a positive multiple of 16.
    """
    if block_size <= 0 or block_size % BLOCK_MULTIPLE:
        raise ValueError(
            f"kv_cache_shape: block_size must be a positive multiple of {BLOCK_MULTIPLE}, not {block_size}"
        )
    return (num_blocks, num_kv_heads, head_dim, block_size), (num_blocks, num_kv_heads, block_size, head_dim)


def kv_scale_shape(num_blocks: int, num_kv_heads: int, block_size: int) -> tuple[int, int, int]:
    """Returns the shape of the float32 scales of int8 keys, which is also that of int8 values."""
    return num_blocks, num_kv_heads, block_size


def make_kv_cache(
    num_blocks: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    keys_transposed: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the zeroed key and value cache of one layer, of the shapes of :func:`kv_cache_shape`.

    Args:
        dtype: that of the model, or float8_e4m3fn or int8 (then every operation on the caches takes scales).
        device: decides the layout of the keys.
        keys_transposed: whether keys lie in memory as ``[blocks, kv_heads, head_dim, block_size]``; None takes the
            device's own layout: True on the CPU, False elsewhere.

    Raises:
        ValueError: a dtype that caches do not have, or ``block_size`` is not a positive multiple of 16.
    """
    if dtype not in (*FLOATS, FP8, INT8):
        raise ValueError(f"make_kv_cache: expected float32, bfloat16, float16, float8_e4m3fn or int8, not {dtype}")
    k_shape, v_shape = kv_cache_shape(num_blocks, num_kv_heads, head_dim, block_size)
    if keys_transposed is None:
        keys_transposed = torch.device(device).type == "cpu"
    k_cache = torch.zeros(k_shape if keys_transposed else v_shape, dtype=dtype, device=device)
    v_cache = torch.zeros(v_shape, dtype=dtype, device=device)
    return (k_cache if keys_transposed else k_cache.transpose(2, 3)), v_cache


def check_caches(k_cache: Tensor, v_cache: Tensor, operation: str) -> tuple[int, int, int, int]:
    """Returns (blocks, kv heads, head dim, block size) of caches in either layout.

    Raises ValueError if the pair does not have this layout, or is not of a float dtype, float8_e4m3fn or int8.
    """
    fits = k_cache.dim() == 4 and k_cache.dtype == v_cache.dtype and k_cache.dtype in (*FLOATS, FP8, INT8)
    if fits and v_cache.is_contiguous() and (k_cache.is_contiguous() or k_cache.transpose(2, 3).is_contiguous()):
        blocks, heads, dim, size = k_cache.shape
        if v_cache.shape == (blocks, heads, size, dim) and size % BLOCK_MULTIPLE == 0:
            return blocks, heads, dim, size
    raise ValueError(
        f"{operation}: caches {describe(k_cache)} and {describe(v_cache)} must be of one dtype, a float, "
        "float8_e4m3fn or int8, [blocks, heads, dim, size] and [blocks, heads, size, dim] with size a multiple of 16, "
        "contiguous (keys either as shaped or as their transpose)"
    )


def check_scales(k_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None, operation: str) -> None:
    """Raises ValueError unless float8 caches come with a float32 scale for each kv head, int8 ones with one for each
    token and kv head, and others with none."""
    blocks, heads, _, size = k_cache.shape
    expected = {FP8: (heads,), INT8: kv_scale_shape(blocks, heads, size)}.get(k_cache.dtype, ())
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (scale is None) == bool(expected):
            raise ValueError(
                f"{operation}: float8 and int8 caches need k_scale and v_scale, others take none: "
                f"the caches are {describe(k_cache)}, {name} is {'None' if scale is None else describe(scale)}"
            )
        if scale is not None:
            check_float32(operation, name, scale, expected)


def read_scaled(codes: Tensor, scale: Tensor) -> Tensor:
    """Returns the float32 values of ``codes`` [kv_heads, tokens, dim], with a scale per head [kv_heads], or per token
    and head [kv_heads, tokens]."""
    return codes.float() * (scale.unsqueeze(-1) if scale.dim() == 2 else scale.view(-1, 1, 1))


def native_cache_unsupported_reason(k_cache: Tensor, dtype: torch.dtype) -> str | None:
    """Returns why native operations on rows of ``dtype`` cannot take the caches; None if they can."""
    if k_cache.dtype not in (dtype, INT8, FP8):
        return f"it takes caches of the rows' dtype, int8 or float8_e4m3fn, not {describe(k_cache)}"
    if not k_cache.is_contiguous():
        return "it takes keys that are contiguous as [blocks, heads, dim, size]; these are transposed"
    return None


def triton_cache_unsupported_reason(k_cache: Tensor) -> str | None:
    """Returns why Triton operations cannot take the caches; None if they can."""
    return "it takes no int8 caches; float8 ones have as many bytes" if k_cache.dtype == INT8 else None
