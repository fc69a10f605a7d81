"""gpt-oss's conversations in the words of its makers' library, which checks the vocabulary that it is given."""

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.renderers.harmony import HarmonyRenderer, to_harmony
from stentor.server.text.renderers.interface import RenderRequest
from stentor.server.text.renderers.mistral import RendererError
from stentor.tests.fakes import byte_pool

openai_harmony = pytest.importorskip("openai_harmony")

TODAY = datetime.date(2025, 6, 28)
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    {"role": "assistant", "content": "Let me look.", "reasoning": "look it up", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "cold"},
    {"role": "assistant", "content": "Cold."},
]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": None},
}
VOCABULARY = os.environ.get("STENTOR_HARMONY_VOCABULARY")
"""Where the real vocabulary lies: the library takes no other, and it cannot be had from a package."""


def written(messages: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = to_harmony(RenderRequest(messages=messages, **fields), TODAY).to_dict()["messages"]
    return found


def test_every_message_goes_to_its_channel() -> None:
    said = written(MESSAGES, tools=[WEATHER], template_kwargs={"reasoning_effort": "low"})
    roles = [(m["role"], m.get("name"), m.get("channel"), m.get("recipient")) for m in said]
    assert roles == [
        ("system", None, None, None),
        ("developer", None, None, None),
        ("user", None, None, None),
        ("assistant", None, "analysis", None),
        ("assistant", None, "commentary", None),
        ("assistant", None, "commentary", "functions.weather"),
        ("tool", "functions.weather", "commentary", "assistant"),
        ("assistant", None, "final", None),
    ]
    system, developer, call = said[0]["content"][0], said[1]["content"][0], said[5]
    assert system["reasoning_effort"] == "Low"
    assert system["conversation_start_date"] == "2025-06-28"
    assert developer["instructions"] == "Be brief."
    assert developer["tools"]["functions"]["tools"][0]["name"] == "weather"
    assert call["content"] == [{"type": "text", "text": '{"city": "Oslo"}'}]
    assert call["content_type"] == "<|constrain|>json"


def test_tools_that_the_model_was_made_with_are_in_their_own_namespace() -> None:
    search: dict[str, Any] = {
        "type": "function",
        "function": {"name": "browser.search", "description": "Finds", "parameters": None},
    }
    call = {"id": "c2", "type": "function", "function": {"name": "browser.search", "arguments": '{"query": "Oslo"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c2", "content": "a city"},
    ]
    said = written(messages, tools=[search])
    roles = [(m["role"], m.get("name"), m.get("channel"), m.get("recipient")) for m in said]
    assert roles == [
        ("system", None, None, None),
        ("user", None, None, None),
        ("assistant", None, "analysis", "browser.search"),
        ("tool", "browser.search", "analysis", "assistant"),
    ]
    assert [tool["name"] for tool in said[0]["content"][0]["tools"]["browser"]["tools"]] == ["search"]
    code: dict[str, Any] = {
        "type": "function",
        "function": {"name": "python.python", "description": "Runs it", "parameters": None},
    }
    ran = {"id": "c3", "type": "function", "function": {"name": "python.python", "arguments": '{"code": "1 + 1"}'}}
    run: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [ran]}
    reported, _, made = written([messages[0], run], tools=[code])
    assert (made["recipient"], made["channel"], made["content"][0]["text"]) == ("python", "analysis", "1 + 1")
    assert reported["content"][0]["tools"]["python"] == {"name": "python", "description": "Runs it", "tools": []}
    both: Any = written(messages, tools=[search, WEATHER])
    assert [tool["name"] for tool in both[1]["content"][0]["tools"]["functions"]["tools"]] == ["weather"]


def test_there_is_no_developer_where_nobody_instructs() -> None:
    assert [m["role"] for m in written([{"role": "user", "content": "hi"}])] == ["system", "user"]


@pytest.mark.parametrize(
    ("messages", "fields", "said"),
    [
        ([{"role": "tool", "content": "x", "tool_call_id": "nobody"}], {}, "names no call"),
        (MESSAGES, {"template_kwargs": {"reasoning_effort": "huge"}}, "low, medium or high"),
        ([{"role": "wizard", "content": "x"}], {}, "'wizard'"),
    ],
)
def test_what_cannot_be_written_is_told(messages: list[dict[str, Any]], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        written(messages, **fields)


def test_a_vocabulary_that_is_not_there_or_not_the_real_one_is_one_line(tmp_path: Path) -> None:
    pool = byte_pool()
    with pytest.raises(RendererError, match=r"there is no o200k_base\.tiktoken in"):
        HarmonyRenderer(pool, tmp_path)
    (tmp_path / "o200k_base.tiktoken").write_text("IQ== 0\n")
    with pytest.raises(RendererError, match="cannot be used: invalid tiktoken vocab file: hash mismatch"):
        HarmonyRenderer(pool, tmp_path / "o200k_base.tiktoken")
    assert "TIKTOKEN_ENCODINGS_BASE" not in os.environ


@pytest.mark.anyio
@pytest.mark.skipif(VOCABULARY is None, reason="STENTOR_HARMONY_VOCABULARY names no vocabulary")
async def test_the_prompt_is_the_one_that_the_format_s_page_shows() -> None:
    assert VOCABULARY is not None
    renderer = HarmonyRenderer(byte_pool(), Path(VOCABULARY))
    tokens = await renderer.render(RenderRequest(messages=MESSAGES, tools=[WEATHER]))
    text = renderer._encoding.decode(tokens)
    assert text.startswith("<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.")
    assert "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions" in text
    assert (
        "<|start|>assistant to=functions.weather<|channel|>commentary <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>' in text
    )
    assert text.endswith("<|start|>assistant<|channel|>final<|message|>Cold.<|end|><|start|>assistant")
    assert "look it up" not in text, "what was thought before a final answer is dropped"


class Broken:
    """An encoding of the library's that does not take what it is given."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def render_conversation_for_completion(self, *_arguments: Any) -> list[int]:
        raise self._error


class PanicException(BaseException):
    """Has the name of the library's own exceptions, which the library does not export."""


@pytest.mark.anyio
@pytest.mark.parametrize("error", [openai_harmony.HarmonyError("no such\nrole"), ValueError("x"), PanicException("x")])
async def test_what_the_library_fails_on_is_refused_in_words(error: BaseException) -> None:
    renderer = HarmonyRenderer.__new__(HarmonyRenderer)
    renderer._pool, renderer._encoding = byte_pool(), Broken(error)
    with pytest.raises(TemplateError, match="harmony renderer"):
        await renderer.render(RenderRequest(messages=MESSAGES))
