"""A product of a layer, as a checkpoint stores it. Torch-free."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Projection:
    """One product of a layer: stored matrices of one input, fused along their outputs."""

    parts: tuple[tuple[str, int], ...]
    """Name within the layer, and outputs, of each."""
    inputs: int
    bias: bool
    unbiased: tuple[str, ...] = ()
    """Parts that have none where the others have one."""
    transposed: bool = False
    """Matrices are stored as [inputs, outputs] (GPT-2)."""

    @property
    def elements(self) -> int:
        """Of all its matrices."""
        return self.inputs * sum(outputs for _, outputs in self.parts)

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored, biases first."""
        if self.bias:
            yield from ((f"{prefix}.{name}.bias", (size,)) for name, size in self.parts if name not in self.unbiased)
        for name, outputs in self.parts:
            yield f"{prefix}.{name}.weight", (self.inputs, outputs) if self.transposed else (outputs, self.inputs)
