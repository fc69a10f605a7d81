"""Describes a layer's product as stored in a checkpoint. Torch-free."""

from collections.abc import Iterator

import msgspec


class Projection(msgspec.Struct, frozen=True):
    """One product of a layer: stored matrices with one input, fused along the outputs."""

    parts: tuple[tuple[str, int], ...]
    """(name within the layer, outputs) of each."""
    inputs: int
    bias: bool
    unbiased: tuple[str, ...] = ()
    """Parts without a bias if the others have one."""
    transposed: bool = False
    """Whether matrices are stored as [inputs, outputs] (GPT-2)."""
    sources: tuple[int, ...] = ()
    """Which of several inputs side by side, of ``inputs`` numbers each, each part takes (Inkling 2); empty: there is
    one."""

    @property
    def elements(self) -> int:
        """Elements of all its matrices."""
        return self.inputs * sum(outputs for _, outputs in self.parts)

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, biases first."""
        if self.bias:
            yield from ((f"{prefix}.{name}.bias", (size,)) for name, size in self.parts if name not in self.unbiased)
        for name, outputs in self.parts:
            yield f"{prefix}.{name}.weight", (self.inputs, outputs) if self.transposed else (outputs, self.inputs)
