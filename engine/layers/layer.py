"""One layer of a decoder, as its :class:`..model_config.model_spec.LayerSpec` says."""

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.model_spec import MLPSpec, ModelSpec
from .attention import Attention
from .forward_batch import ForwardBatch
from .layer_context import LayerContext
from .linear import Linear
from .norm import RMSNorm, added_
from .quantized import Input, Stream
from .rotary import RotaryTables
from .weights import WeightMap


class MLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MLPSpec, hidden: int, context: LayerContext) -> None:
        into, out = spec.projections(hidden)
        self._gate_up = Linear.of(weights, prefix, into, context)
        self._down = Linear.of(weights, prefix, out, context)
        self._activation = spec.activation

    @property
    def input_projection(self) -> Linear:
        """Where the input goes first."""
        return self._gate_up

    def __call__(self, x: Input) -> Stream:
        """x [tokens, hidden], plain or quantised → [tokens, hidden]"""
        return self._down(self._gated(self._gate_up(x)))

    def _gated(self, gate_up: Stream) -> Input:
        """As the last product takes it."""
        if isinstance(gate_up, Traced):
            return gate_up.gated(self._activation)
        if (scheme := self._down.input_scheme) is None:
            return kernels.gated_activation(gate_up, self._activation)
        return kernels.gated_activation_quantized(gate_up, self._activation, scheme, self._down.input_scale)


class Layer:
    """A mixer and a feed-forward network, each between the norms that it has, and a residual stream past both."""

    def __init__(
        self, weights: WeightMap, layer: int, model: ModelSpec, rotary: RotaryTables, context: LayerContext
    ) -> None:
        prefix, spec = f"model.layers.{layer}", model.layers[layer]
        self._mixer = Attention(weights, layer, model, rotary, context)
        self._mlp = MLP(weights, prefix, spec.mlp, model.hidden_size, context)
        self._scale = model.residual_scale

        def norm(name: str, before: Linear | None = None) -> RMSNorm | None:
            if not name:
                return None
            return RMSNorm(
                weights,
                f"{prefix}.{name}",
                model.hidden_size,
                model.norm_eps,
                context,
                plus_one=model.norm_plus_one,
                before=before,
            )

        self._mixer_in = norm(spec.norms.mixer_in, self._mixer.input_projection)
        self._mixer_out = norm(spec.norms.mixer_out)
        self._mlp_in = norm(spec.norms.mlp_in, self._mlp.input_projection)
        self._mlp_out = norm(spec.norms.mlp_out)

    def __call__(self, delta: Stream | None, residual: Stream, batch: ForwardBatch) -> Stream:
        """``delta`` [tokens, hidden] of the layer before is added to the stream ``residual`` first, in place. Returns
        this layer's, not yet added."""
        mixed = self._mixer(_joined(delta, residual, self._mixer_in), batch)
        x = self._mlp(_joined(self._scaled(mixed, self._mixer_out), residual, self._mlp_in))
        return self._scaled(x, self._mlp_out)

    def _scaled(self, delta: Stream, norm: RMSNorm | None) -> Stream:
        if norm is not None:
            delta = norm.plain(delta)
        return delta if self._scale == 1.0 else delta * self._scale


def _joined(delta: Stream | None, residual: Stream, norm: RMSNorm | None) -> Input:
    """Adds ``delta`` to the stream in place, and gives the next part its input."""
    if norm is None:
        return residual if delta is None else added_(residual, delta)
    return norm(residual) if delta is None else norm.add(delta, residual)
