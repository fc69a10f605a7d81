"""The page is served as it lies on disk: open, self-contained, and under a policy that lets nothing else in."""

import hashlib
import html
import json
import re
from importlib.resources import files

import pytest

from stentor.server.middleware.access_control import AccessControl
from stentor.server.web import FILES, INDEX, PATHS
from stentor.tests.browser.pictures import FOLDER as GUIDE_PICTURES
from stentor.tests.browser.pictures import NAMES
from stentor.tests.browser.views import VIEWS
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio

FOLDER = files("stentor.server.web")
CODE = {name: (FOLDER / name).read_text() for name in FILES}
TEMML = "1ab19148afe0dbc836b7a74f344071b3f3a70a7a8259ae4049e76894fcdf8d95"
"""SHA-256 of dist/temml.min.js in the npm package temml 0.13.5."""


async def test_every_file_is_open_and_under_the_policy() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("key")))) as client:
        for path, name in PATHS.items():
            response = await client.get(path)
            assert response.status_code == 200, path
            told = response.text.replace('name="webrtc" content="yes"', 'name="webrtc" content="no"')  # as it is here
            assert told == CODE[name]
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
        assert (await client.get("/")).headers["content-type"] == "text/html; charset=utf-8"
        assert (await client.get("/page/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await client.get("/page/index.html")).status_code == 401
        assert (await client.get("/page/__init__.py")).status_code == 401
        assert (await client.get("/page/../auth.py")).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401


async def test_what_a_browser_has_is_not_sent_again() -> None:
    async with in_memory(fake_state()) as client:
        first = await client.get("/page/app.js")
        assert first.headers["cache-control"] == "no-cache"
        again = await client.get("/page/app.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_addresses_are_relative_to_the_prefix() -> None:
    async with in_memory(fake_state(access=AccessControl(root_path='/a"b'))) as client:
        assert '<base href="/a&quot;b/">' in (await client.get("/")).text


def test_there_is_nothing_on_disk_that_is_not_served_and_nothing_served_that_is_not_there() -> None:
    on_disk = {
        entry.name for entry in FOLDER.iterdir() if entry.name.rpartition(".")[2] in ("html", "css", "js", "svg")
    }
    assert on_disk == set(FILES)


def test_the_page_is_small() -> None:
    assert sum(len(code.encode()) for code in CODE.values()) < 400_000


def test_what_typesets_formulas_is_what_npm_has_under_its_licence() -> None:
    licence, code = CODE["temml.js"].split("\n*/\n")
    assert hashlib.sha256(code.removesuffix("\nexport default temml;\n").encode()).hexdigest() == TEMML
    for head in (licence, CODE["math.css"].partition("*/")[0]):
        assert "Permission is hereby granted, free of charge" in head


@pytest.mark.parametrize("name", [name for name in FILES if name != "temml.js"])
def test_nothing_comes_from_elsewhere(name: str) -> None:
    code = CODE[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"https?://|url\(|@import|<script(?! type=\"module\" src=)|\son\w+=|style=|innerHTML|eval\(", code
    )
    for module in re.findall(r'from "\./(.*?)"', code):
        assert module in FILES


def test_every_control_has_a_name_and_every_element_that_code_asks_for_is_there() -> None:
    page = CODE[INDEX]
    ids = set(re.findall(r'id="([\w-]+)"', page))
    asked = set(re.findall(r'element\("([\w-]+)"\)', "".join(CODE.values())))
    assert asked <= ids
    labelled = set(re.findall(r'for="([\w-]+)"', page))
    for control in re.findall(r"<(?:input|select|textarea)[^>]*>", page):
        (id,) = re.findall(r'id="([\w-]+)"', control)
        inside = re.search(rf'<label>(?:(?!</label>).)*id="{id}"', page, re.DOTALL)
        assert id in labelled or inside or "aria-label" in control, control


ALIKE = {
    "Stentor",
    "Text",
    "Chat",
    "Top p",
    "Top k",
    "Min p",
    "srt",
    "vtt",
    "curl",
    "Python",
    "JavaScript",
    "English",
    "Deutsch",
}
"""Texts that are the same in every language."""


def test_every_text_of_the_page_is_there_in_german_and_no_other() -> None:
    body = CODE[INDEX].partition("<body>")[2].partition("<noscript>")[0]
    shown = re.findall(r">([^<]+)<", body) + re.findall(r'(?:placeholder|title|aria-label)="([^"]+)"', body)
    texts = {" ".join(html.unescape(text).split()) for text in shown}
    code = "".join(text for name, text in CODE.items() if name.endswith(".js") and name != "german.js")
    texts |= {json.loads(text) for text in re.findall(r'\bt\(("(?:[^"\\]|\\.)*")', code)}
    german = {
        json.loads(key): json.loads(value)
        for key, value in re.findall(r'^  ("(?:[^"\\]|\\.)*"): ("(?:[^"\\]|\\.)*"),$', CODE["german.js"], re.MULTILINE)
    }
    wanted = {text for text in texts if re.search("[A-Za-z]", text)} - ALIKE
    assert (wanted - set(german), set(german) - wanted) == (set(), set())
    for text, translated in german.items():
        assert text.count("{}") == translated.count("{}"), text


def test_each_view_of_the_page_has_a_picture() -> None:
    tabs = set(re.findall(r'<section id="([\w-]+)" role="tabpanel"', CODE[INDEX])) - {"tools"}  # its forms are views
    parts = set(re.findall(r'<(?:form id="([\w-]+)" class="card tool"|dialog id="([\w-]+)")', CODE[INDEX]))
    assert {view.part for view in VIEWS.values()} == tabs | {form or dialog for form, dialog in parts}


def test_the_pictures_are_those_of_the_views_small_and_shown_in_the_guide() -> None:
    names = {f"{name}.webp" for name in NAMES}
    kept = {path.name: path.stat().st_size for path in GUIDE_PICTURES.iterdir()}
    assert set(kept) == names
    assert sum(kept.values()) < 600_000
    guide = (GUIDE_PICTURES.parent / "playground.md").read_text()
    assert set(re.findall(r"\(pictures/([\w-]+\.webp)\)", guide)) == names
