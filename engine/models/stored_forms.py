"""What files store in another form than the one that is multiplied: heads, and gates whose rows alternate with ups."""

from collections.abc import Iterable, Iterator

import torch
from torch.nn.functional import normalize

from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import check_arranged
from ..layers.linear.weights import WeightMap
from ..model_config.spec.mlp import MLPSpec
from ..model_config.spec.model import HEADS, ModelSpec


def arrange_head(weights: WeightMap, config: ModelSpec, context: LayerContext) -> None:
    """Divide the stored head's rows or columns by their lengths, or leave out rows that stand for no token, if the
    model asks for it. Raises :class:`..layers.linear.weights.WeightError` if the head is quantised."""
    unread = config.unsaid if config.padded_head else 0
    if config.head_norm is None and not unread:
        return
    check_arranged("lm_head", context)
    used = config.vocab_size - config.unsaid

    def arrange(head: torch.Tensor) -> torch.Tensor:
        head = head[:used]
        if config.head_norm is None:
            return head
        return normalize(head) if config.head_norm == "rows" else _normed_columns(head)

    weights.arrange(HEADS[0], (used + unread, config.hidden_size), arrange)


def _normed_columns(head: torch.Tensor) -> torch.Tensor:
    """Each column divided by its length, which is never 0."""
    lengths: torch.Tensor = torch.linalg.vector_norm(head, dim=0, dtype=torch.float32)
    return head / (lengths + 1e-7)


def gates_apart(config: ModelSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with gates and ups apart where one matrix has their rows in turn (Inkling)."""
    parts = {
        f".{network.alternating}.weight": tuple(f".{name}.weight" for name in network.into)
        for layer in config.layers
        if isinstance(network := layer.mlp, MLPSpec) and network.alternating
    }
    for name, tensor in tensors:
        ending = next((each for each in parts if name.endswith(each)), None)
        if ending is None:
            yield name, tensor
            continue
        for first, own in enumerate(parts[ending]):
            yield name.removesuffix(ending) + own, tensor[first::2]
