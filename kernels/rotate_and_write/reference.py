"""q, k = rotary(norm(q)), rotary(norm(k)); cache[slots] = k, v: three operations, each rounding to the dtype of q."""

from torch import Tensor

from ..kv_cache import reference as kv_cache
from ..norm import reference as norm
from ..rotary import reference as rotary


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
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    eps: float,
    plus_one: bool,
    interleaved: bool,
    sections: tuple[int, int, int] | None,
) -> Tensor:
    if q_norm is not None:
        q = norm.rms_norm(q, q_norm, eps, plus_one)
    if k_norm is not None:
        k = norm.rms_norm(k, k_norm, eps, plus_one)
    rotary.rotary_(q, k, cos, sin, positions, interleaved, sections)
    kv_cache.write_kv_(k, v, k_cache, v_cache, slots, k_scale, v_scale)
    return q
