"""Mistral's conversations, by its makers' library and the tokenizers that it brings for its own tests."""

import json
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stentor.server.text.errors import TemplateError
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.interface import RenderRequest
from stentor.server.text.renderers.mistral import MistralRenderer, RendererError, find_file
from stentor.server.text.templates.placeholders import MediaText
from stentor.server.text.tokenizers.loading import load_tokenizer, number_tokenizer
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


def small_file(folder: Path, version: str = "v13", **more: object) -> Path:
    """A small tokenizer of bytes and special tokens; the default version knows thinking."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    source = json.loads((FILE.parent / "tekken_240911.json").read_text())
    names = [token.value for token in SpecialTokens]
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    sizes = {"num_vocab_tokens": 256, "default_vocab_size": 256 + len(names), "default_num_special_tokens": len(names)}
    config = {**source["config"], **sizes, "version": version}
    file = folder / "tekken.json"
    file.write_text(json.dumps({"config": config, "vocab": source["vocab"][:256], "special_tokens": special, **more}))
    return file


async def test_pictures_are_written_as_by_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    # its pixels, which another test compares, need OpenCV
    monkeypatch.setattr("mistral_common.tokens.tokenizers.image.transform_image", lambda *_: np.empty(0))
    file = small_file(tmp_path, "v3", image={"image_patch_size": 16, "max_image_size": 1024})
    renderer = MistralRenderer(TokenizerPool(load_tokenizer(tmp_path)), file)
    pictures = [Image.new("RGB", size) for size in ((32, 40), (20, 16))]
    texts = ["[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]", "[IMG][IMG][IMG_END]"]
    parts: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": "See [IMG]"}, {"type": "image"}]
    media = MediaText({"image": "[IMG]"}, {"image": texts})
    tokens = await renderer.render(RenderRequest(messages=[{"role": "user", "content": parts}], media=media))
    encoded = [b64encode(_png(each)).decode() for each in pictures]
    urls = iter([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{each}"}} for each in encoded])
    told: list[Any] = [{"role": "user", "content": [next(urls) if part["type"] == "image" else part for part in parts]}]
    theirs = MistralTokenizer.from_file(str(file)).encode_chat_completion(ChatCompletionRequest.from_openai(told))
    assert tokens == theirs.tokens
    assert media.order == ["image", "image"]
    assert renderer._pool.tokenizer.name_of(tokens[2]) == "[IMG]"


def _png(picture: Image.Image) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


async def test_reasoning_is_written_where_the_tokenizer_can(renderer: MistralRenderer, tmp_path: Path) -> None:
    thinking = MistralRenderer(TokenizerPool(number_tokenizer(1024)), small_file(tmp_path))
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
