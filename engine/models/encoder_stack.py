"""The layers of an audio encoder, computed in pieces between which other models get the device."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch
from msgspec.structs import replace

from ..layers.attention.attention import Attention
from ..layers.forward_batch import ForwardBatch
from ..layers.layer import Layer
from ..layers.linear.adapters import AdapterRows
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.weights import WeightMap
from ..layers.norm import added_, make_norm
from ..layers.rotary import RotaryTables
from ..layers.varlen_batch import VarlenBatch
from ..model_config.spec.model import Backbone

Windows = Sequence[bytes | memoryview]
"""Signed 16-bit little-endian samples at 16 kHz of each window of audio."""

_VALUES_A_PIECE = 1 << 30
"""Multiply-adds for which other models may wait on a CPU: about 5 ms of two cores."""
_LEAST_PIECE = 64
"""Rows; fewer take as long."""


class EncodedWindows(msgspec.Struct, frozen=True):
    """Windows of audio as a decoder attends to them."""

    rows: torch.Tensor
    """[positions of all windows, hidden]"""
    lengths: Sequence[int]
    """Positions of each window."""


class AudioEncoder(Protocol):
    """Encodes windows of audio."""

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        """Encode windows of samples; an empty one is a full window of silence.

        ``adapters``: the adapter slot of each window, negative for none. ``after_layer``: called between parts of the
        work, which are short for one window on a CPU.
        """


def go_on() -> None:
    """Used where no other model shares the device."""


def embed_windows(
    windows: Windows, embed: Callable[[bytes | memoryview], torch.Tensor], after_window: Callable[[], None] | None
) -> EncodedWindows:
    """The positions [positions, hidden] that ``embed`` makes of each window alone; ``after_window``: called behind
    each."""
    pause, found = after_window or go_on, []
    for window in windows:
        found.append(embed(window))
        pause()
    return EncodedWindows(torch.cat(found), [len(each) for each in found])


def adapted_rows(adapters: Sequence[int], lengths: Sequence[int], context: LayerContext) -> AdapterRows | None:
    """The adapters of the rows of windows of these lengths; None if there are none."""
    if max(adapters, default=-1) < 0:
        return None
    assert context.adapters is not None
    return AdapterRows.of(adapters, lengths, context.device, context.adapters.slots)


class _EncoderLayer(Layer):
    """An encoder layer computed in pieces of rows, between which others may use the device."""

    def in_pieces(
        self,
        residual: torch.Tensor,
        batch: ForwardBatch,
        piece: int,
        after_piece: Callable[[], None],
        adapted: Callable[[int], AdapterRows | None],
    ) -> None:
        """Add the layer to ``residual`` [positions of all windows, hidden], in place.

        Args:
            piece: most rows between calls of ``after_piece``; one window may have smaller pieces if its attention does
                not depend on positions.
            after_piece: called between pieces.
            adapted: the adapters for a number of rows.
        """
        rows, texts, mixer, network = len(residual), batch.texts, self._mixer, self._network
        assert texts is not None
        assert mixer is not None
        assert network is not None
        attention = mixer.part
        assert isinstance(attention, Attention)
        parts = [residual[first : first + piece] for first in range(0, rows, piece)]
        made = []
        for part in parts:
            x, _ = mixer.input(None, part)
            assert isinstance(x, torch.Tensor)
            made.append(attention.into(x, adapted(len(part))))
            after_piece()
        q, k, v = (made[0] if len(parts) == 1 else torch.cat(made)).chunk(3, dim=1)
        for part, queries in zip(parts, q.split(piece), strict=True):
            if len(parts) > 1:
                starts = texts.cu_seqlens.new_tensor([0, len(part)])
                batch = replace(batch, texts=replace(texts, query_starts=starts))
            own = adapted(len(part))
            attended = attention.attend(queries, k, v, batch)
            after_piece()
            x, _ = network.input(attention.out(attended, own), part)
            added_(part, network.part(x, replace(batch, adapter_rows=own)))
            after_piece()


class EncoderStack:
    """Layers over whole windows, and the norm behind them."""

    def __init__(self, weights: WeightMap, model: Backbone, norm: str, context: LayerContext) -> None:
        """``norm``: stored name of the last norm, of the kind of the layers'."""
        rotary = RotaryTables(model.max_position, model.max_position, context)
        self._layers = [_EncoderLayer(weights, layer, model, rotary, context) for layer in range(len(model.layers))]
        self._norm = make_norm(weights, norm, model.layers[0].norms, model, context)
        self._context = context
        layer = model.layers[0]
        self._positioned = any(each.attention.rope is not None or each.attention.window for each in model.layers)
        a_row = layer.products(model.hidden_size) + 2 * model.hidden_size * model.max_position
        self._piece = max(_LEAST_PIECE, _VALUES_A_PIECE // a_row)

    def __call__(
        self,
        residual: torch.Tensor,
        lengths: Sequence[int],
        after_layer: Callable[[], None] | None,
        adapters: Sequence[int],
    ) -> EncodedWindows:
        """Encode ``residual`` [positions of all windows, hidden], which is changed. See :class:`AudioEncoder`."""
        pause, whole = after_layer or go_on, len(residual)
        pieces = after_layer is not None and len(lengths) == 1 and self._context.packed and not self._positioned
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        batch = ForwardBatch.whole(
            torch.empty(0, dtype=torch.int64, device=residual.device), VarlenBatch(starts, max(lengths))
        )

        def adapted(count: int) -> AdapterRows | None:
            return adapted_rows(adapters, lengths if count == whole else [count], self._context)

        for layer in self._layers:
            layer.in_pieces(residual, batch, self._piece if pieces else whole, pause, adapted)
        return EncodedWindows(self._norm.plain(residual), lengths)

    def one_by_one(
        self,
        windows: Windows,
        embed: Callable[[bytes | memoryview], torch.Tensor],
        after_layer: Callable[[], None] | None,
        adapters: Sequence[int],
    ) -> EncodedWindows:
        """Encode the positions [positions, hidden] that ``embed`` makes of each window alone."""
        embedded = embed_windows(windows, embed, after_layer)
        return self(embedded.rows, embedded.lengths, after_layer, adapters)
