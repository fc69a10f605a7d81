"""The views of the page, and what brings a browser to each: for pictures of them, and for axe.

A server with the demo models answers and is spoken to; a script answers what these would not show.
"""

import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from anyio.from_thread import start_blocking_portal

from stentor.loadtest.server_process import ServerProcess
from stentor.server.config.config import McpConfig, ToolServer
from stentor.tests.browser.visitor import MILLISECONDS, browsing, spoken, visiting
from stentor.tests.server.responses.sockets import serving
from stentor.tests.server.tools.scripted import Script, call, state_of
from stentor.tests.server.tools.tool_process import tool_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Scheme = Literal["light", "dark"]
WIDE: Final = (1120, 800)
NARROW: Final = (390, 760)
"""Of a phone."""
SPOKEN: Final = "What is the capital of France?"
WRITTEN: Final = "Write a Python function that checks whether a number is prime."
TOKENS: Final = 160
"""Of a written answer."""
MARKDOWN: Final = r"""### Sums of squares

The first $n$ squares add up to

$$\sum_{k=1}^{n} k^2 = \frac{n(n+1)(2n+1)}{6}$$

| n | sum |
|---:|----:|
| 3 | 14 |
| 10 | **385** |

```python
def squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6  # exact
```
"""
CALLS: Final = (
    call("calc__add", a=2, b=40),
    "The first sum is 42. Now the second one." + call("calc__add", a=42, b=27),
)
LOAD: Final = """() => {
  const ask = { messages: [{ role: "user", content: "Tell me a story." }], max_tokens: 200 };
  const send = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(ask) };
  for (let count = 0; count < 3; count++) fetch("v1/chat/completions", send);
}"""
"""So that there is something to be seen of a server's figures."""


@dataclass(frozen=True)
class View:
    part: str
    """Id of what it shows: a tab of the page, or a form or a dialog in one."""
    show: Callable[["Page", Path], None]
    """Brings a page there that has just been opened; it may play a recording."""
    tab: str = "chat"
    turns: Sequence[str] = ()
    """What a script answers in place of the demo model."""
    scheme: Scheme = "light"
    """Of its picture."""


@dataclass(frozen=True)
class Stage:
    """A browser whose microphone plays a question every half minute, and a server that answers it."""

    browser: "Browser"
    address: str
    sound: Path
    """The question."""

    @contextmanager
    def visited(self, view: View, size: tuple[int, int], scheme: Scheme) -> Iterator["Page"]:
        with ExitStack() as open_:
            address = open_.enter_context(_scripted(view.turns)) if view.turns else self.address
            page = open_.enter_context(visiting(self.browser, f"{address}/#{view.tab}"))
            page.set_viewport_size({"width": size[0], "height": size[1]})
            page.emulate_media(color_scheme=scheme)
            page.reload()  # what stands beside a conversation depends on the width at first
            page.locator("#status", has_text=" at 127.0.0.1").wait_for(state="attached")
            view.show(page, self.sound)
            yield page


@contextmanager
def staged() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        greedy = Path(folder) / "generation_config.json"
        greedy.write_text(json.dumps({"temperature": 0}))
        with ServerProcess(["--demo", "--max-model-len", "2048", "--generation-config", str(greedy)]) as server:
            address = f"http://127.0.0.1:{server.port}"
            sound = Path(folder) / "question.wav"
            sound.write_bytes(spoken(address, SPOKEN, before=0.5, after=30))
            with browsing(sound) as browser:
                yield Stage(browser, address, sound)


@contextmanager
def _scripted(turns: Sequence[str]) -> Iterator[str]:
    with (
        tool_server() as tools,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_serving(turns, tools)) as address,
    ):
        yield address


@asynccontextmanager
async def _serving(turns: Sequence[str], tools: str) -> AsyncIterator[str]:
    config = McpConfig(servers=(ToolServer("calc", f"{tools}/mcp"),))
    async with serving(state_of(Script(turns), config, served_names=("scripted",))) as address:
        yield f"http://{address}"


# ---- what is done there


def _ask(page: "Page", text: str) -> None:
    page.fill("#chat-input", text)
    page.press("#chat-input", "Enter")


def _set(page: "Page", field: str, value: str) -> None:
    """Also where it is folded away."""
    page.locator(field).evaluate("(field, value) => (field.value = value)", value)


def _answered(page: "Page") -> None:
    page.locator("#chat-messages .assistant .figures-line").last.wait_for()


def _scripts_have_no_speed(page: "Page") -> None:
    page.locator(".figures-line").evaluate_all("(lines) => lines.forEach((line) => line.remove())")


def _chat(page: "Page", _: Path) -> None:
    _set(page, "#chat-tokens", str(TOKENS))
    _ask(page, WRITTEN)
    _answered(page)


def _markdown(page: "Page", _: Path) -> None:
    _ask(page, "What do the first n squares add up to?")
    page.locator("#chat-messages .math.display math").wait_for()
    _answered(page)
    _scripts_have_no_speed(page)


def _tool_calls(page: "Page", _: Path) -> None:
    _set(page, "#chat-mcp", "calc")
    _ask(page, "What is 2 + 40, and what is 27 more?")
    page.locator("#chat-messages .calls form").get_by_text("Approve").click()
    page.locator("#chat-messages .assistant").nth(1).get_by_text("Approve").wait_for()
    _scripts_have_no_speed(page)


def _as_code(page: "Page", _: Path) -> None:
    page.fill("#chat-input", WRITTEN)
    page.click("#code-show")
    page.select_option("#code-language", "python")
    page.locator("#code-text", has_text="OpenAI").wait_for()


def _schema(page: "Page", _: Path) -> None:
    page.locator("#schema-show").dispatch_event("click")
    first = page.locator("#schema-fields li").first
    first.locator("[name=name]").fill("colour")
    first.locator("[name=kind]").select_option("enum")
    first.locator("[name=values]").fill("red, green, blue")


def _voice(page: "Page", _: Path) -> None:
    page.click("#voice-log summary")
    page.click("#voice-start")
    page.locator("#voice-count", has_text="1").wait_for()
    page.locator("#voice-state", has_text="Listening …").wait_for()


def _live(page: "Page", _: Path) -> None:
    from playwright.sync_api import expect

    page.evaluate(LOAD)
    page.locator("#live-models tr", has_text="ready").first.wait_for()
    expect(page.locator("#live-cards polyline").first).to_have_attribute(
        "points", re.compile("( .*){8}"), timeout=MILLISECONDS
    )


def _form(name: str, shown: str, text: str) -> View:
    def show(page: "Page", sound: Path) -> None:
        if name == "transcribe":
            page.set_input_files("#transcribe-file", sound)
            page.select_option("#transcribe-format", "srt")
        page.click(f"#{name} button.main")
        page.locator(shown, has_text=text).wait_for()

    return View(name, show, "tools")


VIEWS: Final[Mapping[str, View]] = {
    "chat": View("chat", _chat),
    "markdown": View("chat", _markdown, turns=(MARKDOWN,), scheme="dark"),
    "tool-calls": View("chat", _tool_calls, turns=CALLS),
    "as-code": View("code", _as_code),
    "schema": View("schema", _schema),
    "voice": View("voice", _voice, "voice"),
    "live": View("live", _live, "live"),
    "transcription": _form("transcribe", "#transcribe-text", "-->"),
    "speech": _form("speak", "#speak-note", "whole sound"),
    "embeddings": _form("embed", "#embed-note", "Cosines"),
    "ranking": _form("rank", "#rank-list", "sofa"),
}
"""By the names of their pictures."""
