"""The fused steps between a projection and attention: QK-norm, rotary embedding and the write to the KV cache."""

from torch import Tensor

from ..guards import describe, triton_unsupported_reason
from ..kv_cache import check_write, native_cache_unsupported_reason, triton_cache_unsupported_reason, write_kv_
from ..launching.repeated import LaunchCache, Start
from ..norm import rms_norm
from ..rotary import Sections, check_rotary, native_rotary_unsupported_reason, rotary_
from ..variants import Choice, Variant, select_variant
from . import reference
from .reference import HeadTensors

__all__ = ["choose", "rotate_and_write_kv_"]

_STARTS: LaunchCache[Start] = LaunchCache()


def choose(q: Tensor, k_cache: Tensor, variant: Choice = "auto", *, sections: Sections | None = None) -> Variant:
    """Returns the variant that :func:`rotate_and_write_kv_` runs. Raises ValueError if one is asked for that cannot
    run."""
    native = native_rotary_unsupported_reason(q, sections)
    native = native or native_cache_unsupported_reason(k_cache, q.dtype)
    triton = triton_unsupported_reason(q, variant) or triton_cache_unsupported_reason(k_cache)
    return select_variant(variant, triton=triton, native=native)


def rotate_and_write_kv_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    plus_one: bool = False,
    interleaved: bool = False,
    sections: Sections | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Norms and rotates the heads of T tokens and writes their keys and values to the cache.

    The same as ``rms_norm`` of q and k over the head's dims (if there are weights), ``rotary_`` and ``write_kv_``,
    rounded to the dtype of ``q`` after each: in one launch on CUDA, and by these operations on the CPU.

    Args:
        q: [T, Hq, D]; heads and dims contiguous, rows may be strided (a slice of a fused projection).
        k, v: [T, Hkv, D] of the dtype of ``q``, strided likewise.
        cos, sin, positions, interleaved, sections: as for :func:`stentor.kernels.rotary_`.
        k_cache, v_cache, slots, k_scale, v_scale: as for :func:`stentor.kernels.write_kv_`; a token whose slot is
            negative has its query rotated and is not written.
        q_norm, k_norm: [D] of the dtype of ``q``: weights of a norm of each head; None: no norm.
        eps, plus_one: as for :func:`stentor.kernels.rms_norm`.
        variant: forces an implementation.

    Returns:
        The queries [T, Hq, D] to attend with: ``q`` itself, overwritten, or a new tensor. The contents of ``q``, ``k``
        and ``v`` afterwards are unspecified.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: a position or a slot outside its table; the caches are unchanged then. The native variant also
            raises it for negative slots. The Triton variant does not check: its positions and slots must fit.
    """
    optional = (q_norm, k_norm, k_scale, v_scale)
    always = (q, k, v, cos, sin, positions, k_cache, v_cache, slots)
    absent = (q_norm is None, k_norm is None, k_scale is None, v_scale is None)
    tensors = (*always, *optional)
    given: tuple[Tensor, ...] = always
    if False in absent:
        given = (*always, *[each for each in optional if each is not None])
    numbers = (*absent, eps, plus_one, interleaved, sections, variant)
    key, start = _STARTS.find(given, *numbers)
    if start is not None:
        start(*tensors)
        return q
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None and (
            weight.shape != q.shape[2:] or weight.dtype != q.dtype or not weight.is_contiguous()
        ):
            raise ValueError(f"rotate_and_write_kv_: {name} {describe(weight)} does not fit q {describe(q)}")
    chosen = choose(q, k_cache, variant, sections=sections)
    if chosen == "native":  # each operation checks its own arguments
        if q_norm is not None:
            q = rms_norm(q, q_norm, eps, plus_one=plus_one, variant="native")
        if k_norm is not None:
            k = rms_norm(k, k_norm, eps, plus_one=plus_one, variant="native")
        rotary_(q, k, cos, sin, positions, interleaved=interleaved, variant="native")
        write_kv_(k, v, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale, variant="native")
        return q
    check_rotary(q, k, cos, sin, positions, sections, "rotate_and_write_kv_")
    check_write(k, v, k_cache, v_cache, slots, k_scale, v_scale, "rotate_and_write_kv_")
    if chosen == "triton":
        from .triton import prepare_rotate_and_write  # late: heavy

        start = prepare_rotate_and_write(HeadTensors(*tensors), eps, plus_one, interleaved, sections)
        _STARTS.keep(key, start)(*tensors)
        return q
    return reference.rotate_and_write_kv_(HeadTensors(*tensors), eps, plus_one, interleaved, sections)
