"""Conversations on the page: Markdown, branches, what is kept, what is shown under an answer.

All tests share a server, whose model says what the test wants, and a page; each begins a new chat.
"""

import ast
import json
import shlex
from pathlib import Path

import pytest

from stentor.tests.browser.visit import Visit
from stentor.tests.browser.visitor import missing
from stentor.tests.fakes import says

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing(speech=False)), reason=missing(speech=False)),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MARKDOWN = """# Title
### Part
Some **bold**, *thin*, ~~old~~ and `x < y` with a_name_like_this.

1. one
2. two
   - [x] done

> quoted

| a | b |
|---|--:|
| 1 | **2** |

```python
def f(): return "<b>"  # why
```
"""
HOSTILE = (
    "<img src=x onerror=alert(1)> [a](javascript:alert(1)) ![p](https://x.test/p.png) [w](https://x.test/a) "
    "[d](data:text/html,hi)"
)


async def test_an_empty_chat_shows_what_is_served_and_questions_to_begin_with(visit: Visit) -> None:
    from playwright.async_api import expect

    await expect(visit.page.locator(".welcome li")).to_have_text("fake-model chat, 4,096 tokens of context")
    await expect(visit.page.locator("#chat-input")).to_be_focused()
    visit.engine.answer = says("Well.")
    await visit.page.locator(".samples button").first.click()
    await expect(visit.page.locator("#chat-messages .assistant .said")).to_have_text("Well.")


async def test_markdown_is_shown_as_elements_and_code_can_be_copied(visit: Visit) -> None:
    await visit.ask("Show me", MARKDOWN, fresh=True)
    said = visit.page.locator("#chat-messages .assistant .said")
    shown = await said.evaluate('(said) => said.innerHTML.replace(/ (type|tabindex|role|aria-label)="[^"]*"/g, \'\')')
    for part in (
        "<h2>Title</h2><h3>Part</h3>",
        "<strong>bold</strong>, <em>thin</em>, <s>old</s> and <code>x &lt; y</code> with a_name_like_this.",
        '<ol><li><p>one</p></li><li><p>two</p><ul><li class="task">',
        "<blockquote><p>quoted</p></blockquote>",
        '<th class="">a</th><th class="right">b</th>',
        '<td class="right"><strong>2</strong></td>',
        '<span class="code-word">def</span>',
        '<span class="code-string">"&lt;b&gt;"</span>',
    ):
        assert part in shown, shown
    await said.locator(".code button").click()
    assert await visit.page.evaluate("navigator.clipboard.readText()") == 'def f(): return "<b>"  # why'


async def test_hostile_markdown_makes_no_element_that_does_anything(visit: Visit) -> None:
    await visit.ask("Attack", HOSTILE, fresh=True)
    said = visit.page.locator("#chat-messages .assistant .said")
    assert await said.locator("img, script, iframe").count() == 0
    links = await said.locator("a").evaluate_all("(links) => links.map((link) => [link.href, link.rel])")
    assert links == [[f"https://x.test/{end}", "noopener noreferrer"] for end in ("p.png", "a")]
    assert "<img src=x" in await said.inner_text()


async def test_a_text_of_many_marks_is_read_in_time_that_grows_with_its_length(visit: Visit) -> None:
    texts = [mark * 20_000 for mark in ("*a", "`", "[", "> ", "- ", "**", "_a ", "|", "$a", "\\(", "![a](", "~~", "h")]
    script = """async (texts) => {
      const { Growing } = await import("/page/markdown.js");
      return texts.map((text) => { const place = document.createElement("div"); new Growing(place).show(text);
                                   return place.textContent.length > 0; });
    }"""
    await visit.page.evaluate(script, texts)  # one that took the square of the time would not end before the timeout


async def test_edited_questions_and_second_answers_are_branches(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await visit.ask("One?", "First.", fresh=True)
    visit.engine.answer = says("Second.")
    await page.click("#chat-messages .assistant [title='Answer anew']")
    await expect(page.locator("#chat-messages .assistant .branches")).to_contain_text("2/2")
    await expect(page.locator("#chat-messages .assistant .said")).to_have_text("Second.")
    assert await visit.said() == ["One?", "Second."]
    await page.click("#chat-messages .user [title='Edit and send again']")
    visit.engine.answer = says("Third.")
    await page.fill("[aria-label='Edited message']", "Two?")
    await page.press("[aria-label='Edited message']", "Enter")
    await expect(page.locator("#chat-messages .user .branches")).to_contain_text("2/2")
    await expect(page.locator("#chat-messages .assistant .said")).to_have_text("Third.")
    assert visit.prompt == "<user>Two?\n<assistant>"
    await page.click("#chat-messages .user [aria-label='Earlier version']")
    assert await visit.said() == ["One?", "Second."]
    await page.click("#chat-messages .assistant [aria-label='Earlier version']")
    assert await visit.said() == ["One?", "First."]
    await visit.ask("And?", "So.")
    assert visit.prompt == "<user>One?\n<assistant>First.\n<user>And?\n<assistant>"


async def test_an_answer_that_is_stopped_keeps_its_text_and_can_go_on(visit: Visit) -> None:
    from playwright.async_api import expect

    page, engine = visit.page, visit.engine
    await page.click("#chat-clear")
    engine.answer, engine.delay, engine.burst = says("word ", repeat=True), 0.01, 1
    await page.fill("#chat-input", "Go")
    await page.press("#chat-input", "Enter")
    answer = page.locator("#chat-messages .assistant")
    await expect(answer.locator(".said")).to_contain_text("word word")
    await page.keyboard.press("Escape")
    await expect(page.locator("#chat-messages .assistant.cut")).to_be_visible()
    engine.delay, engine.burst, engine.answer = 0.0, 64, says("and the end.")
    kept = (await visit.said())[-1]
    await page.click("[title='Go on where the answer ended']")
    await expect(answer.locator(".said")).to_contain_text("and the end.")
    await expect(page.locator("#chat-messages .assistant:not(.cut)")).to_be_visible()
    assert (await visit.said())[-1].startswith(kept.strip())
    assert visit.prompt.endswith(f"<assistant>{kept.strip()}") or visit.prompt.rstrip().endswith(kept.strip())


async def test_thoughts_are_folded_and_tool_calls_are_shown_and_answered(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    await page.click("#chat-clear")
    await page.fill("#chat-tools", json.dumps([tool]))
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    await visit.ask("Weather?", f"<think>Ask the tool.</think>{call}")
    answer = page.locator("#chat-messages .assistant").last
    await expect(answer.locator(".thoughts")).not_to_have_attribute("open", "")
    assert await answer.locator(".thoughts span").text_content() == "Ask the tool."
    await expect(answer.locator(".calls summary")).to_have_text("Calls weather")
    await expect(answer.locator(".calls pre")).to_contain_text('"city": "Rome"')
    visit.engine.answer = says("It rains.")
    await page.fill("[aria-label='Result of weather']", "rain")
    await page.click(".calls form button")
    await expect(page.locator("#chat-messages .assistant .said").last).to_have_text("It rains.")
    assert "rain" in visit.prompt
    await page.fill("#chat-tools", "")


async def test_conversations_outlast_a_reload_and_are_searched_renamed_exported_imported_and_deleted(
    visit: Visit, tmp_path: Path
) -> None:
    from playwright.async_api import expect

    page = visit.page
    await visit.ask("About whales", "They are **large**.", fresh=True)
    await visit.ask("About mice", "They are small.", fresh=True)
    await page.reload()
    await expect(page.locator("#chat-messages .assistant .said")).to_have_text("They are small.")
    await page.fill("#history-search", "large")
    titles = page.locator("#history-list .title")
    await expect(titles).to_have_text(["About whales"])
    await titles.first.click()
    await expect(page.locator("#chat-messages .assistant .said strong")).to_have_text("large")
    await page.click("[aria-label='Rename About whales']")
    await page.fill("[aria-label='Title']", "Sea")
    await page.press("[aria-label='Title']", "Enter")
    await expect(titles).to_have_text(["Sea"])
    async with page.expect_download() as got:
        await page.click("#history-export")
    file = tmp_path / "conversations.json"
    await (await got.value).save_as(file)
    page.once("dialog", lambda dialog: dialog.accept())
    await page.click("[aria-label='Delete Sea']")
    await expect(titles).to_have_count(0)
    await expect(page.locator(".welcome")).to_be_visible()
    await page.set_input_files("#history-file", file)
    await page.fill("#history-search", "whales")
    await titles.get_by_text("Sea").first.click()
    await expect(page.locator("#chat-messages .assistant .said strong")).to_have_text("large")
    await page.fill("#history-search", "")
    file.write_text(
        '{"format": "stentor-conversations", "conversations": [{"id": "a", "title": "", "nodes": {}, "leaf": "b"}]}'
    )
    await page.set_input_files("#history-file", file)
    await expect(page.locator("#chat-messages .wrong .said")).to_contain_text("is damaged")


async def test_settings_belong_to_a_conversation_and_presets_to_all(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.click("#chat-clear")
    await page.fill("#chat-system", "Be brief.")
    await page.fill("#chat-tokens", "3")
    page.once("dialog", lambda dialog: dialog.accept("Terse"))
    await page.click("#preset-save")
    await visit.ask("Terse?", "Yes indeed.")
    assert visit.prompt.startswith("<system>Be brief.")
    await expect(page.locator("#chat-messages .assistant.limited .said")).to_have_text("Yes")
    await page.fill("#chat-system", "")
    await page.fill("#chat-tokens", "")
    await visit.ask("Long?", "Yes indeed.", fresh=True)
    await expect(page.locator("#chat-messages .assistant .said")).to_have_text("Yes indeed.")
    await page.locator("#history-list .title").get_by_text("Terse?").click()
    await page.reload()
    await expect(page.locator("#preset-list option")).to_have_text(["none", "Terse"])
    await page.click("#chat-clear")
    await page.fill("#chat-system", "Else.")
    await page.select_option("#preset-list", "Terse")
    assert await page.input_value("#chat-system") == "Be brief."
    await page.click("#preset-delete")
    await expect(page.locator("#preset-list option")).to_have_text(["none"])
    for field in ("system", "tokens"):
        await page.fill(f"#chat-{field}", "")


async def test_the_context_is_gauged_and_tokens_tell_how_probable_they_were(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.click("#chat-clear")
    await page.click("#chat-settings summary")
    await page.select_option("#chat-logprobs", "5")
    await visit.ask("Hi", "Yes.")
    asked = len(visit.engine.streams[-1].prompt)
    await expect(page.locator("#chat-context")).to_have_text(f"{asked + 5} / 4,096 tokens")
    await page.click("#chat-messages [title='Probabilities of tokens']")
    tokens, likely = page.locator("#chat-messages .tokens span"), page.locator("#chat-messages .likely")
    assert (await tokens.all_inner_texts())[:4] == ["Y", "e", "s", "."]
    await expect(likely).to_be_hidden()
    await tokens.nth(1).hover()
    await expect(likely).to_contain_text('"e" 77.88 %')
    await page.hover("#chat-input")
    await expect(likely).to_be_hidden()
    await page.focus("#chat-messages [role=listbox]")
    await expect(likely).to_contain_text('"Y" 77.88 %')
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(likely).to_contain_text('"s" 77.88 %')
    await page.keyboard.press("End")
    await expect(page.locator(f"#{await tokens.last.get_attribute('id')}")).to_have_attribute("aria-selected", "true")
    await tokens.first.dispatch_event("click")  # all that comes of a touch
    await expect(likely).to_contain_text('"Y" 77.88 %')
    await page.select_option("#chat-logprobs", "")
    await page.click("#chat-settings summary")


async def test_a_conversation_is_shown_as_a_program_that_sends_it(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await visit.ask("It's `this`?", "Yes.", fresh=True)
    await page.fill("#chat-temperature", "0.5")
    await page.fill("#chat-input", "And that?")
    await page.click("#code-show")
    text = page.locator("#code-text pre")
    expected = [
        {"role": "user", "content": "It's `this`?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And that?"},
    ]
    command = shlex.split((await text.inner_text()).replace("\\\n", ""))
    body = json.loads(command[command.index("-d") + 1])
    assert command[2].endswith("/v1/chat/completions")
    assert (body["messages"], body["temperature"]) == (expected, 0.5)
    await page.select_option("#code-language", "python")
    calls = [node for node in ast.walk(ast.parse(await text.inner_text())) if isinstance(node, ast.Call)]
    call = max(calls, key=lambda node: len(node.keywords))
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert (given["messages"], given["temperature"], given["stream"]) == (expected, 0.5, True)
    await page.select_option("#code-language", "js")
    await expect(text).to_contain_text('import OpenAI from "openai";')
    await page.keyboard.press("Escape")
    await expect(page.locator("#code")).to_be_hidden()
    for field in ("temperature", "input"):
        await page.fill(f"#chat-{field}", "")


async def test_a_form_writes_the_schema_and_reads_it_again(visit: Visit) -> None:
    from playwright.async_api import expect

    page = visit.page
    await page.click("#chat-clear")
    await page.click("#schema-show")
    first = page.locator("#schema-fields li").first
    await first.locator("[name=name]").fill("colour")
    await first.locator("[name=kind]").select_option("enum")
    await page.click("#schema-use")
    await expect(page.locator("#schema-note")).to_have_text("colour needs choices.")
    await first.locator("[name=values]").fill("red, green")
    await first.locator("[name=description]").fill("of the sky")
    await page.click("#schema-add")
    second = page.locator("#schema-fields li").last
    await second.locator("[name=name]").fill("ages")
    await second.locator("[name=kind]").select_option("array")
    await second.locator("[name=required]").uncheck()
    await page.click("#schema-use")
    written = json.loads(await page.input_value("#chat-schema"))
    assert written == {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green"], "description": "of the sky"},
            "ages": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["colour"],
        "additionalProperties": False,
    }
    await page.click("#schema-show")
    await expect(page.locator("#schema-fields li")).to_have_count(2)
    await expect(first.locator("[name=values]")).to_have_value("red, green")
    await page.keyboard.press("Escape")
    assert json.loads(await page.input_value("#chat-schema")) == written
    await page.fill("#chat-schema", json.dumps({**written, "anyOf": []}))
    await page.click("#schema-show")
    await expect(page.locator("#schema-note")).to_contain_text("as text")
    await expect(page.locator("#schema-use")).to_be_disabled()
    await page.keyboard.press("Escape")
    await page.fill("#chat-schema", "")
