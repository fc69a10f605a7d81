"""A decoder's pass as two programs for a CPU: from tokens to hidden states, and from some of those to logits."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stentor.kernels import AttentionBatch
from stentor.kernels.forward import Forward, Program, Step

from ..layers.attention import LayerCache


class Programs:
    """Both programs, bound to the caches that they write."""

    def __init__(
        self,
        body: Program,
        head: Program,
        residual: int,
        hidden: int,
        logits: int,
        caches: Sequence[LayerCache],
    ) -> None:
        """``residual`` is the buffer of ``body`` that ends as hidden states, ``hidden`` the one of ``head`` that
        begins as some of them, ``logits`` what that leads to."""
        self._caches = tuple(caches)
        self._body = Forward(body, [(cache.k, cache.v) for cache in caches])
        self._head = Forward(head)
        self._residual, self._hidden, self._logits = residual, hidden, logits

    def over(self, caches: Sequence[LayerCache]) -> bool:
        """Whether these are the caches that the programs write."""
        return len(caches) == len(self._caches) and all(
            mine.k is theirs.k and mine.v is theirs.v for mine, theirs in zip(self._caches, caches, strict=True)
        )

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """int64 [tokens] → float32 [tokens, hidden], good until the next call."""
        self._body.run(len(tokens), tokens, positions, batch)
        return self._body.buffer(self._residual, len(tokens))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float [rows, hidden] → float32 [rows, vocabulary], good until the next call."""
        self._head.buffer(self._hidden, len(hidden)).copy_(hidden)
        self._head.run(len(hidden))
        return self._head.buffer(self._logits, len(hidden))

    def step_over(self, tokens: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32], block_size: int) -> Step:
        """A whole step over these tables as one call; see :class:`stentor.kernels.forward.Step`."""
        return Step(
            self._body,
            self._residual,
            self._head,
            self._hidden,
            self._logits,
            tokens=tokens,
            blocks=blocks,
            block_size=block_size,
        )

    def last_hidden(self, tokens: int) -> torch.Tensor:
        """float32 [tokens, hidden] of the last step, which was run for ``every`` token; good until the next."""
        return self._body.buffer(self._residual, tokens)
