"""Image processors that transformers has for torchvision alone, against what these make of the same pictures."""

from typing import Any, Final

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import (
    Gemma4ImageProcessorPil,
    GotOcr2ImageProcessorPil,
    Qwen2VLImageProcessorPil,
    Siglip2ImageProcessorPil,
)
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from stentor.server.media.processors.images.cohere2 import Cohere2VisionImages
from stentor.server.media.processors.images.deepseek_v41 import DeepseekV41Images
from stentor.server.media.processors.images.deepseek_vl2 import DeepseekVL2Images
from stentor.server.media.processors.images.eagle import canvas as eagle_canvas
from stentor.server.media.processors.images.enlarged import KananaImages, PanguImages
from stentor.server.media.processors.images.gemma4 import Gemma4UnifiedImages
from stentor.server.media.processors.images.h2ovl import H2OVLImages
from stentor.server.media.processors.images.isaac import IsaacImages
from stentor.server.media.processors.images.kimi import KimiImages
from stentor.server.media.processors.images.lfm2_vl import Lfm2VlImages
from stentor.server.media.processors.images.llama4 import Llama4Images
from stentor.server.media.processors.images.minimax import MiniMaxM3Images
from stentor.server.media.processors.images.molmo2 import Molmo2Images, bilinear, tiling
from stentor.server.media.processors.images.nemotron import NemotronOmniImages
from stentor.server.media.processors.images.perception_lm import PerceptionLMImages
from stentor.server.media.processors.images.perception_lm import canvas as perception_canvas
from stentor.server.media.processors.images.phi3 import Phi3VImages
from stentor.server.media.processors.images.phi4 import Phi4Images, canvas
from stentor.server.media.processors.images.phi4_siglip import Phi4SiglipImages
from stentor.server.media.processors.images.step import StepImages, laid_out
from stentor.server.media.processors.images.tiles import resized

_SQUARE: Final = {"height": 16, "width": 16}
PROCESSORS: Final[dict[str, Any]] = {
    "cohere2": lambda: Cohere2VisionImages(size=_SQUARE, max_patches=6),
    "kimi": lambda: KimiImages(patch_size=4, max_patches=64),
    "lfm2_vl": lambda: Lfm2VlImages(
        encoder_patch_size=4, tile_size=16, min_image_tokens=2, max_image_tokens=6, max_tiles=6
    ),
    "llama4": lambda: Llama4Images(size=_SQUARE, max_patches=6),
    "molmo2": lambda: Molmo2Images(size=_SQUARE, patch_size=4, overlap_margins=[1, 1], max_crops=6),
    "nemotron": lambda: NemotronOmniImages(patch_size=4, min_num_patches=16, max_num_patches=96),
    "perception_lm": lambda: PerceptionLMImages(tile_size=16, max_num_tiles=6),
    "phi4": lambda: Phi4Images(size=_SQUARE, patch_size=4, dynamic_hd=6),
    "step": lambda: StepImages(size=_SQUARE, patch_size=24, max_image_size=64),
}
MADE: Final = [
    ("cohere2", (50, 21), (7, 3, 16, 16), [0.2221, 1.2467, 1.2296, 1.5946], {"num_patches": [7]}),
    ("cohere2", (30, 90), (4, 3, 16, 16), [0.1561, 1.2394, 1.799, 1.726], {"num_patches": [4]}),
    ("cohere2", (9, 12), (1, 3, 16, 16), [1.4005, 0.5634, 0.6749, 0.6311], {"num_patches": [1]}),
    ("kimi", (50, 21), (84, 3, 4, 4), [-0.2044, 0.7266, 0.2078, -1.0], {"image_grid_thw": [[1, 6, 14]]}),
    ("kimi", (30, 90), (96, 3, 4, 4), [-0.2944, 0.7182, 0.3804, -1.0], {"image_grid_thw": [[1, 16, 6]]}),
    ("kimi", (9, 12), (16, 3, 4, 4), [-0.304, 0.8407, 0.2078, -1.0], {"image_grid_thw": [[1, 4, 4]]}),
    (
        *("lfm2_vl", (50, 21), (3, 24, 48), [0.0112, 0.5173, 0.2549, 0.8824]),
        {
            **{"spatial_shapes": [[4, 4], [4, 4], [2, 6]], "image_sizes": [[8, 24]]},
            **{"image_rows": [1], "image_cols": [2]},
        },
    ),
    (
        *("lfm2_vl", (30, 90), (4, 24, 48), [-0.0111, 0.5335, 0.3725, 0.7961]),
        {
            **{"spatial_shapes": [[4, 4], [4, 4], [4, 4], [8, 2]], "image_sizes": [[32, 8]]},
            **{"image_rows": [3], "image_cols": [1]},
        },
    ),
    (
        *("lfm2_vl", (9, 12), (1, 24, 48), [0.2169, 0.3554, 0.1216, 0.3804]),
        {"spatial_shapes": [[4, 2]], "image_sizes": [[16, 8]], "image_rows": [1], "image_cols": [1]},
    ),
    ("llama4", (50, 21), (7, 3, 16, 16), [-0.3083, 0.7262, 0.6406, 0.8047], {"aspect_ratios": [[2, 3]]}),
    ("llama4", (30, 90), (4, 3, 16, 16), [-0.0162, 0.6458, 0.9219, 0.8672], {"aspect_ratios": [[3, 1]]}),
    ("llama4", (9, 12), (1, 3, 16, 16), [0.2386, 0.7645, 0.4531, 0.4141], {"aspect_ratios": [[1, 1]]}),
    (
        *("molmo2", (50, 21), (5, 16, 48), [-0.0468, 0.6628, 0.4431, -0.7255]),
        {"image_grids": [[2, 2, 2, 5]], "pooled": 2020},
    ),
    (
        *("molmo2", (30, 90), (5, 16, 48), [-0.0049, 0.6626, 0.7176, -0.2549]),
        {"image_grids": [[2, 2, 5, 2]], "pooled": 2020},
    ),
    (
        *("molmo2", (9, 12), (2, 16, 48), [0.6496, 0.3111, 0.0275, 0.2392]),
        {"image_grids": [[2, 2, 2, 2]], "pooled": 496},
    ),
    ("nemotron", (50, 21), (84, 48), [0.2221, 1.2471, 0.3792, 0.6709], {"image_grid_hw": [[6, 14]]}),
    ("nemotron", (30, 90), (96, 48), [0.1569, 1.2473, 0.6368, 0.0111], {"image_grid_hw": [[16, 6]]}),
    ("nemotron", (9, 12), (24, 48), [1.401, 0.5628, 0.1487, 0.9411], {"image_grid_hw": [[6, 4]]}),
    ("nemotron", (200, 7), (96, 48), [0.2371, 1.2418, 0.4386, 0.3871], {"image_grid_hw": [[2, 48]]}),
    ("perception_lm", (50, 21), (1, 3, 3, 16, 16), [0.0184, 0.6697, 0.6235, 0.8196], {}),
    ("perception_lm", (30, 90), (1, 3, 3, 16, 16), [-0.0172, 0.6612, 0.9294, 0.8902], {}),
    ("perception_lm", (9, 12), (1, 7, 3, 16, 16), [0.6494, 0.3157, 0.3255, 0.3098], {}),
    (
        *("phi4", (50, 21), (3, 3, 16, 16), [0.2026, 0.7101, 0.6091, -0.9451]),
        {"image_sizes": [[16, 32]], "num_img_tokens": [17], "unseen": 0},
    ),
    (
        *("phi4", (30, 20), (5, 3, 16, 16), [0.3158, 0.7326, 0.9222, -0.7961]),
        {"image_sizes": [[32, 32]], "num_img_tokens": [22], "unseen": 16},
    ),
    (
        *("phi4", (30, 90), (4, 3, 16, 16), [-0.0167, 0.6574, 0.9216, 0.451]),
        {"image_sizes": [[48, 16]], "num_img_tokens": [25], "unseen": 0},
    ),
    (
        *("phi4", (16, 16), (2, 3, 16, 16), [0.3782, 0.5839, 0.6078, 0.5686]),
        {"image_sizes": [[16, 16]], "num_img_tokens": [13], "unseen": 0},
    ),
    (
        *("step", (50, 21), (1, 3, 16, 16), [0.2222, 1.2266, 1.215, 1.5654]),
        {"num_local_patches": [2], "patch_newline_masks": [[False, False]], "squares": [2, 3, 24, 24]},
    ),
    (
        *("step", (30, 90), (1, 3, 16, 16), [0.1547, 1.1233, 1.7552, 1.6822]),
        {"num_local_patches": [3], "patch_newline_masks": [[True, True, False]], "squares": [3, 3, 24, 24]},
    ),
    (
        *("step", (200, 7), (1, 3, 16, 16), [-1.6155, 0.2879, -1.2667, -1.7631]),
        {
            **{"num_local_patches": [9], "squares": [9, 3, 24, 24]},
            **{"patch_newline_masks": [[False, False, True, False, False, True, False, False, False]]},
        },
    ),
    (
        *("step", (9, 12), (1, 3, 16, 16), [1.4021, 0.5543, 0.6895, 0.6457]),
        {"num_local_patches": [0], "patch_newline_masks": [[]]},
    ),
]
"""What transformers 5.23 makes with torchvision 0.28 of pictures of these widths and heights: the shape of its pixel
values; their mean and deviation, the sixth value of the first tile and the 21st of the last; and what else."""
LEVEL: Final = 0.016
"""Twice the distance of two values of a pixel: torchvision rounds once where Pillow rounds behind each direction."""


def waves(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(
        np.stack([127 + 120 * np.sin(x / (7 + c) + y / 11 * (c + 1)) for c in range(3)], axis=-1).astype(np.uint8)
    )


@pytest.mark.parametrize(("name", "size", "shape", "values", "others"), MADE)
def test_pictures_become_what_torchvision_makes_of_them(
    name: str, size: tuple[int, int], shape: tuple[int, ...], values: list[float], others: dict[str, Any]
) -> None:
    told = {"return_row_col_info": True} if name == "lfm2_vl" else {}
    found = PROCESSORS[name]()([waves(*size)], return_tensors="np", **told)
    if name == "phi4":
        found["pixel_values"] = found.pop("image_pixel_values")[0]
        found["unseen"] = (found.pop("image_attention_mask") == 0).sum()
    if "image_token_pooling" in found:
        found["pooled"] = found.pop("image_token_pooling").sum()
    if "pixel_values_local" in found:
        found["squares"] = found.pop("pixel_values_local").shape
    pixels = np.asarray(found.pop("pixel_values"))
    assert pixels.shape == shape
    assert pixels.dtype == np.float32
    first, last = pixels.reshape(len(pixels), -1)[[0, -1]]
    assert [pixels.mean(), pixels.std(ddof=1), first[5], last[20]] == pytest.approx(values, abs=LEVEL)
    found.pop("pixel_attention_mask", None)
    assert {key: np.asarray(value).tolist() for key, value in found.items()} == others


def test_a_picture_of_phi_4_that_would_be_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match="it would have 6 x 96 pixels, fewer than 10 on a side"):
        PROCESSORS["phi4"]()([waves(123, 1900)], return_tensors="np")


@pytest.mark.parametrize(
    ("size", "grid"), [((448, 449), (1, 2)), ((9000, 3000), (9, 3)), ((9000, 2999), (9, 3)), ((5, 9000), (1, 21))]
)
def test_a_canvas_of_phi_4_covers_a_picture_or_is_the_largest_of_its_shape(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert canvas(*size, 448, 36) == grid


@pytest.mark.parametrize(
    ("size", "squares"),
    [
        *(((728, 728), (0, 0)), ((728, 400), (1, 2)), ((729, 728), (2, 2)), ((3024, 3024), (6, 6))),
        *(((9000, 9000), (6, 6)), ((31, 3000), (6, 6)), ((32, 3000), (94, 1)), ((1, 1), (0, 0))),
    ],
)
def test_squares_of_step_are_cut_by_the_shape_of_a_picture(size: tuple[int, int], squares: tuple[int, int]) -> None:
    """The expected rows and columns were computed by transformers."""
    width, height = size
    layout = laid_out(height, width, 728, 504, 3024)
    assert (layout.rows, layout.columns) == squares


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        *(
            ((378, 378), (1, 1)),
            ((2000, 500), (1, 5)),
            ((100, 900), (1, 1)),
            ((1200, 1600), (3, 2)),
            ((50, 60), (1, 1)),
        ),
    ],
)
def test_squares_of_molmo_2_are_those_that_enlarge_or_shrink_a_picture_the_least(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    """The expected rows and columns were computed by transformers."""
    width, height = size
    assert tiling(height - 112, width - 112, 266, 8) == grid


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        *(((448, 448), (6, 6)), ((449, 448), (6, 6)), ((1000, 3000), (3, 9)), ((9000, 500), (18, 1))),
        *(((500, 9000), (1, 17)), ((3000, 3000), (6, 6))),
    ],
)
def test_a_canvas_of_perception_lm_is_that_on_which_a_picture_is_largest(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    """The expected columns and rows were computed by transformers."""
    assert perception_canvas(*size, 448, 36) == grid


def test_pictures_of_molmo_2_are_resized_as_torch_resizes_them_without_a_filter() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (3, 40, 30), dtype=np.uint8)
    for height, width in ((17, 11), (60, 50), (40, 30)):
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(picture)[None].float(), (height, width), mode="bilinear"
        )
        off = np.abs(bilinear(picture, height, width).astype(int) - theirs[0].round().numpy().astype(int))
        assert off.max() <= 1
        assert off.mean() < 0.01, "of rounding alone"


def test_pictures_are_resized_as_torch_resizes_them() -> None:
    """By the bilinear filter; the bicubic ones differ where a picture is noise."""
    picture = np.random.default_rng(1).integers(0, 256, (3, 40, 30), dtype=np.uint8)
    for height, width in ((17, 11), (60, 50), (40, 30)):
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(picture)[None], (height, width), mode="bilinear", antialias=True
        )
        off = np.abs(resized(picture, height, width, 2).astype(int) - theirs[0].numpy().astype(int))
        assert off.max() <= 1


def test_a_picture_of_one_row_keeps_all_of_its_patches() -> None:
    """transformers' mask ends before them."""
    found = PROCESSORS["lfm2_vl"]()([waves(11, 93)], return_tensors="np")
    assert found["pixel_attention_mask"].sum() == found["spatial_shapes"].prod() == 28
    assert found["pixel_values"].shape[1] == 28


@pytest.mark.parametrize(
    ("size", "inside"), [((50, 21), (48, 20)), ((30, 90), (16, 48)), ((16, 16), (32, 32)), ((99, 5), (96, 4))]
)
def test_a_picture_of_phi_3_is_enlarged_to_whole_tiles_and_shrunk_to_one(
    size: tuple[int, int], inside: tuple[int, int]
) -> None:
    drawn = waves(*size)
    turned = drawn.transpose(Image.Transpose.TRANSPOSE) if size[1] > size[0] else drawn
    wide = np.asarray(turned.resize(sorted(inside, reverse=True), Image.Resampling.BILINEAR))
    above, rows = -len(wide) % 16 // 2, -(-len(wide) // 16) * 16
    laid = np.full((rows, wide.shape[1], 3), 255, np.uint8)
    laid[above : above + len(wide)] = wide
    if turned is not drawn:
        laid = laid.transpose(1, 0, 2)
    mean, std = (torch.tensor(each) for each in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    values = ((torch.tensor(laid) / 255 - mean) / std).permute(2, 0, 1)
    found = Phi3VImages(size=_SQUARE, num_crops=6)([drawn], return_tensors="np")
    assert found["image_sizes"].tolist() == [[*laid.shape[:2]]]
    whole = torch.nn.functional.interpolate(values[None], (16, 16), mode="bicubic")[0]
    tiles = values.unflatten(1, (-1, 16)).unflatten(3, (-1, 16)).permute(1, 3, 0, 2, 4).flatten(0, 1)
    assert found["pixel_values"] == pytest.approx(torch.cat((whole[None], tiles)).numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("size", "columns", "rows"), [((50, 21), 3, 2), ((30, 90), 1, 3), ((16, 16), 1, 1), ((40, 40), 3, 3)]
)
def test_a_picture_of_deepseek_vl2_lies_on_the_canvas_that_keeps_most_of_it(
    size: tuple[int, int], columns: int, rows: int
) -> None:
    canvases = [[16 * across, 16 * down] for across in (1, 2, 3) for down in (1, 2, 3)]
    found = DeepseekVL2Images(size=_SQUARE, candidate_resolutions=canvases)([waves(*size)], return_tensors="np")
    assert found["image_sizes"].tolist() == [[16 * rows, 16 * columns]]
    drawn = [ImageOps.pad(waves(*size), each, color=(127, 127, 127)) for each in ((16, 16), (16 * columns, 16 * rows))]
    whole, laid = (torch.tensor(np.asarray(each)).permute(2, 0, 1) / 127.5 - 1 for each in drawn)
    tiles = [
        laid[:, 16 * down : 16 * down + 16, 16 * across : 16 * across + 16]
        for down in range(rows)
        for across in range(columns)
    ]
    assert found["pixel_values"] == pytest.approx(torch.stack((whole, *tiles)).numpy(), abs=1e-6)


def test_a_picture_of_phi_3_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match="it is 200 times as long as wide, expected at most 96 times"):
        Phi3VImages(size=_SQUARE, num_crops=6)([waves(400, 2)], return_tensors="np")


@pytest.mark.parametrize(("name", "least"), [("kimi", {"max_patches": 16}), ("llama4", {"max_patches": 1})])
def test_low_detail_is_fewer_patches_or_tiles(name: str, least: dict[str, int]) -> None:
    processor = PROCESSORS[name]()
    assert processor.low_detail.keys() == least.keys()
    whole, low = (processor([waves(64, 64)], return_tensors="np", **each)["pixel_values"] for each in ({}, least))
    assert len(low) < len(whole)


@pytest.mark.parametrize(
    ("size", "grid"),
    [((448, 448), (1, 1)), ((896, 448), (2, 1)), ((448, 1500), (1, 3)), ((2000, 2000), (3, 3)), ((10, 9), (1, 1))],
)
def test_tiles_of_eagle_are_those_that_distort_a_picture_the_least_with_enough_of_its_pixels(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    width, height = size
    assert eagle_canvas(height, width, 448, 1, 12) == grid


def test_sizes_of_published_files_of_minimax_m3_are_not_those_of_its_pictures() -> None:
    assert MiniMaxM3Images(size=[672, 672]).size == MiniMaxM3Images().size
    assert MiniMaxM3Images(size={"shortest_edge": 64, "longest_edge": 128}).size["longest_edge"] == 128


@pytest.mark.parametrize("size", [(50, 21), (30, 90), (9, 12)])
def test_squares_of_gemma4_are_those_that_one_patch_of_their_size_would_be(size: tuple[int, int]) -> None:
    squares: dict[str, Any] = {"patch_size": 2, "pooling_kernel_size": 3, "max_soft_tokens": 70}
    patches: dict[str, Any] = {"patch_size": 6, "pooling_kernel_size": 1, "max_soft_tokens": 70}
    found = Gemma4UnifiedImages(**squares)([waves(*size)], return_tensors="np")
    expected = Gemma4ImageProcessorPil(**patches)([waves(*size)], return_tensors="np")
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert np.array_equal(values, expected[name]), name


@pytest.mark.parametrize("size", [(50, 21), (30, 90), (16, 16), (99, 5), (40, 40)])
def test_one_grid_of_h2ovl_is_that_of_internvl(size: tuple[int, int]) -> None:
    drawn = waves(*size)
    theirs = GotOcr2ImageProcessorPil(
        size=_SQUARE, crop_to_patches=True, max_patches=6, image_mean=IMAGENET_DEFAULT_MEAN, image_std=[0.5] * 3
    )([drawn], return_tensors="np")
    ours = H2OVLImages(size=_SQUARE, use_msac=False, image_std=[0.5] * 3)([drawn], return_tensors="np")
    assert ours["pixel_values"] == pytest.approx(theirs["pixel_values"], abs=1e-5)


@pytest.mark.parametrize(
    ("size", "second", "first"),
    [((32, 16), (3, 2), (2, 1)), ((16, 16), (2, 2), (1, 1)), ((96, 16), (1, 1), (6, 1)), ((16, 48), (2, 2), (1, 3))],
)
def test_the_second_grid_of_h2ovl_has_no_side_that_divides_one_of_the_first(
    size: tuple[int, int], second: tuple[int, int], first: tuple[int, int]
) -> None:
    drawn = waves(*size)
    tiles = []
    for columns, rows in (second, first):
        wide = np.asarray(drawn.resize((columns * 16, rows * 16), Image.Resampling.BICUBIC))
        parts = wide.reshape(rows, 16, columns, 16, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 16, 16, 3)
        tiles += [*parts] if columns * rows > 1 else []
    tiles.append(np.asarray(drawn.resize((16, 16), Image.Resampling.BICUBIC)))
    values = (np.stack(tiles) / 255 - 0.5) / 0.5
    found = H2OVLImages(size=_SQUARE, image_mean=[0.5] * 3, image_std=[0.5] * 3)([drawn], return_tensors="np")
    assert found["pixel_values"] == pytest.approx(values.transpose(0, 3, 1, 2), abs=1e-5)


def test_a_picture_of_step_that_would_be_filled_up_to_a_larger_square_than_any_may_be_is_refused() -> None:
    images = StepImages()
    with pytest.raises(ValueError, match="it has 8193 pixels in a row, expected at most 8192"):
        images(Image.new("RGB", (8193, 1)), return_tensors="np")


@pytest.mark.parametrize("size", [(20, 30), (30, 20), (28, 28), (29, 40)])
def test_a_small_picture_of_openpangu_is_enlarged_before_it_is_resized(size: tuple[int, int]) -> None:
    drawn = waves(size[1], size[0])
    larger = drawn
    if min(size) <= 28:
        scale = 56 / min(size)
        larger = drawn.resize((int(scale * drawn.width), int(scale * drawn.height)), Image.Resampling.BICUBIC)
    settings: dict[str, Any] = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 1024}}
    expected = Qwen2VLImageProcessorPil(**settings)(larger, return_tensors="np")
    found = PanguImages(temporal_patch_size=1, **settings)(drawn, return_tensors="np")
    assert (found["image_grid_thw"] == expected["image_grid_thw"]).all()
    assert found["pixel_values"] == pytest.approx(expected["pixel_values"])


@pytest.mark.parametrize(
    ("size", "widest", "grid"),
    [
        ((30, 40), None, (8, 10)),
        ((90, 17), None, (23, 5)),
        ((64, 64), None, (12, 12)),  # of 16 by 16, which would be 44 tokens
        ((9, 9), None, (4, 4)),  # made larger
        ((400, 100), None, (24, 6)),
        ((5, 300), None, (2, 75)),
        ((5, 300), 4.0, (2, 8)),  # squeezed
        ((300, 5), 4.0, (42, 3)),  # one square wide
    ],
)
def test_pictures_of_deepseek_v41_have_the_patches_that_its_makers_code_gives_them(
    size: tuple[int, int], widest: float | None, grid: tuple[int, int]
) -> None:
    drawn = waves(size[1], size[0])
    rows, columns = grid
    whole = columns * 4, rows * 4
    expected = drawn.resize(whole) if widest and size[1] > 4 * size[0] else ImageOps.pad(drawn, whole, color=(127,) * 3)
    images = DeepseekV41Images(patch_size=4, max_image_tokens=30, min_pixels=256, max_wh_ratio=widest)
    found = images(drawn, return_tensors="np")
    assert found["image_grid_thw"].tolist() == [[1, rows, columns]]
    pixels = found["pixel_values"].reshape(rows, columns, 3, 4, 4).transpose(0, 3, 1, 4, 2).reshape(rows * 4, -1, 3)
    assert pixels == pytest.approx(np.asarray(expected) / 127.5 - 1, abs=1e-6)


@pytest.mark.parametrize("images", [KananaImages, PanguImages])
def test_a_narrow_picture_that_is_too_long_is_refused_before_it_is_enlarged(images: type[Any]) -> None:
    with pytest.raises(ValueError, match="its sides of 30000 and 1 pixels differ by more than 200 times"):
        images(patch_size=4)(Image.new("RGB", (1, 30_000)), return_tensors="np")


@pytest.mark.parametrize("size", [(7, 20), (20, 3), (8, 9)])
def test_a_picture_of_kanana_has_whole_squares_before_it_is_resized(size: tuple[int, int]) -> None:
    drawn = waves(size[1], size[0])
    larger = drawn
    if min(size) < 8:
        scale = 8 / min(size)
        sides = max(8, int(scale * drawn.width)), max(8, int(scale * drawn.height))
        larger = drawn.resize(sides, Image.Resampling.BICUBIC)
    settings: dict[str, Any] = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 1024}}
    expected = Qwen2VLImageProcessorPil(**settings)(larger, return_tensors="np")
    found = KananaImages(**settings)(drawn, return_tensors="np")
    assert (found["image_grid_thw"] == expected["image_grid_thw"]).all()
    assert found["pixel_values"] == pytest.approx(expected["pixel_values"])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((32, 32), (32, 32)),  # 64 patches of 4 pixels
        ((33, 30), (40, 32)),
        ((10, 100), (16, 104)),
        ((8, 8), (32, 32)),  # enlarged to 64 patches
        ((200, 100), (96, 48)),  # 288 patches
    ],
)
def test_a_picture_of_isaac_is_whole_squares_within_its_bounds(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    images = IsaacImages(patch_size=4, merge_size=2, min_patches=64, max_patches=288)
    found = images(waves(size[1], size[0]), return_tensors="np")
    rows, columns = found["image_grid_thw"][0, 1:].tolist()
    assert (4 * rows, 4 * columns) == expected
    assert found["pixel_values"].shape == (rows * columns, 48)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((32, 32), (8, 8)),
        ((33, 30), (8, 7)),  # of 56 whole patches
        ((8, 8), (4, 4)),  # enlarged to 16 patches
        ((200, 100), (14, 7)),  # one more column would make 120 of at most 112
    ],
)
def test_a_picture_of_phi_4_reasoning_vision_is_whole_patches_within_its_bounds(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    images = Phi4SiglipImages(patch_size=4, min_patches=16, max_patches=112)
    found = images(waves(size[1], size[0]), return_tensors="np")
    assert tuple(found["spatial_shapes"][0].tolist()) == expected
    assert found["pixel_values"].shape == (1, expected[0] * expected[1], 48)
    theirs = Siglip2ImageProcessorPil(patch_size=4, max_num_patches=int(np.prod(expected)))(waves(size[1], size[0]))
    assert theirs["spatial_shapes"][0] == expected
    assert found["pixel_values"][0] == pytest.approx(np.asarray(theirs["pixel_values"][0]), abs=1e-6)
