"""Axe, which looks for what keeps people from reading or using a page, finds nothing in any view, and the
pictures of the views can be made again."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from stentor.tests.browser.pictures import PHONE, picture, picture_on_phones, save
from stentor.tests.browser.views import NARROW, VIEWS, WIDE, Stage, staged
from stentor.tests.browser.visitor import missing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.proof,
    pytest.mark.skipif(bool(missing(speech=True)), reason=missing(speech=True)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PANELS: Final = ("#settings-show", "#history-show")
"""Of a phone: the first puts away what lies over the conversation, the second shows the list there."""
REAL_TIME: Final = pytest.param("voice", marks=pytest.mark.alone)
"""The view of a spoken conversation."""


@pytest.fixture(scope="module")
def stage(demo_model: object) -> Iterator[Stage]:
    with staged() as stage:
        yield stage


@pytest.mark.parametrize("name", [name if name != "voice" else REAL_TIME for name in VIEWS])
def test_its_picture_is_made_and_axe_finds_nothing_on_a_screen_or_a_phone_in_light_or_dark_colours(
    stage: Stage, name: str, tmp_path: Path
) -> None:
    view = VIEWS[name]
    found = []
    with stage.visited(view, WIDE, view.scheme) as page:
        save(picture(view, page), name, tmp_path)
        page.evaluate(AXE_SCRIPT)
        for width, height in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                found += _violations(page, f"{width} {scheme}")
        for panel in PANELS if view.part == "chat" else ():
            page.click(panel)
            found += _violations(page, panel)
    assert not found, "\n".join(found)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.webp"]


@pytest.mark.alone
def test_a_picture_of_phones_is_made(stage: Stage, tmp_path: Path) -> None:
    save(picture_on_phones(stage), PHONE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{PHONE}.webp"]


def _violations(page: "Page", look: str) -> list[str]:
    violations = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [
        f"{look}: {violation['id']}: {node['html'][:300]}: {node['failureSummary']}"
        for violation in violations
        for node in violation["nodes"]
    ]
