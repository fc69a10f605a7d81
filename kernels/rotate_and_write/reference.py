"""q, k = rotary(norm(q)), rotary(norm(k)); cache[slots] = k, v: three operations, each rounding to the dtype of q."""

from typing import NamedTuple

from torch import Tensor

from ..kv_cache import reference as kv_cache
from ..norm import reference as norm
from ..rotary import Sections
from ..rotary import reference as rotary


class HeadTensors(NamedTuple):
    """The tensors of :func:`stentor.kernels.rotate_and_write.rotate_and_write_kv_`, in the order of the kernel's
    arguments."""

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    positions: Tensor
    k_cache: Tensor
    v_cache: Tensor
    slots: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None


def rotate_and_write_kv_(
    of: HeadTensors, eps: float, plus_one: bool, interleaved: bool, sections: Sections | None
) -> Tensor:
    q, k = of.q, of.k
    if of.q_norm is not None:
        q = norm.rms_norm(q, of.q_norm, eps, plus_one)
    if of.k_norm is not None:
        k = norm.rms_norm(k, of.k_norm, eps, plus_one)
    rotary.rotary_(q, k, of.cos, of.sin, of.positions, interleaved, sections)
    kv_cache.write_kv_(k, of.v, of.k_cache, of.v_cache, of.slots, of.k_scale, of.v_scale)
    return q
