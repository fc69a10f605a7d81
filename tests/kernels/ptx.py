"""The few PTX instructions of inline assembly, executed on numpy arrays of 32-bit registers, bit for bit."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Register = npt.NDArray[np.uint32]


def execute(assembly: str, outputs: int, inputs: Sequence[Register]) -> list[Register]:
    """Runs straight-line ``assembly`` whose operands are ``$0 …``, outputs first, and returns the outputs.

    Outputs start as noise: what is read before it was written shows.
    """
    noise = np.random.default_rng(0).integers(0, 1 << 32, inputs[0].shape, dtype=np.uint32)
    registers = {f"${i}": noise ^ np.uint32(i) for i in range(outputs)}
    registers |= {f"${outputs + i}": value for i, value in enumerate(inputs)}
    for line in assembly.strip().strip("{}").split(";"):
        if not (text := line.strip()):
            continue
        if text.startswith(".reg .b32 "):
            registers |= {name.strip(): noise for name in text.removeprefix(".reg .b32 ").split(",")}
            continue
        name, _, rest = text.partition(" ")
        target, *sources = (operand.strip() for operand in rest.split(","))
        assert target in registers, text
        values = [registers[s] if s in registers else np.full_like(noise, int(s, 0)) for s in sources]
        registers[target] = _INSTRUCTIONS[name](*values)
    return [registers[f"${i}"] for i in range(outputs)]


def operands(assembly: str) -> set[int]:
    """The numbers of the operands that ``assembly`` names."""
    return {int(number) for number in re.findall(r"\$(\d+)", assembly)}


def pairs(values: torch.Tensor) -> Register:
    """Values of 16 bits as registers of two, the first in the low half."""
    return values.contiguous().view(torch.int16).numpy().view(np.uint32)


def halves(register: Register, dtype: torch.dtype) -> torch.Tensor:
    """The reverse of :func:`pairs`."""
    return torch.from_numpy(register.view(np.int16)).view(dtype)


def _lop3(a: Register, b: Register, c: Register, table: Register) -> Register:
    """Bit 4a + 2b + c of the table, for the bits a, b and c of each place."""
    result = np.zeros_like(a)
    for entry in range(8):
        if int(table.flat[0]) >> entry & 1:
            result |= (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
    return result


def _packed(dtype: torch.dtype, compute: Callable[..., torch.Tensor]) -> Callable[..., Register]:
    """An operation on both halves. float64 holds what it computes of so small numbers; it is rounded once."""

    def run(*values: Register) -> Register:
        return pairs(compute(*(halves(value, dtype).double() for value in values)).to(dtype))

    return run


_INSTRUCTIONS: dict[str, Callable[..., Register]] = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "lop3.b32": _lop3,
    "fma.rn.bf16x2": _packed(torch.bfloat16, lambda a, b, c: a * b + c),
    "add.f16x2": _packed(torch.float16, lambda a, b: a + b),
}
