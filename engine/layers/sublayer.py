"""One of a layer's two parts, a mixer or a feed-forward network: its norms, its scales and its place in the stream."""

from copy import copy
from typing import Generic, Protocol, TypeVar

from stentor.kernels.forward import Traced
from stentor.kernels.quantize import Quantized

from .added_conv import AddedConv
from .attention.attention import Attention
from .forward_batch import ForwardBatch
from .linear.quantized import Delta, Input, Stream, Unnormed, multiplied
from .mlp import MLP
from .norm import Norm, joined
from .per_layer import scaled_
from .scaled_sum import StreamSum


class _Part(Protocol):
    def __call__(self, x: Input, batch: ForwardBatch) -> Stream: ...


P = TypeVar("P", bound=_Part)


class Sublayer(Generic[P]):
    """``stream = after(stream * stream_scale + conv(out(part(into(stream))) * scale))``.

    The sum is not computed at once: the next norm adds and normalises in one kernel. ``total`` takes the sum's place.
    ``renews``: the stream goes on from the normed input.
    """

    def __init__(
        self,
        part: P,
        into: Norm | None,
        out: Norm | None,
        after: Norm | None,
        *,
        scale: float,
        stream_scale: float,
        renews: bool,
        conv: AddedConv | None = None,
        total: StreamSum | None = None,
    ) -> None:
        self.part = part
        self.into = into
        self.scale = scale
        self._out, self._after, self._total, self._conv = out, after, total, conv
        self._stream_scale, self._renews = stream_scale, renews
        self._late = self._late_part()

    def of(self, part: P, layer: int) -> "Sublayer[P]":
        """The same around another part, over the states of ``layer``."""
        found = copy(self)
        found.part = part
        found._late = found._late_part()
        if self._conv is not None:
            found._conv = self._conv.again(layer)
        return found

    def _late_part(self) -> Attention | MLP | None:
        """The part, if its last product and the sum are one kernel."""
        part: object = self.part
        plain = self.scale == 1.0 and self._out is None and self._total is None and self._conv is None
        return part if plain and isinstance(part, Attention | MLP) and part.out.adds else None

    def input(self, delta: Delta | None, stream: Stream) -> tuple[Input, Stream]:
        """The part's input, and the stream with ``delta`` added."""
        x = joined(delta, stream, self.into)
        if self._renews:
            stream = x = settled(x)
        return x, stream

    def output(self, x: Input, stream: Stream, batch: ForwardBatch) -> tuple[Delta, Stream]:
        """What is to be added to the stream, and the stream to which it is."""
        if self._late is not None:
            delta = self._late(x, batch, late=True)
        else:
            delta = scaled(self.part(x, batch), self.scale, self._out)
        if self._conv is not None:
            delta = self._conv(multiplied(delta), batch)
        if isinstance(x, Unnormed):
            stream = x.stream
        return delta, stream if self._stream_scale == 1.0 else scaled_(stream, self._stream_scale)

    def added(self, delta: Delta, stream: Stream) -> tuple[Delta | None, Stream]:
        """(what is still to be added, stream): nothing, where the sum is normed."""
        if self._total is not None:
            return None, self._total(multiplied(delta), stream)
        return (delta, stream) if self._after is None else (None, summed(delta, stream, self._after))


def settled(x: Input) -> Stream:
    """The input of a part as a stream."""
    assert not isinstance(x, Quantized | Unnormed), "only a norm before one product quantises, or waits"
    return x.settled() if isinstance(x, Traced) else x


def scaled(delta: Stream, scale: float, norm: Norm | None = None) -> Stream:
    """A part's output, normed and scaled."""
    if norm is not None:
        delta = norm.plain(delta)
    return delta if scale == 1.0 else delta * scale


def summed(delta: Delta, stream: Stream, norm: Norm) -> Stream:
    """The stream behind a sum that is normed."""
    return settled(norm.add(delta, stream))
