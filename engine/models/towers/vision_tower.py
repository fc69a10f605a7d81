"""Vision towers on our own layers: SigLIP's (arXiv:2303.15343), CLIP's (arXiv:2103.00020), Pixtral's (arXiv:2410.07073)
and Qwen-VL's (arXiv:2409.12191, arXiv:2502.13923).

They differ in their :class:`...model_config.towers.vision_spec.VisionSpec`, not in code. Pictures of several sizes
run in one pass, concatenated without padding, with attention within each.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import torch
from msgspec.structs import replace

from stentor import kernels

from ...layers.forward_batch import ForwardBatch
from ...layers.layer import Layer
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.quantized import Delta, Input, Stream
from ...layers.linear.weights import WeightMap
from ...layers.norm import joined, make_norm
from ...layers.rotary import RotaryTables
from ...model_config.config_fields import ConfigError
from ...model_config.towers.vision_hf import vision_spec_from_hf
from ...model_config.towers.vision_spec import VisionSpec
from .payload import Encoded, Payload
from .tower import Tower, sequences
from .vision_abstractor import Abstractor
from .vision_grids import Grid, Layout, axial_rotation, layout, learned
from .vision_names import tower_tensors
from .vision_patches import Patches, read_patches
from .vision_projector import Projector
from .vision_resampler import Resampler
from .vision_tiles import gridded, lined, overlapped, pooled, put_together

_PASS: Final = 2048
"""A pass with this many patches takes no further picture: more would exceed the processor's caches."""


class VisionTower(Tower):
    """Encodes a processor's pictures or videos to embeddings."""

    def __init__(self, spec: VisionSpec, context: LayerContext) -> None:
        super().__init__(spec, context)
        self.spec = spec
        weights, context = self.weights, self._context
        plain = replace(context, quantized=None)
        hidden = spec.hidden_size
        self._patches = Linear(
            weights,
            {spec.patch_name: hidden},
            spec.patch_values,
            plain,
            bias=spec.patch_bias,
            dtype=context.stream,
        )
        self._positions = self._table(spec.position_name, spec.max_position) if spec.positions != "none" else None
        self._class = context.empty(hidden, dtype=context.stream) if spec.class_token else None
        if self._class is not None:
            weights.add(f"{spec.class_name}.weight", self._class)
        self._registers = self._table(spec.register_name, spec.registers) if spec.registers else None
        self._first_norm = self._norm(spec.first_norm) if spec.first_norm else None
        rotary = RotaryTables(1, 1, context)
        self._layers = [Layer(weights, layer, spec, rotary, context) for layer in range(len(spec.layers))]
        self._final_norm = self._norm(spec.final_norm) if spec.final_norm else None
        self._head = ProbeHead(weights, spec, context) if spec.pool == "probe" else None
        self._resampler = None if spec.resampler is None else Resampler(weights, spec.resampler, hidden, context)
        self._abstractor = None if spec.abstractor is None else Abstractor(weights, spec.abstractor, hidden, context)
        self._projector = Projector(weights, spec.projector, spec.taken_size, spec.joined_side, context)
        names = spec.tiles.marks if spec.tiles is not None else ()
        self._ends = [context.empty(spec.mark_size, dtype=context.stream) for _ in names]
        for name, mark in zip(names, self._ends, strict=True):
            weights.add(f"{name}.weight", mark)
        self._padding = context.empty(2, spec.taken_size, dtype=context.stream) if spec.padding else None
        if self._padding is not None:
            weights.add(f"{spec.padding}.weight", self._padding)
        rows = spec.mark_rows if spec.marks else 0
        self._marks = context.empty(rows, spec.embedding_size, dtype=context.stream) if rows else None
        if self._marks is not None:
            weights.add(f"{spec.marks}.weight", self._marks)
        self._lines = [context.empty(spec.embedding_size, dtype=context.stream) for _ in spec.lines]
        for name, line in zip(spec.lines, self._lines, strict=True):
            weights.add(f"{name}.weight", line)
        self._words = context.empty(len(spec.words), spec.embedding_size, dtype=context.stream) if spec.words else None
        if self._words is not None and not spec.word_names:
            weights.add("words.weight", self._words)
        for number, name in enumerate(spec.word_names):
            assert self._words is not None
            weights.add(f"{name}.weight", self._words[number])
        self._deepstack = [
            Projector(weights, projector, hidden, spec.merge, context, f"deepstack.{number}.")
            for number, projector in enumerate([spec.deepstack_projector] * len(spec.deepstack))
            if projector is not None
        ]
        self._last: Projector | None = None
        if spec.last is not None:
            self._last = Projector(weights, spec.last, spec.projector.products[-1].outputs, 1, context)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.spec.shapes()

    def words(self) -> dict[int, torch.Tensor]:
        return {} if self._words is None else dict(zip(self.spec.words, self._scaled(self._words), strict=True))

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.weights.load(tower_tensors(self.spec, tensors))

    @torch.inference_mode()
    def encode(self, payload: Payload) -> Encoded:
        if payload.modality not in self.spec.modalities:
            raise ValueError(f"the model has no encoder for {payload.modality}s")
        patches = read_patches(self.spec, payload.tensors)
        found = [self._pass(some) for some in _passes(patches)]
        if not found:
            return Encoded(self._context.empty(0, self.spec.embedding_size, dtype=self._context.stream))
        behind = {layer: torch.cat([each.behind[layer] for each in found]) for layer in found[0].behind}
        return Encoded(self._put_together(payload, torch.cat([each.embeddings for each in found])), behind)

    def _put_together(self, payload: Payload, embeddings: torch.Tensor) -> torch.Tensor:
        if self._marks is not None and self.spec.gridded:
            return gridded(payload.tensors, embeddings, self._marks)
        if self._marks is not None:
            first = 2 * (payload.modality == "video")
            return torch.cat((self._marks[first : first + 1], embeddings, self._marks[first + 1 : first + 2]))
        if self._lines:
            return lined(payload.tensors, embeddings, self.spec.filled_up, self._lines)
        if (tiles := self.spec.tiles) is None:
            return embeddings
        if tiles.overlap != (0, 0):
            return overlapped(tiles, payload.tensors, embeddings)
        ends = torch.stack(self._ends)
        ends = self._projector.of_joined(ends.to(self._context.dtype)) if tiles.joined else ends
        if payload.modality == "video":
            return pooled(embeddings, payload.tensors["pixel_values_videos"].flatten(0, -4).shape[0], ends[0])
        return put_together(tiles, payload.tensors, embeddings, ends)

    def _pass(self, patches: Patches) -> Encoded:
        spec, device = self.spec, self._context.device
        layouts = [layout(grid, spec.merge, spec.window) for grid in patches.grids]
        order = _order([each.order for each in layouts])
        values = patches.values.to(device, self._context.dtype)
        if order is not None:
            values = values.view(len(order), -1)[order.to(device)].view(values.shape)
        x = self._patches(values)
        if self._first_norm is not None and spec.positions_last:
            x = self._first_norm.plain(x)
        if self._positions is not None:
            x += self._positions_of(patches, self._positions)
        if self._class is not None:
            x = self._with_class_tokens(x, self._class, len(layouts))
        if self._registers is not None:
            x = _behind(self._registers, x, len(layouts))
        if self._first_norm is not None and not spec.positions_last:
            x = self._first_norm.plain(x)
        whole, near = self._batches(patches, layouts)
        back = None if order is None else torch.argsort(order).to(device)
        behind: dict[int, torch.Tensor] = {}
        taken: dict[int, torch.Tensor] = {}
        summed: list[torch.Tensor] = []
        delta: Delta | None = None
        residual: Stream = x
        for number, layer in enumerate(self._layers):
            batch = near if near is not None and number not in spec.whole_layers else whole
            delta, residual = layer(delta, residual, batch)
            if number in spec.deepstack or number + 1 in spec.taken:
                stream = joined(delta, residual, None)
                assert isinstance(stream, torch.Tensor)
                residual, delta = stream, None
                if number in spec.deepstack and self._last is not None:
                    assert self._final_norm is not None
                    projector = self._deepstack[spec.deepstack.index(number)]
                    summed.append(self._embeddings(projector, self._final_norm.plain(residual), back, patches))
                elif number in spec.deepstack:
                    behind[len(behind)] = self._embeddings(self._deepstack[len(behind)], residual, back, patches)
                if number + 1 in spec.taken:
                    taken[number + 1] = residual.clone()  # layers add to the stream in place
        if taken:
            beside = torch.cat([taken[number] for number in spec.taken], dim=1)
            return Encoded(self._embeddings(self._projector, beside, back, patches), behind)
        hidden = joined(delta, residual, self._final_norm)
        if self._head is not None:
            assert isinstance(hidden, torch.Tensor)
            assert whole.texts is not None
            hidden = self._head(hidden, whole.texts.cu_seqlens, whole.texts.varlen.max_seqlen)
        if self._resampler is not None:
            assert isinstance(hidden, torch.Tensor)
            assert whole.texts is not None
            rows, columns = (
                torch.cat(each).to(device) for each in zip(*((at.rows, at.columns) for at in layouts), strict=True)
            )
            hidden = self._resampler(hidden, rows, columns, whole.texts.cu_seqlens, whole.texts.varlen.max_seqlen)
        if self._abstractor is not None:
            assert isinstance(hidden, torch.Tensor)
            hidden = self._abstractor(hidden, patches.grids)
        embeddings = self._embeddings(self._projector, hidden, back, patches)
        if self._last is not None:
            embeddings = self._last(sum(summed, embeddings))
        return Encoded(embeddings, behind)

    def _with_class_tokens(self, x: torch.Tensor, token: torch.Tensor, pictures: int) -> torch.Tensor:
        """Put the class token before the patches of each picture; all have one size."""
        assert self._positions is not None
        return _behind((token + self._positions[0])[None], x, pictures)

    def _embeddings(
        self, projector: Projector, hidden: Input, back: torch.Tensor | None, patches: Patches
    ) -> torch.Tensor:
        assert isinstance(hidden, torch.Tensor)
        if self._class is not None:
            side = self.spec.side
            pictures = hidden.view(-1, 1 + side * side, hidden.shape[1])
            hidden = pictures[:, 0].contiguous() if self.spec.pool == "class" else pictures[:, 1:].flatten(0, 1)
        if (count := self.spec.registers) > 0:
            hidden = hidden.view(-1, count + self.spec.side**2, hidden.shape[1])[:, count:].flatten(0, 1)
        if self._padding is not None and patches.share is not None:
            share = patches.share.to(hidden.device)[:, None]
            none, some = self._padding.to(hidden.dtype)
            shown: torch.Tensor = hidden + (share == 0) * none + ((share < 1) & (share != 0)) * some
            hidden = shown
        if (side := self.spec.filled_up) > 1:
            hidden = _squares(hidden, patches.grids, side)
        made = self._scaled(projector(hidden))
        return made if back is None else made[back]

    def _scaled(self, embeddings: torch.Tensor) -> torch.Tensor:
        scale = self.spec.out_scale
        return embeddings if scale == 1.0 else embeddings * scale

    def _positions_of(self, patches: Patches, table: torch.Tensor) -> torch.Tensor:
        """Position embeddings of the patches, [patches, hidden]."""
        spec = self.spec
        sizes = zip(patches.grids, patches.filled or patches.grids, strict=True)
        of_patches = table[spec.class_token :]
        side = len(table) // 2 if spec.positions == "axial" else spec.side
        made = [learned(*each, spec.merge, spec.window, side, spec.positions).of(of_patches) for each in sizes]
        return torch.cat(made)

    def _batches(self, patches: Patches, layouts: Sequence[Layout]) -> tuple[ForwardBatch, ForwardBatch | None]:
        """The batches of layers with attention within whole pictures, and of those with windows."""
        spec, device = self.spec, self._context.device
        lengths = [len(each.rows) + spec.class_token + spec.registers for each in layouts]
        positions = torch.arange(sum(lengths), device=device)
        rotation = None
        if spec.rope is not None:
            rows, columns = (
                torch.cat([_turned(each, spec.class_token) for each in places])
                for places in zip(*((each.rows, each.columns) for each in layouts), strict=True)
            )
            head_dim = spec.layers[0].attention.head_dim
            cos, sin = axial_rotation(spec.rope, head_dim, rows.to(device), columns.to(device))
            rotation = cos, sin
        whole = ForwardBatch(positions, positions, texts=sequences(lengths, device, patches.real), rotation=rotation)
        if not spec.window:
            return whole, None
        return whole, replace(whole, texts=sequences([length for each in layouts for length in each.windows], device))


def _turned(places: torch.Tensor, class_token: bool) -> torch.Tensor:
    """Rotary positions of patches: from 1 on behind a class token, which does not rotate."""
    return torch.nn.functional.pad(places + 1, (1, 0)) if class_token else places


def _behind(tokens: torch.Tensor, x: torch.Tensor, pictures: int) -> torch.Tensor:
    """Put ``tokens`` [tokens, hidden] before the patches of each picture; all have one size."""
    before = tokens.expand(pictures, -1, -1)
    return torch.cat((before, x.view(pictures, -1, x.shape[1])), dim=1).flatten(0, 1)


def _squares(x: torch.Tensor, grids: Sequence[Grid], side: int) -> torch.Tensor:
    """x [patches, hidden], row by row → the same in squares of ``side``, with zeros in those that are not whole."""
    made = []
    for (rows, columns), picture in zip(grids, x.split([math.prod(grid) for grid in grids]), strict=True):
        missing = 0, -columns % side, 0, -rows % side
        square = torch.nn.functional.pad(picture.view(rows, columns, -1), (0, 0, *missing))
        cut = square.view(square.shape[0] // side, side, square.shape[1] // side, side, -1)
        made.append(cut.transpose(1, 2).reshape(-1, x.shape[1]))
    return torch.cat(made)


def native_tower(described: Mapping[str, object], hidden: int, context: LayerContext) -> VisionTower | None:
    """The tower of a config.json, for a decoder of this hidden size; None if it is not supported here.

    Raises :class:`ConfigError` if its embeddings are of another size: no class could serve them.
    """
    try:
        spec = vision_spec_from_hf(described, hidden)
    except ConfigError:
        return None
    if spec.embedding_size != hidden:
        raise ConfigError(
            f"vision_config makes embeddings of {spec.embedding_size} numbers, expected hidden_size of the decoder, "
            f"{hidden}"
        )
    return VisionTower(spec, context)


def _passes(patches: Patches) -> Iterator[Patches]:
    """Split whole pictures into passes."""
    first = begin = end = 0
    for number, (height, width) in enumerate(patches.grids):
        end += height * width
        if end - begin >= _PASS or number == len(patches.grids) - 1:
            real = None if patches.real is None else patches.real[begin:end]
            some = slice(first, number + 1)
            filled = None if patches.filled is None else patches.filled[some]
            share = None if patches.share is None else patches.share[begin:end]
            yield Patches(patches.values[begin:end], patches.grids[some], real, filled, share)
            first, begin = number + 1, end


def _order(orders: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The order of the embeddings of all pictures; None if one is row by row."""
    found: list[torch.Tensor] = []
    first = 0
    for each in orders:
        if each is None:
            return None
        found.append(each + first)
        first += len(each)
    return torch.cat(found) if found else None


class ProbeHead:
    """Pools patches by attention from a learned query, followed by a network (SigLIP, arXiv:2303.15343)."""

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
        """x [patches, hidden], starts int32 [pictures + 1] → [pictures, hidden]; ``longest``: most patches of a
        picture."""
        pictures, heads, head_dim = len(starts) - 1, self._attention.heads, self._attention.head_dim
        q = self._query(self._probe.expand(pictures, -1).contiguous()).view(pictures, heads, head_dim)
        k, v = self._keys_values(x).view(-1, 2, heads, head_dim).unbind(1)
        each = torch.arange(pictures + 1, dtype=torch.int32, device=x.device)
        found = kernels.varlen_attention(q, k, v, each, starts, 1, longest, scale=self._attention.scale)
        hidden = self._out(found.view(pictures, -1))
        return hidden + self._down(self._up(self._norm.plain(hidden)))
