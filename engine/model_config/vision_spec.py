"""What a vision tower is made of, and what brings its output into the space of a decoder. Torch-free.

Towers are bidirectional encoders over patches of pictures. Their layers are those of other encoders; what they have
besides are values here: how patches are cut, how their positions are told, who sees whom, and how neighbours become one
embedding. Layers behind the one whose output is taken are left out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from .config_fields import ConfigError
from .model_spec import Backbone, NormKind, dense_mlp

PatchSource = Literal["pixels", "sized", "patches", "rows", "shaped"]
"""``pixels``: pictures as rectangles of pixels; ``sized``: the same, beside how much of each is picture (Pixtral);
``patches``: as patches already, beside a grid (Qwen2-VL); ``rows``: the same, row by row (Kimi-VL); ``shaped``: as
patches row by row, filled up to one number for all pictures, beside rows and columns (SigLIP 2), or the column and row
of each (Gemma 4)."""
PositionKind = Literal["none", "exact", "buckets", "bilinear", "antialiased", "sampled", "axial"]
"""How a patch finds its row in a learned square of positions. ``exact``: the picture has the square's own size.
``buckets``: by the part of the picture's height and width that lies before the patch (Idefics3). ``bilinear``: the
square is stretched to the picture, corner on corner (Qwen3-VL). ``antialiased``: it is resized as a picture is, by a
bilinear filter (SigLIP 2). ``sampled``: by a bicubic one, as wide for a smaller picture as for a larger (GLM-4V,
Kimi-VL).
``axial``: it adds a row for its column and one for its row, of a table that has those of columns first (Gemma 4)."""
ProductActivation = Literal["silu", "gelu_tanh", "gelu", "quick_gelu", "relu2"]
JoinKind = Literal["beside", "mean"]
PoolKind = Literal["none", "class", "probe"]
"""What of a picture is projected. ``none``: its patches; ``class``: its class token alone (CLIP); ``probe``: what a
learned query finds in its patches (SigLIP)."""

MARKS: Final = 4
"""Embeddings that stand before and behind those of a picture, and of a video."""


@dataclass(frozen=True)
class AxialRope:
    """The first half of the rotating pairs turns by the row of a patch, the second by its column."""

    theta: float
    columns_first: bool = False
    """The first half turns by the column."""
    columns_between: bool = False
    """Columns turn by the frequencies that lie between those of rows (Pixtral), not by the same."""
    alternating: bool = False
    """In place of halves every second pair turns by the column, the first among them (Kimi-VL)."""


@dataclass(frozen=True)
class ProjectorNorm:
    name: str
    """Without one it has no weights."""
    kind: NormKind
    eps: float
    bias: bool = False
    plus_one: bool = False
    joined: bool = False
    """It is taken over what has been joined, not over each patch."""

    def shapes(self, prefix: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored of a norm over so many numbers."""
        if not self.name:
            return
        yield f"{prefix}{self.name}.weight", (size,)
        if self.bias:
            yield f"{prefix}{self.name}.bias", (size,)


@dataclass(frozen=True)
class ProjectorProduct:
    name: str
    outputs: int
    bias: bool
    activation: ProductActivation | None = None
    """Of its output."""
    channels_first: bool = False
    """The stored matrix has the neighbours of each channel beside each other, not the channels of each neighbour
    (Mistral 3)."""
    transposed: bool = False
    """Stored as [inputs, outputs] under its bare name (Gemma 3)."""
    norm: ProjectorNorm | None = None
    """Of its output, before the activation."""
    norm_last: bool = False
    """It is taken behind the activation."""
    softmax: bool = False
    """Its output, normed, becomes probabilities."""
    gate: str = ""
    """The name of another product of the same inputs, whose output is activated in place of its own and multiplies
    it."""
    gated_by_half: bool = False
    """The gate is stored behind it, as its second half."""

    @property
    def stored_outputs(self) -> int:
        return self.outputs * (1 + self.gated_by_half)


@dataclass(frozen=True)
class ProjectorSpec:
    """From patches to embeddings: neighbours are joined, and products follow."""

    products: tuple[ProjectorProduct, ...]
    join: JoinKind = "beside"
    norm: ProjectorNorm | None = None
    scale: float = 1.0
    """Multiplies what is joined."""
    standard: tuple[str, str] | None = None
    """The names of what is subtracted from that, and of what multiplies the difference."""

    def inputs(self, hidden: int, merge: int) -> tuple[int, ...]:
        """Of each product."""
        first = hidden * (merge * merge if self.join == "beside" else 1)
        return (first, *(product.outputs for product in self.products))[: len(self.products)]

    def shapes(self, prefix: str, hidden: int, merge: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of what is stored."""
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


@dataclass(frozen=True)
class TileSpec:
    """A picture is seen whole and in tiles of one size (LLaVA-NeXT). The embeddings of its tiles are put together to
    those of one picture, where the padding around it has none and a learned embedding ends each row."""

    canvases: tuple[tuple[int, int], ...]
    """Heights and widths in pixels that tiles make up."""
    side: int
    """Pixels of a tile."""
    most: int = 0
    """Of a picture of more than so many tiles embeddings are resized to fewer; 0: of none."""
    end: str = "image_newline"
    """The name of the embedding that ends rows."""


@dataclass(frozen=True, kw_only=True)
class VisionSpec(Backbone):
    """One tower; ``max_position`` are the positions that are learned, ``layers`` those up to the one that is taken."""

    names: str
    """Whose names its tensors have."""
    patch: int
    """Pixels of a side."""
    projector: ProjectorSpec
    channels: int = 3
    frames: int = 1
    """Of a video, that a patch spans."""
    source: PatchSource = "pixels"
    patch_name: str = "embeddings.patch_embedding"
    patch_bias: bool = True
    positions: PositionKind = "none"
    position_name: str = "embeddings.position_embedding"
    class_token: bool = False
    """A token of its own stands before the patches of each picture; it has no embedding."""
    class_name: str = "embeddings.class_embedding"
    registers: int = 0
    """Tokens that stand before the patches of each picture, at no position of theirs; they have no embeddings."""
    register_name: str = ""
    rope: AxialRope | None = None
    first_norm: str = ""
    """The name of a norm of what layers take."""
    positions_last: bool = False
    """Positions are added behind that norm."""
    final_norm: str = ""
    """The name of a norm of what they give."""
    merge: int = 1
    """Patches on each side of the square that becomes one embedding."""
    window: int = 0
    """Embeddings on each side of the square whose patches see each other; 0: all of a picture do."""
    whole_layers: tuple[int, ...] = ()
    """Where patches see the whole picture all the same."""
    pool: PoolKind = "none"
    head_name: str = "head"
    """Before the names of what finds it by a probe."""
    deepstack: tuple[int, ...] = ()
    """Layers whose output is projected too, for the first layers of the decoder."""
    deepstack_projector: ProjectorSpec | None = None
    taken: tuple[int, ...] = ()
    """Layers, counted from 1, whose outputs are projected side by side in place of the last one's."""
    tiles: TileSpec | None = None
    video: bool = False
    """Frames of videos are pictures to it; as tiles of a quarter of the embeddings."""
    centred: bool = False
    """Pixels come from 0 to 1, and are taken from -1 to 1."""
    marks: str = ""
    """The name of :data:`MARKS` embeddings."""
    words: tuple[int, ...] = ()
    """Tokens of text whose embeddings are the tower's."""
    unused: tuple[str, ...] = ()
    """Beginnings of names that checkpoints may hold and nothing is made of."""

    @property
    def side(self) -> int:
        """Of the square of learned positions."""
        return int((self.max_position - self.class_token) ** 0.5)

    @property
    def taken_size(self) -> int:
        """Numbers of a patch that are projected."""
        return self.hidden_size * max(1, len(self.taken))

    @property
    def modalities(self) -> tuple[str, ...]:
        return ("image", "video") if self.video or self.source == "patches" else ("image",)

    @property
    def patch_values(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.frames * self.patch * self.patch

    @property
    def embedding_size(self) -> int:
        return self.projector.products[-1].outputs if self.projector.products else self.hidden_size

    @property
    def head_network(self) -> tuple[int, ProductActivation]:
        """Of what stands behind a probe: its inner size and activation, which are those of the layers."""
        mlp = dense_mlp(self)
        found = next(each for each in get_args(ProductActivation) if each == mlp.activation)
        return mlp.inner, found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor of a checkpoint of plain weights, by the names that
        :class:`..models.vision_tower.VisionTower` has for them."""
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
        found.update(self.projector.shapes("", self.taken_size, self.merge))
        if self.tiles is not None:
            found[f"{self.tiles.end}.weight"] = (self.embedding_size,)
        if self.marks:
            found[f"{self.marks}.weight"] = (MARKS, self.embedding_size)
        if self.words:
            found["words.weight"] = (len(self.words), self.embedding_size)
        if self.pool == "probe":
            found.update(self._head_shapes())
        for number in range(len(self.deepstack)):
            assert self.deepstack_projector is not None
            found.update(self.deepstack_projector.shapes(f"deepstack.{number}.", hidden, self.merge))
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
        """Raises :class:`ConfigError` where its parts contradict each other."""
        if not self.layers:
            raise ConfigError("the tower has no layer whose output is taken")
        if not all(0 < number <= len(self.layers) for number in self.taken):
            raise ConfigError(f"outputs of layers {self.taken} are taken, expected some of {len(self.layers)}")
        if (self.class_token or self.registers) and (self.positions != "exact" or self.window):
            raise ConfigError("a tower with a class token or registers sees pictures of one size, and these whole")
        for layer in dict.fromkeys(self.layers):
            layer.check()
            if self.rope is not None and layer.attention.head_dim % 4:
                raise ConfigError(f"heads of {layer.attention.head_dim} dimensions do not turn by row and column")
        if self.positions not in ("none", "axial") and self.side**2 + self.class_token != self.max_position:
            raise ConfigError(f"{self.max_position} learned positions are no square")
