"""The pictures of the page in the guides: each view has one, and each is shown."""

import re
from pathlib import Path

import pytest

from stentor.server.web import INDEX
from stentor.tests.browser.pictures import FOLDER, PHONE, take
from stentor.tests.browser.views import VIEWS
from stentor.tests.browser.visitor import missing
from stentor.tests.server.test_page import CODE

PICTURES = {f"{name}.webp" for name in (*VIEWS, PHONE)}


def test_each_view_of_the_page_has_a_picture() -> None:
    tabs = set(re.findall(r'<section id="([\w-]+)" role="tabpanel"', CODE[INDEX])) - {"tools"}  # its forms are views
    parts = set(re.findall(r'<(?:form id="([\w-]+)" class="card tool"|dialog id="([\w-]+)")', CODE[INDEX]))
    assert {view.part for view in VIEWS.values()} == tabs | {form or dialog for form, dialog in parts}


def test_the_pictures_are_those_of_the_views_small_and_shown_in_the_guide() -> None:
    kept = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(kept) == PICTURES
    assert sum(kept.values()) < 600_000
    assert set(re.findall(r"\(pictures/([\w-]+\.webp)\)", (FOLDER.parent / "playground.md").read_text())) == PICTURES


@pytest.mark.browser
@pytest.mark.alone  # it speaks in real time
@pytest.mark.proof
@pytest.mark.skipif(bool(missing(speech=True)), reason=missing(speech=True))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_each_picture_can_be_made_again(demo_model: object, tmp_path: Path) -> None:
    take(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == PICTURES
