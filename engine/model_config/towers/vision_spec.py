"""Describes a vision tower and its projector as values. Torch-free.

Towers are bidirectional encoders over patches of pictures, with the layers of other encoders. Values describe the rest:
how patches are cut, their positions, attention windows, and how neighbours are joined to embeddings. Layers behind the
one whose output is used are left out.
"""

import math
from collections.abc import Iterator
from typing import Final, Literal, get_args

import msgspec

from ..config_fields import ConfigError
from ..spec.layer import NormKind
from ..spec.model import Backbone, dense_mlp

PatchSource = Literal["pixels", "sized", "patches", "rows", "shaped"]
"""Form of the input. ``pixels``: rectangles of pixels. ``sized``: the same, with the size of each picture (Pixtral).
``patches``: patches with a grid (Qwen2-VL). ``rows``: the same, row by row (Kimi-VL). ``shaped``: patches row by row,
padded to one number for all pictures, with rows and columns (SigLIP 2), or the column and row of each (Gemma 4)."""
PositionKind = Literal["none", "exact", "buckets", "bilinear", "centred", "antialiased", "sampled", "axial"]
"""How a patch's position embedding is found in a learned square. ``exact``: the picture has the square's size.
``buckets``: by relative height and width (Idefics3). ``bilinear``: the square is interpolated to the picture, corners
aligned (Qwen3-VL). ``centred``: the same with the centres of patches aligned (PaddleOCR-VL). ``antialiased``: it is
resized by an antialiased bilinear filter (SigLIP 2). ``sampled``: by a bicubic filter of fixed width (GLM-4V, Kimi-VL).
``axial``: the sum of a row for its column and one for its row, from a table with columns first (Gemma 4)."""
ProductActivation = Literal["silu", "gelu_tanh", "gelu", "quick_gelu", "relu2"]
JoinKind = Literal["beside", "mean", "mean_last", "attended"]
"""How neighbouring patches become one embedding: one beside another, as their mean, as the mean of what each is
projected to (Perception LM), or as what their mean finds in them by attention (Molmo)."""
PoolKind = Literal["none", "class", "probe"]
"""What is projected of a picture. ``none``: its patches. ``class``: its class token (CLIP). ``probe``: the result of a
learned query over its patches (SigLIP)."""

GRID_MARKS: Final = 5
"""Marks of a grid of tiles: those before a picture, behind the whole one, between columns, between rows, and behind
all."""
MARKS: Final = 4
"""Embeddings before and behind those of a picture, and of a video."""


class AxialRope(msgspec.Struct, frozen=True):
    """The first half of the rotating pairs rotates by a patch's row, the second by its column."""

    theta: float
    columns_first: bool = False
    """Whether the first half rotates by the column."""
    columns_between: bool = False
    """Whether columns use the frequencies between those of rows (Pixtral), not the same."""
    alternating: bool = False
    """Whether pairs alternate between column and row, column first, in place of halves (Kimi-VL)."""
    timed: bool = False
    """Whether a quarter of the pairs rotates by the time of a frame, 0 in a picture, and the rest by row and column.
    The two numbers of a pair rotate by angles of their own, as the makers of LLaVA-OneVision 2 trained it."""


class ProjectorNorm(msgspec.Struct, frozen=True):
    name: str
    """"": it has no weights."""
    kind: NormKind
    eps: float
    bias: bool = False
    plus_one: bool = False
    joined: bool = False
    """Whether it norms joined patches, not each patch."""

    def shapes(self, prefix: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, for ``size`` numbers."""
        if not self.name:
            return
        yield f"{prefix}{self.name}.weight", (size,)
        if self.bias:
            yield f"{prefix}{self.name}.bias", (size,)


class ProjectorProduct(msgspec.Struct, frozen=True):
    name: str
    outputs: int
    bias: bool
    activation: ProductActivation | None = None
    """Activation of its output."""
    channels_first: bool = False
    """Whether the stored matrix has the neighbours of each channel adjacent, not the channels of each neighbour
    (Mistral 3)."""
    transposed: bool = False
    """Whether it is stored as [inputs, outputs] under its bare name (Gemma 3)."""
    repeats: int = 1
    """How often its inputs are repeated in the stored matrix, whose parts are summed (ERNIE 4.5 VL)."""
    norm: ProjectorNorm | None = None
    """Norm of its output, before the activation."""
    norm_last: bool = False
    """Whether it follows the activation."""
    softmax: bool = False
    """Whether its normed output becomes probabilities."""
    gate: str = ""
    """Name of another product of the same inputs, which is activated and multiplies the output."""
    gated_by_half: bool = False
    """Whether the gate is stored as its second half."""

    @property
    def stored_outputs(self) -> int:
        return self.outputs * (1 + self.gated_by_half)


class SquareAttention(msgspec.Struct, frozen=True):
    """Attention from the mean of neighbouring patches to each of them."""

    heads: int
    width: int
    name: str

    def shapes(self, prefix: str, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, for patches of ``inputs`` numbers."""
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            columns = self.width if part == "out_proj" else inputs
            yield f"{prefix}{self.name}.{part}.weight", (self.width, columns)
            yield f"{prefix}{self.name}.{part}.bias", (self.width,)


class ProjectorSpec(msgspec.Struct, frozen=True):
    """Maps a tower's patches to the decoder's embeddings: joins neighbouring patches, then multiplies."""

    products: tuple[ProjectorProduct, ...]
    join: JoinKind = "beside"
    attention: SquareAttention | None = None
    """If ``join`` is ``attended``."""
    norm: ProjectorNorm | None = None
    scale: float = 1.0
    """Factor on joined patches."""
    standard: tuple[str, str] | None = None
    """Names of an offset that is subtracted, and of a factor on the difference."""
    activation: ProductActivation | None = None
    """Activation of what the first product takes."""

    def inputs(self, hidden: int, merge: int) -> tuple[int, ...]:
        """Inputs of each product."""
        first = hidden * (merge * merge if self.join == "beside" else 1)
        first = first if self.attention is None else self.attention.width
        return (first, *(product.outputs for product in self.products))[: len(self.products)]

    def shapes(self, prefix: str, hidden: int, merge: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, by name."""
        if self.attention is not None:
            yield from self.attention.shapes(prefix, hidden)
        if self.norm is not None:
            yield from self.norm.shapes(prefix, self.inputs(hidden, merge)[0] if self.norm.joined else hidden)
        for name in self.standard or ():
            yield f"{prefix}{name}.weight", (self.inputs(hidden, merge)[0],)
        for product, inputs in zip(self.products, self.inputs(hidden, merge), strict=True):
            for name in filter(None, (product.gate, product.name)):
                yield f"{prefix}{name}.weight", (product.stored_outputs, inputs)
                if product.bias:
                    yield f"{prefix}{name}.bias", (product.stored_outputs,)
            if product.norm is not None:
                yield from product.norm.shapes(prefix, product.outputs)


class TileSpec(msgspec.Struct, frozen=True):
    """A picture is encoded whole and in tiles of one size (LLaVA-NeXT). Its tiles' embeddings are joined to those of
    one picture, without padding, with a learned embedding at the end of each row."""

    canvases: tuple[tuple[int, int], ...]
    """(height, width) in pixels of possible tilings; empty: a picture comes with the size of its own, and embeddings of
    padding are kept."""
    side: int
    """Pixels of a tile's side."""
    most: int = 0
    """Tiles beyond which embeddings are reduced; 0: never."""
    end: str = "image_newline"
    """Name of the embedding at the end of rows."""
    between: str = ""
    """Name of an embedding between the whole, whose rows end as those of tiles do, and the tiles (Phi-3-vision); "":
    there is none, and the whole is not divided into rows."""
    whole_last: bool = False
    """Whether the whole stands behind its tiles."""
    joined: bool = False
    """Whether both are stored as joined patches, which are projected."""
    overlap: tuple[int, int] = (0, 0)
    """Pixels before and behind that a tile shares with its neighbours, whose embeddings are left out (Molmo). Such rows
    end in tokens of the text."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Names of its embeddings."""
        return tuple(name for name in (self.end, self.between) if name)


class ResamplerSpec(msgspec.Struct, frozen=True):
    """Attention from learned queries to a picture's patches, whose result is projected (MiniCPM-V)."""

    queries: int
    """Embeddings of a picture, of any size."""
    width: int
    heads: int
    projects: bool = True
    """Whether patches are first multiplied to the width."""
    eps: float = 1e-6
    name: str = "resampler"
    """Prefix of its tensor names."""

    def shapes(self, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, for patches of ``hidden`` numbers."""
        yield f"{self.name}.query.weight", (self.queries, self.width)
        if self.projects:
            yield f"{self.name}.kv_proj.weight", (self.width, hidden)
        for norm in ("ln_q", "ln_kv"):
            yield from ((f"{self.name}.{norm}.{last}", (self.width,)) for last in ("weight", "bias"))
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"{self.name}.attn.{part}.weight", (self.width, self.width)
            yield f"{self.name}.attn.{part}.bias", (self.width,)


class AbstractorSpec(msgspec.Struct, frozen=True):
    """Convolutions within a picture, which join squares of its patches (Kanana V)."""

    width: int
    depth: int
    """Blocks before squares are joined, and as many behind."""
    merge: int
    """Patches on each side of a square."""
    positions: int = 0
    """Learned positions of its own, which are a square; 0: none."""
    name: str = "abstractor"
    """Prefix of its tensor names."""

    def blocks(self, hidden: int) -> Iterator[tuple[str, int]]:
        """The name of each block, and the channels that it takes, for patches of ``hidden`` numbers."""
        for stage, first in ((0, hidden), (2, self.width * self.merge**2)):
            for number in range(self.depth):
                yield f"{self.name}.net.{stage}.b{number + 1}", self.width if number else first

    def shapes(self, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of its stored tensors, for patches of ``hidden`` numbers."""
        if self.positions:
            yield f"{self.name}.pos_emb.weight", (self.positions, hidden)
        width = self.width
        for name, inputs in self.blocks(hidden):
            convolutions = {"conv1": (width, inputs, 1, 1), "conv2": (width, 1, 3, 3), "conv3": (width, width, 1, 1)}
            if inputs != width:
                convolutions["downsample"] = (width, inputs, 1, 1)
            for part, shape in convolutions.items():
                yield f"{name}.{part}.conv.weight", shape
                yield from ((f"{name}.{part}.bn.{last}", (width,)) for last in ("weight", "bias"))
            squeezed = squeezed_channels(inputs)
            for part, outputs, taken in (("fc1", squeezed, width), ("fc2", width, squeezed)):
                yield f"{name}.se.{part}.weight", (outputs, taken, 1, 1)
                yield f"{name}.se.{part}.bias", (outputs,)


def squeezed_channels(inputs: int) -> int:
    """Channels by which a block of RegNet with ``inputs`` channels weighs its own."""
    return round(inputs / 4)


class VisionSpec(Backbone, frozen=True, kw_only=True):
    """One tower. ``max_position``: number of learned positions. ``layers``: up to the one whose output is used."""

    names: str
    """Determines the names of its tensors."""
    patch: int
    """Pixels of a patch's side."""
    projector: ProjectorSpec
    channels: int = 3
    frames: int = 1
    """Video frames that a patch spans."""
    source: PatchSource = "pixels"
    patch_name: str = "embeddings.patch_embedding"
    patch_bias: bool = True
    positions: PositionKind = "none"
    position_name: str = "embeddings.position_embedding"
    class_token: bool = False
    """Whether a class token, without an embedding, precedes each picture's patches."""
    class_name: str = "embeddings.class_embedding"
    registers: int = 0
    """Register tokens before each picture's patches, without positions or embeddings."""
    register_name: str = ""
    rope: AxialRope | None = None
    first_norm: str = ""
    """Name of a norm of the first layer's input."""
    positions_last: bool = False
    """Whether positions are added behind that norm."""
    final_norm: str = ""
    """Name of a norm of the last layer's output."""
    merge: int = 1
    """Patches on each side of the square that becomes one embedding."""
    filled_up: int = 1
    """The same for squares that are cut behind the layers, and filled up with zeros at the edges (DeepSeek-VL2 and
    V4.1)."""
    window: int = 0
    """Embeddings on each side of an attention window; 0: whole pictures."""
    whole_layers: tuple[int, ...] = ()
    """Layers with attention to whole pictures in spite of the window."""
    pool: PoolKind = "none"
    head_name: str = "head"
    """Prefix of the probe's tensor names."""
    resampler: ResamplerSpec | None = None
    abstractor: AbstractorSpec | None = None
    deepstack: tuple[int, ...] = ()
    """Layers whose output is projected too, for the first decoder layers, or with :attr:`last` for the embeddings."""
    deepstack_projector: ProjectorSpec | None = None
    last: ProjectorSpec | None = None
    """Projects the sum of the embeddings and of all that the layers of :attr:`deepstack` make, whose outputs the final
    norm norms too (openPangu VL)."""
    padding: str = ""
    """Name of two embeddings, of which the first is added to patches of padding alone, and the second to those with
    some (Molmo)."""
    taken: tuple[int, ...] = ()
    """Layers, counted from 1, whose outputs are concatenated and projected in place of the last one's."""
    tiles: TileSpec | None = None
    video: bool = False
    """Whether video frames are encoded like pictures; with tiles, to a quarter of the embeddings."""
    centred: bool = False
    """Whether pixels from 0 to 1 are scaled to -1 to 1."""
    marks: str = ""
    """Name of the :data:`MARKS` embeddings, or of the :data:`GRID_MARKS`."""
    gridded: bool = False
    """Whether marks stand around the whole picture and between its tiles (Ovis 2 as published)."""
    lines: tuple[str, ...] = ()
    """Names of the embeddings before a picture, behind each row of its own, and behind all (DeepSeek V4.1); empty:
    there are none."""
    words: tuple[int, ...] = ()
    """Text tokens whose embeddings are the tower's."""
    word_names: tuple[str, ...] = ()
    """Names of the tensors of these; empty: they are the last of the projector's table (Ovis 2)."""
    out_scale: float = 1.0
    """Factor on embeddings, also on those of text tokens."""
    unused: tuple[str, ...] = ()
    """Prefixes of tensors in checkpoints that are not used."""

    @property
    def side(self) -> int:
        """Side of the square of learned positions."""
        return int((self.max_position - self.class_token) ** 0.5)

    @property
    def mark_rows(self) -> int:
        """Embeddings of marks."""
        return GRID_MARKS if self.gridded else MARKS

    @property
    def taken_size(self) -> int:
        """Numbers a patch, or a query of the resampler, that are projected."""
        if self.resampler is not None:
            return self.resampler.width
        if self.abstractor is not None:
            return self.abstractor.width
        return self.hidden_size * max(1, len(self.taken))

    @property
    def modalities(self) -> tuple[str, ...]:
        return ("image", "video") if self.video or self.source == "patches" else ("image",)

    @property
    def patch_values(self) -> int:
        """Input numbers of a patch."""
        return self.channels * self.frames * self.patch * self.patch

    @property
    def embedding_size(self) -> int:
        products = (self.last or self.projector).products
        return products[-1].outputs if products else self.hidden_size

    @property
    def joined_side(self) -> int:
        """Patches on each side of a square that the projector joins, however it is cut."""
        return 1 if self.abstractor is not None else self.merge * self.filled_up

    @property
    def mark_size(self) -> int:
        """Stored numbers of each of the embeddings of :attr:`tiles`."""
        joined = self.tiles is not None and self.tiles.joined
        return self.projector.inputs(self.taken_size, self.joined_side)[0] if joined else self.embedding_size

    @property
    def head_network(self) -> tuple[int, ProductActivation]:
        """(inner size, activation) of the network behind a probe, those of the layers."""
        mlp = dense_mlp(self)
        found = next(each for each in get_args(ProductActivation) if each == mlp.activation)
        return mlp.inner, found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all plain tensors, by the names in :class:`...models.towers.vision_tower.VisionTower`."""
        hidden = self.hidden_size
        found: dict[str, tuple[int, ...]] = {f"{self.patch_name}.weight": (hidden, self.patch_values)}
        if self.patch_bias:
            found[f"{self.patch_name}.bias"] = (hidden,)
        if self.class_token:
            found[f"{self.class_name}.weight"] = (hidden,)
        if self.registers:
            found[f"{self.register_name}.weight"] = (self.registers, hidden)
        if self.positions != "none":
            found[f"{self.position_name}.weight"] = (self.max_position, hidden)
        for name in filter(None, (self.first_norm, self.final_norm)):
            found[f"{name}.weight"] = (hidden,)
            if self.layers[0].norms.bias:
                found[f"{name}.bias"] = (hidden,)
        for number, layer in enumerate(self.layers):
            found.update(layer.shapes(f"{self.prefix}.{number}", hidden))
        found.update(self.projector.shapes("", self.taken_size, self.joined_side))
        if self.resampler is not None:
            found.update(self.resampler.shapes(hidden))
        if self.abstractor is not None:
            found.update(self.abstractor.shapes(hidden))
        if self.tiles is not None:
            found |= {f"{name}.weight": (self.mark_size,) for name in self.tiles.marks}
        if self.padding:
            found[f"{self.padding}.weight"] = (2, self.taken_size)
        if self.marks:
            found[f"{self.marks}.weight"] = (self.mark_rows, self.embedding_size)
        if self.words and not self.word_names:
            found["words.weight"] = (len(self.words), self.embedding_size)
        found |= {f"{name}.weight": (self.embedding_size,) for name in (*self.word_names, *self.lines)}
        if self.pool == "probe":
            found.update(self._head_shapes())
        for number in range(len(self.deepstack)):
            assert self.deepstack_projector is not None
            found.update(self.deepstack_projector.shapes(f"deepstack.{number}.", hidden, self.merge))
        if self.last is not None:
            found.update(self.last.shapes("", self.projector.products[-1].outputs, 1))
        return found

    def _head_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        name, hidden, (inner, _) = self.head_name, self.hidden_size, self.head_network
        yield f"{name}.probe.weight", (hidden,)
        for part, outputs, inputs in (
            *((f"attention.{each}", hidden, hidden) for each in ("q_proj", "k_proj", "v_proj", "out_proj")),
            ("mlp.fc1", inner, hidden),
            ("mlp.fc2", hidden, inner),
        ):
            yield f"{name}.{part}.weight", (outputs, inputs)
            yield f"{name}.{part}.bias", (outputs,)
        for last in ("weight", "bias"):
            yield f"{name}.layernorm.{last}", (hidden,)

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    def check(self) -> None:
        """Raise :class:`ConfigError` for contradictory fields."""
        if not self.layers:
            raise ConfigError("the tower has no layer whose output is taken")
        if not all(0 < number <= len(self.layers) for number in self.taken):
            raise ConfigError(f"outputs of layers {self.taken} are taken, expected some of {len(self.layers)}")
        if (self.projector.join == "attended") != (self.projector.attention is not None):
            raise ConfigError("patches are joined by an attention that is not described, or none that is")
        if (self.class_token or self.registers) and (self.positions != "exact" or self.window):
            raise ConfigError("a tower with a class token or registers sees pictures of one size, and these whole")
        for layer in dict.fromkeys(self.layers):
            layer.check()
            if self.rope is not None and layer.attention.head_dim % 4:
                raise ConfigError(f"heads of {layer.attention.head_dim} dimensions do not turn by row and column")
            if self.rope is not None and self.rope.timed and layer.attention.head_dim % 32:
                raise ConfigError(f"heads have {layer.attention.head_dim} dimensions, expected a multiple of 32")
        if self.positions not in ("none", "axial") and self.side**2 + self.class_token != self.max_position:
            raise ConfigError(f"{self.max_position} learned positions are no square")
