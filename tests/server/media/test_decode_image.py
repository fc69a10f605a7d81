"""Pictures as a model gets them: upright, in RGB, on white; and none that is too large or broken."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stentor.loadtest.hostile_files import IMAGES
from stentor.server.media.decoding.decode_image import decode_image, rehearse
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.refusal import Refusal

LIMITS = DecodedLimits(pixels=10_000, edge=1000)
RED, WHITE = (255, 0, 0), (255, 255, 255)


def written(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def decoded(image: Image.Image, form: str = "PNG", **options: Any) -> Image.Image:
    found = decode_image(written(image, form, **options), LIMITS)
    assert found.mode == "RGB"
    return found


def colours(image: Image.Image) -> set[object]:
    return {image.getpixel((x, y)) for x in range(image.width) for y in range(image.height)}


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG"])
def test_each_format_is_read(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    found = decoded(Image.new("RGB", (4, 3), RED), form, **options)
    assert found.size == (4, 3)
    assert np.abs(np.asarray(found, np.int16) - RED).max() <= 2


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "group4"])
def test_compressed_tiffs_are_read(compression: str) -> None:
    image = Image.new("1" if compression == "group4" else "RGB", (4, 3), 1 if compression == "group4" else RED)
    found = decoded(image, "TIFF", compression=compression)
    assert colours(found) == {WHITE if compression == "group4" else RED}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_its_exif_says(orientation: int) -> None:
    # which corner of the stored picture is red, where the upright one has it at the top left
    stored = {1: (0, 0), 2: (3, 0), 3: (3, 1), 4: (0, 1), 5: (0, 0), 6: (0, 3), 7: (1, 3), 8: (1, 0)}[orientation]
    image = Image.new("RGB", (4, 2) if orientation < 5 else (2, 4))
    image.putpixel(stored, RED)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decoded(image, "PNG", exif=exif.tobytes())
    assert (found.size, found.getpixel((0, 0))) == ((4, 2), RED)


@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"x" * 60_000])
def test_broken_exif_does_not_spoil_a_picture(exif: bytes) -> None:
    assert colours(decoded(Image.new("RGB", (2, 2), RED), "PNG", exif=exif)) == {RED}


def test_what_is_transparent_is_white() -> None:
    half = Image.new("RGBA", (2, 1), (255, 0, 0, 128))
    half.putpixel((1, 0), (0, 0, 0, 0))
    assert colours(decoded(half)) == {(255, 127, 127), WHITE}
    assert colours(decoded(Image.new("LA", (1, 1), (0, 0)))) == {WHITE}
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    assert colours(decoded(palette, transparency=1)) == {RED, WHITE}
    assert colours(decoded(palette, "GIF", transparency=1)) == {RED, WHITE}
    assert colours(decoded(Image.new("RGB", (1, 1), RED), transparency=RED)) == {WHITE}
    assert colours(decoded(Image.new("L", (1, 1), 7), transparency=7)) == {WHITE}


def test_palettes_grey_and_black_and_white_become_colours() -> None:
    assert colours(decoded(Image.new("RGB", (1, 1), RED).convert("P", palette=Image.Palette.ADAPTIVE))) == {RED}
    assert colours(decoded(Image.new("L", (1, 1), 7))) == {(7, 7, 7)}
    assert colours(decoded(Image.new("1", (1, 1), 1))) == {WHITE}


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_cut_off(form: str) -> None:
    grey = Image.fromarray(np.array([[0, 256, 0x8000, 0xFFFF]], np.uint16))
    assert [pixel[0] for pixel in np.asarray(decoded(grey, form))[0]] == [0, 1, 128, 255]


@pytest.mark.parametrize(("values", "shown"), [([0.0, 0.5, 1.0], [0, 127, 255]), ([0, 128, 999], [0, 128, 255])])
def test_floats_are_parts_of_white_or_eight_bits(values: list[float], shown: list[int]) -> None:
    found = decoded(Image.fromarray(np.array([values], np.float32)), "TIFF")
    assert [pixel[0] for pixel in np.asarray(found)[0]] == shown


def test_cmyk_becomes_rgb() -> None:
    found = decoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    assert np.abs(np.asarray(found, np.int16) - RED).max() <= 3


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_of_an_animation_the_first_picture_is_taken(form: str) -> None:
    more = [Image.new("RGB", (4, 4), (0, 0, value)) for value in (100, 200)]
    options = {"lossless": True} if form == "WEBP" else {}
    first = Image.new("RGB", (4, 4), RED)
    assert colours(decoded(first, form, save_all=True, append_images=more, **options)) == {RED}


def test_a_colour_profile_is_not_looked_at() -> None:
    plain = Image.new("RGB", (2, 2), (10, 20, 30))
    assert colours(decoded(plain, icc_profile=b"\0" * 5000)) == {(10, 20, 30)}
    found = decoded(plain, icc_profile=b"nonsense")
    assert not found.info


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG"])
def test_a_file_that_is_cut_short_is_refused(form: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    whole = written(noise, form)
    decode_image(whole, LIMITS)
    for length in (0, 1, 12, 30, len(whole) // 2, len(whole) * 3 // 4):
        with pytest.raises(Refusal):
            decode_image(whole[:length], LIMITS)


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG"])
def test_a_picture_of_too_many_pixels_is_refused_by_its_head(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    for size in ((101, 100), (1001, 1)):
        with pytest.raises(Refusal, match=r"pixels; this server decodes at most") as refused:
            decode_image(written(Image.new("RGB", size), form, **options), LIMITS)
        assert refused.value.code == "media_too_large"
    assert decode_image(written(Image.new("RGB", (100, 100)), form, **options), LIMITS).size == (100, 100)


def test_what_follows_a_picture_is_not_looked_at() -> None:
    page = b"<html><script>alert(1)</script>%PDF-1.4 PK\3\4"
    assert colours(decode_image(written(Image.new("RGB", (2, 2), RED)) + page, LIMITS)) == {RED}


def test_a_photo_of_a_phone_with_a_second_picture_in_it_is_one_picture() -> None:
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), (0, 0, 255))
    found = decoded(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(np.asarray(found, np.int16) - RED).max() <= 3


def test_after_a_rehearsal_a_broken_file_writes_nothing_into_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    rehearse()
    for name in ("tiff of broken lzw", "tiff of broken jpeg", "tiff that is packed by nobody", "tiff of lists"):
        with pytest.raises(Refusal):
            decode_image(IMAGES[name], LIMITS)
    assert capfd.readouterr().err == ""
