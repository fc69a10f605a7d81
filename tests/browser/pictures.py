"""Makes the pictures of the page in the guides: ``python -P -m stentor.tests.browser.pictures``."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from stentor.tests.browser.views import NARROW, VIEWS, WIDE, Stage, View, staged
from stentor.tests.browser.visitor import missing

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pictures"
PHONE: Final = "phone"
"""The picture of some views side by side as a phone shows them."""
NAMES: Final = (*VIEWS, PHONE)
ON_PHONE: Final = ("chat", "voice", "live")
QUALITY: Final = 70
"""Of WebP."""
_GAP: Final = 24


def main() -> int:
    if why := missing(speech=True):
        print(f"no pictures: {why}", file=sys.stderr)
        return 1
    with staged() as stage:
        for name, view in VIEWS.items():
            with stage.visited(view, WIDE, view.scheme) as page:
                save(picture(view, page), name, FOLDER)
        save(picture_on_phones(stage), PHONE, FOLDER)
    return 0


def picture(view: View, page: "Page") -> Image.Image:
    """Of a page that shows the view."""
    return _shot(page if view.part == view.tab else page.locator(f"#{view.part}"))


def picture_on_phones(stage: Stage) -> Image.Image:
    return _beside([_on_phone(stage, name) for name in ON_PHONE])


def save(image: Image.Image, name: str, folder: Path) -> None:
    image.save(folder / f"{name}.webp", quality=QUALITY, method=6)


def _on_phone(stage: Stage, name: str) -> Image.Image:
    with stage.visited(VIEWS[name], NARROW, "light") as page:
        return _shot(page)


def _shot(shown: "Page | Locator") -> Image.Image:
    return Image.open(io.BytesIO(shown.screenshot())).convert("RGB")


def _beside(images: list[Image.Image]) -> Image.Image:
    width = sum(image.width + _GAP for image in images) - _GAP
    whole = Image.new("RGB", (width, max(image.height for image in images)), "white")
    at = 0
    for image in images:
        whole.paste(image, (at, 0))
        at += image.width + _GAP
    return whole


if __name__ == "__main__":
    sys.exit(main())
