"""Pictures as the SDKs send them, in each protocol: what a vision model receives, and how a text model refuses."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from msgspec.structs import replace

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.server.config.media import MediaConfig, MediaCounts
from stentor.server.media.collect import TEXT_ONLY, Accepted, adds_special_tokens
from stentor.server.text.renderers.choose import TemplateRenderer
from stentor.server.text.renderers.interface import RenderRequest
from stentor.tests.fakes import byte_pool, fake_state
from stentor.tests.server.harness import on_loopback

pytestmark = pytest.mark.anyio

PNG = "data:image/png;base64,AAAA"
SEES = Accepted.of(MediaSpec({"image": 5}), MediaConfig(counts=MediaCounts(image=2)))
TEXT = {"type": "text", "text": "What is this?"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
BLOCK: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PART: Any = {"type": "input_image", "image_url": PNG, "detail": "auto"}


class SeenMessages(TemplateRenderer):
    """Renders the texts, and remembers all."""

    messages: list[Any]
    adds_special_tokens: bool

    async def render(self, request: RenderRequest) -> list[int]:
        self.adds_special_tokens = request.add_special_tokens
        self.messages = [dict(message) for message in request.messages]
        texts = [{**message, "content": "x"} for message in request.messages]
        return await super().render(replace(request, messages=texts))


@asynccontextmanager
async def clients(accepted: Accepted) -> AsyncIterator[tuple[Any, Any, SeenMessages]]:
    seen = SeenMessages(byte_pool())
    state = fake_state(renderer=seen)
    state = replace(state, chat=replace(state.chat, accepted=accepted))
    async with (
        on_loopback(state) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as ours,
        anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as theirs,
    ):
        yield ours, theirs, seen


async def chat(sdk: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, images: int) -> None:
    content: Any = [TEXT, *[CHAT_IMAGE] * images]
    await sdk.chat.completions.create(model="fake", messages=[{"role": "user", "content": content}], max_tokens=2)


async def responses(sdk: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, images: int) -> None:
    content: Any = [{"type": "input_text", "text": "What is this?"}, *[PART] * images]
    await sdk.responses.create(model="fake", input=[{"role": "user", "content": content}], max_output_tokens=16)


async def tool_output(sdk: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, images: int) -> None:
    call: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c", "output": [PART] * images}
    await sdk.responses.create(model="fake", input=[call, output], max_output_tokens=16)


async def messages(_: openai.AsyncOpenAI, sdk: anthropic.AsyncAnthropic, images: int) -> None:
    content: Any = [TEXT, *[BLOCK] * images]
    await sdk.messages.create(model="fake", messages=[{"role": "user", "content": content}], max_tokens=2)


async def count_tokens(_: openai.AsyncOpenAI, sdk: anthropic.AsyncAnthropic, images: int) -> None:
    content: Any = [TEXT, *[BLOCK] * images]
    await sdk.messages.count_tokens(model="fake", messages=[{"role": "user", "content": content}])


async def tokenize(sdk: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic, images: int) -> None:
    body = {"messages": [{"role": "user", "content": [TEXT, *[CHAT_IMAGE] * images]}]}
    await sdk.post(str(sdk.base_url.copy_with(path="/tokenize")), body=body, cast_to=object)


Ask = Callable[[openai.AsyncOpenAI, anthropic.AsyncAnthropic, int], Any]
WAYS = [
    (chat, "messages[0].content[{}]"),
    (responses, "input[0].content[{}]"),
    (messages, "messages[0].content[{}]"),
    (count_tokens, "messages[0].content[{}]"),
    (tokenize, "messages[0].content[{}]"),
]


@pytest.mark.parametrize("ask", [ask for ask, _ in WAYS])
async def test_a_model_that_sees_is_told_where_the_pictures_are(ask: Ask) -> None:
    async with clients(SEES) as (openai_sdk, anthropic_sdk, seen):
        await ask(openai_sdk, anthropic_sdk, 2)
        assert seen.messages[-1]["content"] == [TEXT, {"type": "image"}, {"type": "image"}]


@pytest.mark.parametrize("ask", [ask for ask, _ in WAYS])
@pytest.mark.parametrize("accepted", [SEES, Accepted({}, closed=True), TEXT_ONLY], ids=["sees", "closed", "text only"])
async def test_a_prompt_begins_with_bos_as_transformers_has_it(ask: Ask, accepted: Accepted) -> None:
    async with clients(accepted) as (openai_sdk, anthropic_sdk, seen):
        await ask(openai_sdk, anthropic_sdk, 0)
        assert seen.adds_special_tokens == (accepted is not TEXT_ONLY)


@pytest.mark.parametrize(
    ("template", "added"), [("USER: {{ messages[0].content }}", True), ("<image>{{ bos_token }}", False)]
)
def test_a_template_that_writes_bos_wherever_it_stands_gets_no_other(template: str, added: bool) -> None:
    assert adds_special_tokens(None, SEES, template) == added


@pytest.mark.parametrize("wish", [True, False])
@pytest.mark.parametrize("accepted", [SEES, TEXT_ONLY], ids=["sees", "text only"])
async def test_a_request_may_say_whether_it_does(wish: bool, accepted: Accepted) -> None:
    said: Any = [{"role": "user", "content": "hi"}]
    async with clients(accepted) as (sdk, _, seen):
        await sdk.chat.completions.create(
            model="fake", messages=said, max_tokens=2, extra_body={"add_special_tokens": wish}
        )
        assert seen.adds_special_tokens == wish


async def test_it_is_told_of_those_in_the_outputs_of_tools_too() -> None:
    async with clients(SEES) as (openai_sdk, anthropic_sdk, seen):
        await tool_output(openai_sdk, anthropic_sdk, 1)
    before, *told, behind = seen.messages[-1]["content"]
    assert told == [{"type": "image"}]
    assert (before["text"], behind["text"]) == ("<tool_response>\n", "\n</tool_response>"), (
        "its template knows no tools"
    )


@pytest.mark.parametrize(("ask", "field"), WAYS)
@pytest.mark.parametrize(
    ("accepted", "place", "why"), [(TEXT_ONLY, 1, "takes no images"), (SEES, 3, "at most 2 images")]
)
async def test_a_picture_that_is_not_taken_is_a_400_of_the_sdk_that_names_it(
    ask: Ask, field: str, accepted: Accepted, place: int, why: str
) -> None:
    async with clients(accepted) as (openai_sdk, anthropic_sdk, _):
        error = anthropic.BadRequestError if ask in (messages, count_tokens) else openai.BadRequestError
        with pytest.raises(error, match=why) as refused:
            await ask(openai_sdk, anthropic_sdk, 3)
    assert f"`{field.format(place)}`" in str(refused.value)
    if isinstance(refused.value, openai.BadRequestError):
        assert refused.value.param == field.format(place)
    elif isinstance(refused.value, anthropic.BadRequestError):
        assert refused.value.type == "invalid_request_error"


async def test_a_picture_of_an_earlier_turn_is_told_as_the_conversation_s() -> None:
    async with clients(SEES) as (sdk, _, seen):
        asked: Any = [{"role": "user", "content": [PART]}]
        first = await sdk.responses.create(model="fake", input=asked, max_output_tokens=16)
        follow: Any = [{"role": "user", "content": [PART]}]
        again = {"model": "fake", "previous_response_id": first.id, "max_output_tokens": 16}
        await sdk.responses.create(input=follow, **again)
        assert [message["content"] for message in seen.messages if message["role"] == "user"] == [
            [{"type": "image"}]
        ] * 2
        with pytest.raises(openai.BadRequestError, match="at most 2") as refused:
            await sdk.responses.create(input=[*follow, *follow], **again)
    assert refused.value.param == "input[1].content[0]"
