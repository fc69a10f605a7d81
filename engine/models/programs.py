"""A decoder's pass as two CPU programs: from tokens to hidden states, and from some of those to logits."""

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels.forward import Forward, Step, Traced

from ..layers.forward_batch import ForwardBatch, LayerCache


class Body:
    """The program from tokens to hidden states, bound to its caches."""

    def __init__(self, residual: Traced, caches: Sequence[LayerCache]) -> None:
        """``residual``: the recorded hidden states."""
        program = residual.program
        self.residual = program.compact([residual.buffer])[residual.buffer]
        self.forward = Forward(program, [cache.tensors for cache in caches])

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """float32 [tokens, hidden], valid until the next call. Raises ValueError for an unsupported batch."""
        tokens = batch.tokens
        if not isinstance(tokens, torch.Tensor) or batch.added is not None:
            raise ValueError("packed weights embed tokens alone: nothing can be added")
        self.forward.run(
            len(tokens),
            tokens,
            batch.positions,
            batch.attention,
            batch,
            batch.adapter_rows,
            batch.coded,
            batch.coded_experts,
        )
        return self.forward.buffer(self.residual, len(tokens))


class Programs:
    """Both programs, bound to their caches."""

    def __init__(
        self, residual: Traced, hidden: Traced, logits: Traced, caches: Sequence[LayerCache], *, adapts: bool = False
    ) -> None:
        """``residual``: the recorded body's hidden states. ``hidden``, ``logits``: input and output of the recorded
        head. ``adapts``: rows may have adapters."""
        head = logits.program
        self.adapts = adapts
        self._caches = tuple(caches)
        self._body = Body(residual, caches)
        numbers = head.compact([hidden.buffer, logits.buffer])
        self._hidden, self._logits = numbers[hidden.buffer], numbers[logits.buffer]
        self._head = Forward(head)

    @property
    def calls(self) -> list[str]:
        """Operations that a pass calls between native stretches, in words."""
        return self._body.forward.program.calls + self._head.program.calls

    @property
    def expands(self) -> bool:
        """Whether rows may expand coded weights to bfloat16 (:attr:`stentor.kernels.forward.Forward.expands`)."""
        return self._body.forward.expands

    @property
    def tokens_per_row(self) -> float:
        """See :attr:`stentor.kernels.forward.Forward.tokens_per_row`."""
        return self._body.forward.tokens_per_row

    def over(self, caches: Sequence[LayerCache]) -> bool:
        """Whether these are the programs' caches."""
        return len(caches) == len(self._caches) and all(
            mine.group == theirs.group and all(map(operator.is_, mine.tensors, theirs.tensors))
            for mine, theirs in zip(self._caches, caches, strict=True)
        )

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """See :meth:`Body.hidden`."""
        return self._body.hidden(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float [rows, hidden] → float32 [rows, vocabulary], valid until the next call."""
        self._head.buffer(self._hidden, len(hidden)).copy_(hidden)
        self._head.run(len(hidden))
        return self._head.buffer(self._logits, len(hidden))

    def step_over(self, tokens: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32], block_size: int) -> Step | None:
        """A step over these tables as one native call, see :class:`stentor.kernels.forward.Step`; None if the program
        has calls."""
        if self.calls:
            return None
        return Step(
            self._body.forward,
            self._body.residual,
            self._head,
            self._hidden,
            self._logits,
            tokens=tokens,
            blocks=blocks,
            block_size=block_size,
        )

    def last_hidden(self, tokens: int) -> torch.Tensor:
        """float32 [tokens, hidden] of the last step, which was run for ``every`` token; valid until the next."""
        return self._body.forward.buffer(self._body.residual, tokens)
