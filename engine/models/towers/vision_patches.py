"""Converts the output of a model's processor to the patches of its tower."""

from collections.abc import Mapping

import msgspec
import torch

from ...model_config.towers.vision_spec import VisionSpec
from .vision_grids import Grid, layout


class Patches(msgspec.Struct, frozen=True):
    """Patches of pictures or video frames, concatenated."""

    values: torch.Tensor
    """[patches, channels · frames · patch · patch], in the order of :func:`.vision_grids.layout`."""
    grids: tuple[Grid, ...]
    real: torch.Tensor | None = None
    """bool [patches]: False for padding, which no patch sees; None: no padding."""
    filled: tuple[Grid, ...] | None = None
    """Rows and columns of each picture without padding."""
    share: torch.Tensor | None = None
    """float32 [patches]: how much of each is no padding, or below 0; None: not told."""


def read_patches(spec: VisionSpec, tensors: Mapping[str, torch.Tensor]) -> Patches:
    """Convert a payload's ``tensors``. Raises ValueError for unsuitable ones."""
    if spec.source in ("patches", "rows"):
        return _of_grid(spec, tensors)
    if spec.source == "shaped":
        return _of_shapes(spec, tensors)
    pixels = _given(tensors, "pixel_values", *(["pixel_values_videos"] if "video" in spec.modalities else []))
    if pixels.dim() == 5:
        pixels = pixels.flatten(0, 1)
    mask = tensors.get("pixel_attention_mask")
    if pixels.dim() != 4 or pixels.shape[1] != spec.channels or min(pixels.shape[-2:]) < spec.patch:
        raise ValueError(
            f"pixel_values has shape {list(pixels.shape)}, expected [pictures, {spec.channels}, height, width] of at "
            f"least {spec.patch} pixels a side"
        )
    if spec.source == "sized":
        return _of_sizes(spec, pixels, tensors.get("image_sizes"))
    return _cut(spec, pixels, None if mask is None else mask.flatten(0, -3), tensors.get("image_masks"))


def _given(tensors: Mapping[str, torch.Tensor], *names: str) -> torch.Tensor:
    for name in names:
        if name in tensors:
            return tensors[name]
    raise ValueError(f"media come as {', '.join(tensors) or 'no tensors'}, expected {' or '.join(names)}")


def _cut(spec: VisionSpec, pixels: torch.Tensor, mask: torch.Tensor | None, shares: torch.Tensor | None) -> Patches:
    """Pictures of one size. Those of zeros only are dropped; ``mask`` [pictures, height, width] is 0 for padding;
    ``shares`` [pictures, patches], row by row: see :attr:`Patches.share`."""
    if spec.positions == "buckets":
        there = pixels.flatten(1).any(dim=1)
        pixels = pixels[there]
        mask = None if mask is None else mask[there]
    grid = pixels.shape[2] // spec.patch, pixels.shape[3] // spec.patch
    values = _in_squares(pixels, grid, spec.patch, spec.merge)
    if spec.padding:
        return Patches(values, (grid,) * len(pixels), share=_shares(spec, grid, len(pixels), shares))
    if mask is None or bool(mask.all()):
        return Patches(values, (grid,) * len(pixels))
    if mask.shape != pixels[:, 0].shape:
        raise ValueError(f"pixel_attention_mask has shape {list(mask.shape)}, expected {list(pixels[:, 0].shape)}")
    real = _in_squares(mask.unsqueeze(1), grid, spec.patch, spec.merge).any(dim=1)
    at, of_picture = layout(grid, spec.merge, 0), real.view(len(pixels), -1)
    filled = tuple((int(each[at.columns == 0].sum()), int(each[at.rows == 0].sum())) for each in of_picture.cpu())
    if not all(map(all, filled)):
        raise ValueError("pixel_attention_mask hides the first rows or columns of a picture, expected its last ones")
    return Patches(values, (grid,) * len(pixels), real, filled)


def _shares(spec: VisionSpec, grid: Grid, pictures: int, shares: torch.Tensor | None) -> torch.Tensor:
    rows, columns = grid
    if shares is None or shares.numel() != pictures * rows * columns:
        shape = "none" if shares is None else f"shape {list(shares.shape)}"
        raise ValueError(f"image_masks has {shape}, expected [{pictures}, {rows * columns}]")
    return _in_squares(shares.float().view(pictures, 1, rows, columns), grid, 1, spec.merge).flatten()


def _in_squares(pixels: torch.Tensor, grid: Grid, patch: int, merge: int) -> torch.Tensor:
    """[pictures, channels, height, width] → [pictures · patches, channels · patch · patch].

    Patches of a square of ``merge`` a side are adjacent. Pixels behind the last whole patch are dropped.
    """
    layout(grid, merge, 0)  # refuses incomplete squares
    pictures, channels = pixels.shape[:2]
    down, across = grid[0] // merge, grid[1] // merge
    cut = pixels[:, :, : grid[0] * patch, : grid[1] * patch]
    cut = cut.reshape(pictures, channels, down, merge, patch, across, merge, patch)
    return cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, channels * patch * patch)


def _of_sizes(spec: VisionSpec, pixels: torch.Tensor, sizes: torch.Tensor | None) -> Patches:
    """Pictures padded to one size, of which the first ``sizes`` [pictures, 2] rows and columns are real."""
    height, width = pixels.shape[2:]
    if sizes is None:
        sizes = torch.tensor([[height, width]] * len(pixels))
    if sizes.shape != (len(pixels), 2) or sizes.min() < spec.patch or (sizes > torch.tensor([height, width])).any():
        raise ValueError(
            f"image_sizes is {sizes.tolist()}, expected for each of {len(pixels)} pictures a height and a width from "
            f"{spec.patch} to {height} and {width} pixels"
        )
    grids = tuple((rows // spec.patch, columns // spec.patch) for rows, columns in sizes.tolist())
    cut = [
        _in_squares(picture.unsqueeze(0), grid, spec.patch, spec.merge)
        for picture, grid in zip(pixels, grids, strict=True)
    ]
    return Patches(torch.cat(cut), grids)


def _of_grid(spec: VisionSpec, tensors: Mapping[str, torch.Tensor]) -> Patches:
    """Patches in squares already, or row by row, with (frames, rows, columns) of each picture or video."""
    values = _given(tensors, "pixel_values", "pixel_values_videos")
    values = values.flatten(0, -2) if spec.source == "patches" else values.flatten(1)
    thw = _given(tensors, "image_grid_thw", "video_grid_thw").reshape(-1, 3).tolist()
    grids = tuple((rows, columns) for frames, rows, columns in thw for _ in range(frames))
    if values.shape != (sum(rows * columns for rows, columns in grids), spec.patch_values):
        raise ValueError(
            f"pixel_values has shape {list(values.shape)}, expected {spec.patch_values} numbers for each patch of "
            f"{', '.join(' x '.join(map(str, each)) for each in thw)}"
        )
    if spec.source == "rows":
        pictures = values.split([rows * columns for rows, columns in grids])
        values = torch.cat([each[_places(spec, grid)] for each, grid in zip(pictures, grids, strict=True)])
    return Patches(values, grids)


def _places(spec: VisionSpec, grid: Grid) -> torch.Tensor:
    """int64 [patches]: the row-by-row index of each, in the order of :func:`.vision_grids.layout`."""
    at = layout(grid, spec.merge, spec.window)
    return at.rows * grid[1] + at.columns


def _of_shapes(spec: VisionSpec, tensors: Mapping[str, torch.Tensor]) -> Patches:
    """Patches row by row, padded to one number for all pictures, with the shape of each, or the place of each patch (-1
    for padding)."""
    values = _given(tensors, "pixel_values", *(["pixel_values_videos"] if spec.video else []))
    places = [tensors[name] for name in ("image_position_ids", "video_position_ids") if name in tensors]
    shapes = places[0].amax(dim=1).flip(-1) + 1 if places else _given(tensors, "spatial_shapes")
    if spec.centred:
        values = 2 * values - 1
    grids = tuple((rows, columns) for rows, columns in shapes.reshape(-1, 2).tolist())
    most = max((rows * columns for rows, columns in grids), default=0)
    if values.dim() != 3 or len(values) != len(grids) or values.shape[2] != spec.patch_values or values.shape[1] < most:
        raise ValueError(
            f"pixel_values has shape {list(values.shape)}, expected {spec.patch_values} numbers for each patch of "
            f"{', '.join(f'{rows} x {columns}' for rows, columns in grids) or 'some picture'}"
        )
    pictures = [picture[_places(spec, grid)] for picture, grid in zip(values, grids, strict=True)]
    return Patches(torch.cat(pictures), grids)
