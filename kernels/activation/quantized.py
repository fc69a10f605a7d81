"""act(gate) · up, quantised in the same kernel."""

from torch import Tensor

from ..launching.repeated import LaunchCache, Start
from ..quantize import quantize
from ..quantize.fused import check_fused, empty_quantized, fused_unsupported_reason, unfused
from ..quantize.scheme import ActivationScheme, Quantized
from ..variants import Choice, Variant, select_variant
from .gated import ActivationKind, check_gate_up, gated_activation

_STARTS: LaunchCache[Start] = LaunchCache()
MAX_WIDTH = 32768
"""The longest row that the Triton kernel can scale by token."""


def choose_quantized(gate_up: Tensor, scheme: ActivationScheme, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`gated_activation_quantized` runs. Raises ValueError if a named one cannot run."""
    unsupported_reason = fused_unsupported_reason(gate_up, scheme, variant)
    width = gate_up.shape[1] // 2
    if unsupported_reason is None and scheme.granularity == "token" and width > MAX_WIDTH:
        unsupported_reason = f"it scales rows of up to {MAX_WIDTH}, not {width}"
    return select_variant(variant, triton=unsupported_reason)


def gated_activation_quantized(
    gate_up: Tensor,
    kind: ActivationKind,
    scheme: ActivationScheme,
    scale: Tensor | None = None,
    *,
    variant: Choice = "auto",
) -> Quantized:
    """Quantises the result of :func:`gated_activation`.

    Args:
        gate_up, kind: as for :func:`gated_activation`.
        scheme: dtype and granularity of the result.
        scale: float32 [1] for granularity ``tensor``; the others compute their own.
        variant: forces an implementation. Cases without a fused kernel are activated first and then quantised.

    Returns:
        New values [T, I] and their scales. The variants' values are within one step of each other.

    Raises:
        ValueError: an unknown kind, a width, dtype, stride or scale that does not fit.
    """
    given, numbers = (gate_up,) if scale is None else (gate_up, scale), (kind, scheme, variant)
    key, start = _STARTS.find(given, *numbers)
    if start is not None:
        out = empty_quantized(gate_up.shape[0], gate_up.shape[1] // 2, scheme, scale, gate_up)
        start(gate_up, *out)
        return out
    check_gate_up("gated_activation_quantized", gate_up, kind)
    check_fused("gated_activation_quantized", gate_up, scheme, scale)
    if choose_quantized(gate_up, scheme, variant) == "reference":
        activated = gated_activation(gate_up, kind, variant=unfused(variant))
        return quantize(activated, scheme, scale, variant=unfused(variant))
    from .triton import prepare_gated_activation  # late: heavy

    out = empty_quantized(gate_up.shape[0], gate_up.shape[1] // 2, scheme, scale, gate_up)
    start = prepare_gated_activation(gate_up, kind, out.values, scheme, out.scales)
    _STARTS.keep(key, start)(gate_up, *out)
    return out
