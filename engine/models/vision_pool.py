"""From the patches of a picture to one vector of all of it."""

import torch

from stentor import kernels

from ..layers.layer_context import LayerContext
from ..layers.linear import Linear
from ..layers.norm import make_norm
from ..layers.weights import WeightMap
from ..model_config.vision_spec import VisionSpec


class ProbeHead:
    """A learned query attends to the patches of each picture, and a network follows (SigLIP, arXiv:2303.15343)."""

    def __init__(self, weights: WeightMap, spec: VisionSpec, context: LayerContext) -> None:
        layer, hidden = spec.layers[0], spec.hidden_size
        self._attention = layer.attention
        name, stream = spec.head_name, context.stream
        self._probe = context.empty(hidden, dtype=stream)
        weights.add(f"{name}.probe.weight", self._probe)
        into = f"{name}.attention"
        self._query = Linear(weights, {f"{into}.q_proj": hidden}, hidden, context, bias=True)
        both = {f"{into}.k_proj": hidden, f"{into}.v_proj": hidden}
        self._keys_values = Linear(weights, both, hidden, context, bias=True)
        self._out = Linear(weights, {f"{into}.out_proj": hidden}, hidden, context, bias=True, dtype=stream)
        self._norm = make_norm(weights, f"{name}.layernorm", layer.norms, spec, context)
        inner, activation = spec.head_network
        self._up = Linear(weights, {f"{name}.mlp.fc1": inner}, hidden, context, bias=True, activation=activation)
        self._down = Linear(weights, {f"{name}.mlp.fc2": hidden}, inner, context, bias=True, dtype=stream)

    def __call__(self, x: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
        """x [patches, hidden] of pictures that begin at ``starts`` (int32 [pictures + 1]), of which none has more than
        ``longest`` → [pictures, hidden]"""
        pictures, heads, head_dim = len(starts) - 1, self._attention.heads, self._attention.head_dim
        q = self._query(self._probe.expand(pictures, -1).contiguous()).view(pictures, heads, head_dim)
        k, v = self._keys_values(x).view(-1, 2, heads, head_dim).unbind(1)
        each = torch.arange(pictures + 1, dtype=torch.int32, device=x.device)
        found = kernels.varlen_attention(q, k, v, each, starts, 1, longest, scale=self._attention.scale)
        hidden = self._out(found.view(pictures, -1))
        return hidden + self._down(self._up(self._norm.plain(hidden)))
