"""Which renderer a model gets, and whether requests may bring templates."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.server.app.application import create_app
from stentor.server.config.models import RendererName
from stentor.server.parsing.output import settle_output
from stentor.server.text.renderers.choose import TemplateRenderer, choose_renderer
from stentor.server.text.renderers.interface import RenderRequest
from stentor.server.text.renderers.mistral import RendererError
from stentor.server.text.renderers.plain import CodedRenderer
from stentor.tests.fakes import byte_pool, fake_state


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3"])
def test_a_model_with_a_template_is_written_to_by_it(name: RendererName, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    pool = byte_pool()
    assert pool.chat_template.has("default")
    assert isinstance(choose_renderer("auto", pool, tmp_path, None), TemplateRenderer)
    assert isinstance(choose_renderer(name, pool, tmp_path, None), CodedRenderer)


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("deepseek_v32", "reasoning deepseek_r1, tool calls deepseek_v32"),
        ("deepseek_v4", "reasoning deepseek_r1, tool calls deepseek_v4"),
        ("deepseek_v41", "reasoning deepseek_r1, tool calls deepseek_v41"),
        ("kimi_k3", "reasoning kimi_k3, tool calls kimi_k3"),
    ],
)
def test_a_format_that_is_code_chooses_the_parsers_as_a_template_does(
    name: RendererName, formats: str, tmp_path: Path
) -> None:
    renderer = choose_renderer(name, byte_pool(), tmp_path, None)
    assert isinstance(renderer, CodedRenderer)
    assert str(settle_output("auto", "auto", renderer.marks, "")) == formats


@pytest.mark.parametrize(
    ("name", "said"),
    [("mistral", r"there is no tekken\.json"), ("harmony", "name its vocabulary too")],
)
def test_a_renderer_that_cannot_be_had_is_one_line(name: RendererName, said: str, tmp_path: Path) -> None:
    with pytest.raises(RendererError, match=said):
        choose_renderer(name, byte_pool(), tmp_path, None)


class Remembering:
    """Writes every conversation as one token, and keeps it."""

    def __init__(self) -> None:
        self.seen: list[RenderRequest] = []

    def takes_tools(self, chat_template: str | None) -> bool:
        return True

    async def render(self, conversation: RenderRequest) -> list[int]:
        self.seen.append(conversation)
        return [65]


async def _ask(path: str, body: dict[str, Any], **fields: Any) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(fake_state(**fields)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, json={"messages": [{"role": "user", "content": "hi"}], **body})


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_every_conversation_goes_through_the_renderer(path: str) -> None:
    renderer = Remembering()
    answer = await _ask(path, {"max_tokens": 1, "chat_template_kwargs": {"a": 1}}, renderer=renderer)
    assert answer.status_code == 200, answer.text
    (seen,) = renderer.seen
    assert seen.messages == [{"role": "user", "content": "hi"}]
    assert seen.template_kwargs == {"a": 1}


@pytest.mark.anyio
async def test_renderers_know_of_calls_and_forms_that_a_request_wants() -> None:
    renderer = Remembering()
    tool = {"type": "function", "function": {"name": "f"}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "f"}}):
        body = {"max_tokens": 1, "tools": [tool], "tool_choice": choice, "response_format": form}
        await _ask("/v1/chat/completions", body, renderer=renderer)
    assert [seen.must_call for seen in renderer.seen] == [False, False, True, False]
    assert [len(seen.tools) for seen in renderer.seen] == [1, 0, 1, 1]
    assert [len(seen.forbidden_tools) for seen in renderer.seen] == [0, 1, 0, 0]
    assert [seen.response_format for seen in renderer.seen] == [form] * 4


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_templates_of_requests_are_taken_only_where_the_operator_says_so(path: str) -> None:
    body = {"chat_template": "{{ 1 }}", "max_tokens": 1}
    refused = await _ask(path, body, trusts_templates=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template"
    assert "--trust-request-chat-template" in refused.json()["error"]["message"]
    assert (await _ask(path, body, trusts_templates=True)).status_code == 200
    assert (await _ask(path, body | {"chat_template": "default"}, trusts_templates=False)).status_code == 200
