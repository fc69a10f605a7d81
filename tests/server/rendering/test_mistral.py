"""Mistral's conversations, by its makers' library and the tokenizers that it brings for its own tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.interface import RenderRequest
from stentor.server.text.renderers.mistral import MistralRenderer, RendererError, find_file
from stentor.server.text.tokenizers.loading import number_tokenizer
from stentor.tests.fakes import byte_pool

mistral_common = pytest.importorskip("mistral_common")
FILE = Path(mistral_common.__file__).parent / "data" / "mistral_instruct_tokenizer_240323.model.v3"
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]},
    {"role": "assistant", "content": None, "reasoning": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "cold"},
]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "x", "parameters": {"type": "object"}}}

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def renderer() -> MistralRenderer:
    return MistralRenderer(TokenizerPool(number_tokenizer(32768)), FILE)


def text(renderer: MistralRenderer, tokens: list[int]) -> str:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    decoded: str = renderer._tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)
    return decoded.replace("▁", " ")


async def test_a_conversation_with_calls_is_written_by_the_library(renderer: MistralRenderer) -> None:
    tokens = await renderer.render(RenderRequest(messages=MESSAGES, tools=[WEATHER]))
    said = text(renderer, tokens)
    assert tokens[0] == 1
    assert said.startswith("<s>")
    assert said.index("[AVAILABLE_TOOLS]") < said.index("[INST]") < said.index("[TOOL_CALLS]")
    assert said.endswith('"call_id": "abcdefghi"}[/TOOL_RESULTS]')
    assert "Be brief." in said


def thinking_file(folder: Path) -> Path:
    """A small tokenizer of the version that knows thinking, of bytes and special tokens."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    source = json.loads((FILE.parent / "tekken_240911.json").read_text())
    names = [token.value for token in SpecialTokens]
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    sizes = {"num_vocab_tokens": 256, "default_vocab_size": 256 + len(names), "default_num_special_tokens": len(names)}
    config = {**source["config"], **sizes, "version": "v13"}
    file = folder / "tekken.json"
    file.write_text(json.dumps({"config": config, "vocab": source["vocab"][:256], "special_tokens": special}))
    return file


async def test_reasoning_is_written_where_the_tokenizer_can(renderer: MistralRenderer, tmp_path: Path) -> None:
    thinking = MistralRenderer(TokenizerPool(number_tokenizer(1024)), thinking_file(tmp_path))
    for name in ("reasoning", "reasoning_content"):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", name: "hm"},
            {"role": "user", "content": "c"},
        ]
        assert "[THINK]hm[/THINK]b" in text(thinking, await thinking.render(RenderRequest(messages=messages)))
        assert "hm" not in text(renderer, await renderer.render(RenderRequest(messages=messages)))


async def test_an_answer_can_be_continued(renderer: MistralRenderer) -> None:
    begun = [*MESSAGES[:2], {"role": "assistant", "content": "It is"}]
    tokens = await renderer.render(
        RenderRequest(messages=begun, add_generation_prompt=False, continue_final_message=True)
    )
    assert text(renderer, tokens).endswith("It is")


@pytest.mark.parametrize(
    ("messages", "fields", "said"),
    [
        ([{"role": "tool", "content": "x"}], {}, "Mistral's renderer refused"),
        ([{"role": "user", "content": 3}], {}, "Mistral's renderer refused"),
        ([], {}, "There are no messages"),
        (MESSAGES, {"chat_template": "x"}, "takes no chat_template"),
    ],
)
async def test_what_cannot_be_written_is_told_in_one_line(
    renderer: MistralRenderer, messages: list[dict[str, Any]], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(TemplateError, match=said) as caught:
        await renderer.render(RenderRequest(messages=messages, **fields))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


async def test_a_file_that_is_no_tokenizer_or_anauxiliary_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    found = find_file(tmp_path)
    assert found is not None
    with pytest.raises(RendererError, match=r"tekken\.json is no tokenizer of Mistral's"):
        MistralRenderer(byte_pool(), found)
    with pytest.raises(RendererError, match="32768 tokens, but the model's tokenizer has"):
        MistralRenderer(byte_pool(), FILE)
    assert find_file(tmp_path / "nowhere") is None
