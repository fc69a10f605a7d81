"""Types of Triton's interpreter that are computed once; what kernels compute is unchanged.

Each operation that the interpreter runs makes several block types and tensors, and compares types. Each block type
checks its shape and writes its name, and each tensor wraps its shape anew: this took half of the time of the kernel
tests. Here the parts are kept by element type and shape, and a type equals itself without a look at its name. Operands
of one shape, most of them, are not compared size by size, which took a tenth of what was left.

These are private names of Triton, of the version in ``constraints.txt``; ``test_interpreter.py`` notices when they
change.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any


@cache  # once in a process
def keep_types() -> None:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic

    core = tl.core
    make_block, equal = tl.block_type.__init__, tl.dtype.__eq__
    broadcast = TritonSemantic.broadcast_impl_value
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[Any, ...], Any] = {}
    """One object for each shape, whatever its elements are."""

    def wrap(shape: Iterable[int]) -> tuple[Any, Any]:
        """A tensor's ``shape`` and ``numel``."""
        sizes = [tl.constexpr(size) for size in shape]
        count = 1
        for size in sizes:
            count *= size.value
        return core.tuple(sizes), tl.constexpr(count)

    scalar = wrap(())

    def init_block(self: Any, element_ty: Any, shape: Iterable[Any]) -> None:
        key = (element_ty.name, *[getattr(size, "value", size) for size in shape])
        parts = known.get(key)
        if parts is None:
            make_block(self, element_ty, shape)
            shape = shapes.setdefault(key[1:], self.shape)
            known[key] = {"shape": shape, "numel": self.numel, "name": self.name, "wrapped": wrap(self.shape)}
            parts = known[key]
        self.element_ty = element_ty
        vars(self).update(parts)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        self.shape, self.numel = type.wrapped if type.is_block() else scalar

    def is_equal(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    def broadcast_values(self: Any, left: Any, right: Any) -> Any:
        if getattr(left.type, "shape", None) is getattr(right.type, "shape", None):
            return left, right
        return broadcast(self, left, right)

    TritonSemantic.broadcast_impl_value = broadcast_values
    tl.block_type.__init__ = init_block
    tl.tensor.__init__ = init_tensor
    tl.dtype.__eq__ = is_equal
