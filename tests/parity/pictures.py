"""Random pictures for tiny models that see: as their processors would leave them, and where they stand in a prompt."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import torch

from stentor.engine.client.media import Media
from stentor.engine.models.towers.payload import Payload, write_payload
from stentor.tests.support.vision_models import PATCH, SIDE, token

Tensors = Mapping[str, torch.Tensor]
Merge = Callable[[Sequence[Tensors]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Picture:
    """One piece of media of a prompt."""

    tensors: Tensors
    tokens: list[int]
    """What stands in the prompt for it, placeholders among others."""
    grid: tuple[int, int, int] | None = None
    modality: str = "image"

    @property
    def payload(self) -> bytes:
        return write_payload(Payload(self.modality, self.tensors))


@dataclass(frozen=True)
class Kind:
    """Pictures of one family."""

    draw: Callable[[torch.Generator, int], Picture]
    """One of some size: numbers from 0 on are sizes."""
    placeholder: int
    merge: Merge
    """The tensors of several pictures as a pass of transformers takes them."""
    others: tuple[int, ...] = ()
    """Placeholders of what it draws besides pictures."""
    whole_prompts: bool = False
    """Whether all tokens of a prompt attend to each other."""
    expert_marks: tuple[int, ...] = ()
    """Tokens of prompts that use the experts of pictures as well as these."""
    joined_marks: tuple[int, ...] = ()
    """Tokens beside media that attend to all media of a prompt, and these to them."""
    begins: tuple[int, ...] = ()
    """Tokens before media by which transformers counts them."""
    crossed_tiles: int = 0
    """Tiles of a picture to which the tokens behind it attend; 0: its embeddings stand in place of tokens."""

    @property
    def placeholders(self) -> tuple[int, ...]:
        return (self.placeholder, *self.others)

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Tokens that transformers would take for another picture's if they stood in an answer."""
        return (*self.placeholders, *self.begins)


def cat(dim: int = 0) -> Merge:
    """Each tensor of several pictures as one."""
    return lambda parts: {name: torch.cat([part[name] for part in parts], dim) for name in parts[0]}


def _padded(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    """Pixels filled up with zeros to one shape."""
    shape = torch.tensor([part["pixel_values"].shape for part in parts]).amax(0).tolist()
    filled = []
    for part in parts:
        pixels = part["pixel_values"]
        whole = pixels.new_zeros(len(pixels), *shape[1:])
        whole[tuple(slice(size) for size in pixels.shape)] = pixels
        filled.append(whole)
    return {"pixel_values": torch.cat(filled), "image_sizes": torch.cat([part["image_sizes"] for part in parts])}


def qwen_picture(random: torch.Generator, size: int) -> Picture:
    rows, columns = ((4, 6), (6, 4), (4, 4), (8, 6))[size]
    pixels = torch.randn(rows * columns, 3 * 2 * PATCH * PATCH, generator=random)
    inside = [token("<|image_pad|>")] * (rows * columns // 4)
    return Picture(
        {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])},
        [token("<|vision_start|>"), *inside, token("<|vision_end|>")],
        (1, rows // 2, columns // 2),
    )


def film(random: torch.Generator, size: int) -> Picture:
    """Two frames one behind the other, as Qwen2-VL takes a video."""
    rows, columns = ((4, 6), (6, 4), (4, 4), (2, 4))[size]
    pixels = torch.randn(2 * rows * columns, 3 * 2 * PATCH * PATCH, generator=random)
    inside = [token("<|video_pad|>")] * (2 * rows * columns // 4)
    return Picture(
        {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([[2, rows, columns]])},
        [token("<|vision_start|>"), *inside, token("<|vision_end|>")],
        (2, rows // 2, columns // 2),
        "video",
    )


def film_in_frames(random: torch.Generator, size: int) -> Picture:
    """The same with a time before each frame, as Qwen3-VL takes it."""
    whole = film(random, size)
    frame = [token("<|vision_start|>"), *whole.tokens[1:-1][: len(whole.tokens) // 2 - 1], token("<|vision_end|>")]
    return Picture(whole.tensors, [61, *frame, 62, 63, *frame], whole.grid, "video")


def _tiled(random: torch.Generator, size: int) -> Picture:
    tiles = size + 1
    inside = [token("<image>")] * 4
    tokens = [each for tile in range(tiles) for each in (token("<fake_token_around_image>"), 60 + tile, *inside)]
    pixels = torch.randn(1, tiles, 3, SIDE, SIDE, generator=random)
    return Picture({"pixel_values": pixels}, [*tokens, token("<fake_token_around_image>")])


def square(placeholder: str, count: int, around: tuple[str, ...] = ()) -> Callable[[torch.Generator, int], Picture]:
    def draw(random: torch.Generator, size: int) -> Picture:
        pixels = torch.randn(1, 3, SIDE, SIDE, generator=random)
        inside = [token(placeholder)] * count
        if around:
            inside = [token(around[0]), *inside, token(around[1])]
        return Picture({"pixel_values": pixels}, inside)

    return draw


def _anyres(random: torch.Generator, size: int) -> Picture:
    """A whole picture, and two tiles of it side by side: with a line's end behind each row."""
    pixels = torch.randn(1, 3, 3, SIDE, SIDE, generator=random)
    sizes = torch.tensor([[SIDE, 2 * SIDE]])
    return Picture({"pixel_values": pixels, "image_sizes": sizes}, [token("<image>")] * (16 + 4 * 9))


def _pixtral(merged: int) -> Callable[[torch.Generator, int], Picture]:
    def draw(random: torch.Generator, size: int) -> Picture:
        rows, columns = ((4, 6), (6, 4), (4, 4), (8, 6))[size]
        pixels = torch.randn(1, 3, rows * PATCH, columns * PATCH, generator=random)
        tokens: list[int] = []
        for row in range(rows // merged):
            ends = row == rows // merged - 1
            tokens += [token("[IMG]")] * (columns // merged) + [token("[IMG_END]" if ends else "[IMG_BREAK]")]
        return Picture({"pixel_values": pixels, "image_sizes": torch.tensor([[rows * PATCH, columns * PATCH]])}, tokens)

    return draw


def _patches(random: torch.Generator, size: int) -> Picture:
    pixels = torch.randn(size + 1, 3, SIDE, SIDE, generator=random)
    inside = [token("<IMG_CONTEXT>")] * (4 * (size + 1))
    return Picture({"pixel_values": pixels}, [token("<img>"), *inside, token("</img>")])


_QWEN: Final = Kind(qwen_picture, token("<|image_pad|>"), cat())
_IDEFICS: Final = Kind(_tiled, token("<image>"), cat(1))
PICTURES: Final[Mapping[str, Kind]] = {
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "llava": Kind(square("<image>", 16), token("<image>"), cat()),
    "llava_onevision": Kind(_anyres, token("<image>"), cat()),
    "gemma3": Kind(
        square("<image_soft_token>", 4, ("<start_of_image>", "<end_of_image>")), token("<image_soft_token>"), cat()
    ),
    "pixtral": Kind(_pixtral(1), token("[IMG]"), _padded),
    "mistral3": Kind(_pixtral(2), token("[IMG]"), _padded),
    "internvl": Kind(_patches, token("<IMG_CONTEXT>"), cat()),
}
"""By the name of the family."""


@dataclass(frozen=True)
class Prompt:
    """Text and pictures."""

    tokens: list[int]
    pictures: list[Picture]
    media: list[Media]


def prompt_of(kind: Kind, *parts: Sequence[int] | Picture) -> Prompt:
    """Text and pictures in this order."""
    tokens: list[int] = []
    media, pictures = [], []
    for part in parts:
        if not isinstance(part, Picture):
            tokens += part
            continue
        held = [at for at, each in enumerate(part.tokens) if each in (*kind.placeholders, *kind.joined_marks)]
        start, length = len(tokens) + held[0], held[-1] - held[0] + 1
        digest = blake2b(part.payload, digest_size=16).digest()
        media.append(Media(part.payload, digest, start, length, part.grid, causal=part.modality == "audio"))
        pictures.append(part)
        tokens += part.tokens
    return Prompt(tokens, pictures, media)


def reference(model: Any, kind: Kind, prompt: Prompt, more: Sequence[int] = ()) -> torch.Tensor:
    """transformers' logits [tokens, vocabulary] of a prompt and tokens behind it, in one pass."""
    logits: torch.Tensor = _outputs(model, kind, prompt, more).logits[0]
    return logits


def reference_states(model: Any, kind: Kind, prompt: Prompt) -> torch.Tensor:
    """transformers' hidden states [tokens, hidden] of a prompt, as its head takes them."""
    states: torch.Tensor = _outputs(model, kind, prompt, output_hidden_states=True).hidden_states[-1][0]
    return states


def _outputs(model: Any, kind: Kind, prompt: Prompt, more: Sequence[int] = (), **asked: bool) -> Any:
    ids = torch.tensor([[*prompt.tokens, *more]])
    given: dict[str, Any] = kind.merge([each.tensors for each in prompt.pictures]) if prompt.pictures else {}
    film = any(each.modality == "video" for each in prompt.pictures)
    types = (ids == kind.placeholder).long() * (2 if film else 1)
    if kind.whole_prompts:
        types = (torch.arange(ids.shape[1]) >= len(prompt.tokens)).long()[None]
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inspect.signature(model.forward).parameters:
            given[name] = types
            break
    if kind.joined_marks:
        seen = torch.isin(ids, torch.tensor([*kind.placeholders, *kind.joined_marks]))
        given["mm_token_type_ids"] = (seen & (torch.arange(ids.shape[1]) < len(prompt.tokens))).long()
    if kind.expert_marks:
        marked = torch.isin(ids, torch.tensor(kind.expert_marks)) & (torch.arange(ids.shape[1]) < len(prompt.tokens))
        given["moe_mm_token_type_ids"] = types | marked.long()
    if kind.crossed_tiles and prompt.pictures:
        given["cross_attention_mask"] = _crossed(kind, prompt, ids.shape[1])
    mask: Any = torch.ones_like(ids)
    own = getattr(model, "config", None)
    if own is not None and own.model_type == "gemma4_unified":  # its class alone sees pictures whole in all layers
        like, places = torch.zeros(*ids.shape, own.text_config.hidden_size), torch.arange(ids.shape[1])[None]
        mask = model.create_masks_for_generate(own, like, mask, None, places, mm_token_type_ids=types)
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask, use_cache=False, **given, **asked)


def _crossed(kind: Kind, prompt: Prompt, length: int) -> torch.Tensor:
    """Which tiles each of ``length`` tokens attends to, by transformers' processor; tokens behind the prompt attend as
    its last."""
    from transformers.models.mllama import processing_mllama as processing

    counts = [int(each.tensors["aspect_ratio_mask"].sum()) for each in prompt.pictures]
    spans = processing.get_cross_attention_token_mask(prompt.tokens, kind.placeholder)
    dense = processing.convert_sparse_cross_attention_mask_to_dense(
        [spans], [counts], kind.crossed_tiles, len(prompt.tokens)
    )
    found = torch.from_numpy(dense)
    return torch.cat((found, found[:, -1:].expand(-1, length - len(prompt.tokens), -1, -1)), 1)


def greedy(model: Any, kind: Kind, prompt: Prompt, count: int) -> list[int]:
    """transformers' own answer, in which no placeholder stands."""
    found: list[int] = []
    for _ in range(count):
        logits = reference(model, kind, prompt, found)[-1].tolist()
        for token_id in kind.unsaid:
            if token_id < len(logits):
                logits[token_id] = -math.inf
        found.append(max(range(len(logits)), key=logits.__getitem__))
    return found
