"""Pictures of Molmo: squares that overlap, and the share of a picture in each patch."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stentor.server.media.processors.images.base import Scaling
from stentor.server.media.processors.images.molmo import MolmoImages, laid

_SCALING = Scaling(2, 1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
_PATCH, _SIDE, _MARGIN = 4, 32, 8
"""Pixels: of a patch, a square, and of what squares share on either side."""


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, height, width), dtype=np.uint8)


def test_pictures_are_resized_as_torch_resizes_floats_and_stand_in_the_middle_of_black() -> None:
    picture = noise(40, 30)
    found = laid(picture, 32, 48, _SCALING)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(picture)[None] / 255, (32, 24), mode="bilinear", antialias=True
    )
    np.testing.assert_allclose(found.values[:, :, 12:36], theirs[0].numpy(), atol=1e-5)
    assert not found.values[:, :, :12].any()
    assert not found.values[:, :, 36:].any()
    assert found.real.tolist() == [[12 <= column < 36 for column in range(48)]] * 32


def test_squares_overlap_and_shares_are_those_of_the_square_behind() -> None:
    """The canvas is 2 by 1 windows of 16 pixels, with 8 on every side: 48 by 32."""
    images = MolmoImages(size={"height": _SIDE, "width": _SIDE}, patch_size=_PATCH, overlap_margins=[2, 2], max_crops=2)
    picture = noise(46, 25)
    found = images.tensors([picture], _SCALING, images)
    assert found["image_sizes"].tolist() == [[48, 32]]
    mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (_SCALING.mean, _SCALING.std))
    canvas = laid(picture, 48, 32, _SCALING)
    normed = (canvas.values - mean) / std
    whole, first, second = found["pixel_values"]
    np.testing.assert_allclose(whole, (laid(picture, 32, 32, _SCALING).values - mean) / std, atol=1e-6)
    np.testing.assert_array_equal(first, normed[:, :32])
    np.testing.assert_array_equal(second, normed[:, 16:])
    real = torch.from_numpy(canvas.real.astype(np.float32))
    shares = torch.nn.functional.avg_pool2d(real[None, None], _PATCH)[0, 0]
    np.testing.assert_allclose(found["image_masks"][0], shares[:8].flatten())
    np.testing.assert_allclose(found["image_masks"][1], shares[4:].flatten())
    assert set(found["image_masks"][2].tolist()) == {-1.0}
    assert 0 < shares[0, 0] < 1, "a patch in part"


def test_low_detail_is_one_square() -> None:
    images = MolmoImages(size={"height": _SIDE, "width": _SIDE}, patch_size=_PATCH, overlap_margins=[2, 2])
    many, few = (
        images([Image.new("RGB", (90, 60))], return_tensors="np", **given)["pixel_values"].shape
        for given in (dict[str, Any](), images.low_detail)
    )
    assert few == (2, 3, _SIDE, _SIDE)
    assert many[0] > 2


def test_a_picture_of_which_nothing_would_be_left_is_refused() -> None:
    with pytest.raises(ValueError, match="it is 90 times as long as wide, expected at most 32 times"):
        laid(noise(90, 1), 32, 32, _SCALING)
