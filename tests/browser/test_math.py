"""Formulas in answers, in Chromium: what is typeset, what stays text, and what a hostile one may do."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from stentor.tests.browser.visitor import CHROMIUM, MILLISECONDS, browser_flags, missing
from stentor.tests.fakes import fake_state
from stentor.tests.server.responses.sockets import serving

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SHOW = """async (text) => {
  const { Growing } = await import("/page/markdown.js");
  document.querySelector(".here")?.remove();
  const place = document.createElement("div");
  place.className = "here";
  document.body.append(place);
  const growing = new Growing(place);
  growing.show(text);
  const read = () => [...place.querySelectorAll(".math")].map((each) => each.querySelector("math") ?
    `${each.className.includes("display") ? "block" : "inline"} ${each.textContent}` : `text ${each.textContent}`);
  for (let frames = 0; frames < 100 && !place.querySelector("math"); frames++) {
    await new Promise((done) => setTimeout(done, 20));
  }
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  growing.show(`${text}.`); // what is known is there at once
  return { formulas: read(), links: place.querySelectorAll("a, img, [href], [src], [style*=url]").length };
}"""
"""The formulas of a text that has been shown, and whatever leads elsewhere."""


@pytest.fixture(scope="module")
async def page() -> AsyncIterator["Page"]:
    from playwright.async_api import async_playwright

    async with serving(fake_state()) as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=browser_flags(None))
        page = await browser.new_page()
        page.set_default_timeout(MILLISECONDS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        await page.goto(f"http://{address}/")
        yield page
        await browser.close()
        assert not wrong, "the policy forbids nothing that formulas need"


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("$a^2$ and \\(b_1\\)", ["inline a2", "inline b1"]),
        ("$$x$$", ["block x"]),
        ("So\n$$\nx\n= y\n$$\nthen \\[z\\]", ["block x=y", "block z"]),
        ("here $$x$$ and\n\n\\[\ny\n\\]", ["block x", "block y"]),
        ("- $\\frac{1}{2}$\n\n| a |\n|---|\n| $x$ |\n\n> $y$", ["inline 12", "inline x", "inline y"]),
        ("the $n$th of $x, y$ and $2n$", ["inline n", "inline x,y", "inline 2n"]),
    ],
)
async def test_formulas_are_typeset_inline_and_on_lines_of_their_own(
    page: "Page", text: str, formulas: list[str]
) -> None:
    assert (await page.evaluate(SHOW, text))["formulas"] == formulas


@pytest.mark.parametrize(
    "text",
    [
        "`$x^2$` and\n```\n$$x^2$$\n\\[y\\]\n```\n",
        "It costs $5, or $10, US$ 3 (or CA$ 4).",
        "$HOME and $PATH, $HOME/$USER",
        "an end that has not come: $x^2",
        "nor here:\n$$\n\\frac{1}{2",
        "nor here: \\(x and \\[y",
    ],
)
async def test_code_prices_and_formulas_without_an_end_are_text(page: "Page", text: str) -> None:
    assert (await page.evaluate(SHOW, f"$z$\n\n{text}"))["formulas"] == ["inline z"]


@pytest.mark.parametrize(
    "formula",
    [
        "\\href{javascript:alert(1)}{x}",
        "\\url{https://x.test/}",
        "\\includegraphics{https://x.test/a.png}",
        "\\class{wrong}{x}",
        "\\def\\a{\\a\\a}\\a",
        "\\newcommand{\\a}{\\a\\a}\\a",
        "\\frac{1}{",
        "x+" * 2000,
    ],
)
async def test_what_leads_elsewhere_defines_macros_or_is_too_long_stays_as_it_was_written(
    page: "Page", formula: str
) -> None:
    found = await page.evaluate(SHOW, f"$z$ ${formula}$")
    assert found == {"formulas": ["inline z", f"text {formula}"], "links": 0}


async def test_a_formula_is_no_larger_than_it_may_be(page: "Page") -> None:
    await page.evaluate(SHOW, "$z$ $\\rule{1000em}{1000em}$ $\\hspace{1000em}x$")
    widths = "[...document.querySelectorAll('.here math')].map((math) => math.scrollWidth / 16)"  # in em
    assert max(await page.evaluate(widths)) < 25


async def test_many_formulas_are_typeset_in_parts_of_frames(page: "Page") -> None:
    await page.evaluate(SHOW, "$z$")
    script = """async (text) => {
      const { Growing } = await import("/page/markdown.js");
      const place = document.querySelector(".here");
      place.replaceChildren();
      new Growing(place).show(text);
      const before = place.querySelectorAll("math").length;
      let frames = 0;
      while (place.querySelectorAll("math").length < 600) {
        frames++;
        await new Promise(requestAnimationFrame);
      }
      return [before, frames];
    }"""
    before, frames = await page.evaluate(script, " ".join(f"$x_{{{number}}}$" for number in range(600)))
    assert before == 0
    assert frames > 1
