"""Tools, thinking and forms of answers put together: what the engine is given, and how its text comes back."""

import json
import time
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from openai.types.chat import ChatCompletion

from stentor.engine.core.grammar.matcher import Compiler
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.actors import Thinking
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.tools import tool_use
from stentor.server.app.state import ServerState
from stentor.server.config.limits import GrammarLimits
from stentor.server.config.models import JsonWhitespace
from stentor.server.generation.constraints import constraints_of
from stentor.server.grammar.checker import Grammars
from stentor.server.parsing.output import FORMATS, TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.parsing.thinking import thinking_options
from stentor.server.text.tokenizers.grammar_tokens import token_bytes_of
from stentor.tests.fakes import EOS, FakeEngine, byte_tokenizer, fake_state, says
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory
from stentor.tests.wire.chat import check_stream
from stentor.tests.wire.validate import CHAT_EXTENSIONS, assert_same_answer, check_object

pytestmark = pytest.mark.anyio

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}é"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
STRICT: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
OTHER: Any = {"type": "function", "function": {"name": "g"}}
CUSTOM: Any = {"type": "custom", "custom": {"name": "c"}}
F: Any = {"type": "function", "function": {"name": "f"}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F]}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
OUTPUT = OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"])
"""Of a model that thinks as Qwen 3 does and calls tools as Hermes does."""


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    """One process for all tests."""
    tokenizer = byte_tokenizer()
    grammars = Grammars(lambda: token_bytes_of(tokenizer, (EOS,)), GrammarLimits())
    yield grammars
    grammars.close()


@pytest.fixture
async def state(grammars: Grammars) -> ServerState:
    return fake_state(FakeEngine(max_model_len=1 << 20), output=OUTPUT, grammars=grammars)


def engine_of(state: ServerState) -> FakeEngine:
    engine = state.chat.client
    assert isinstance(engine, FakeEngine)
    return engine


async def ask(state: ServerState, path: str = CHAT, **body: Any) -> dict[str, Any]:
    """The whole answer; that of a stream is the same."""
    given = {"prompt": "hello"} if path == COMPLETIONS else {"messages": HELLO}
    body = {**given, "max_tokens": 400, **body}
    async with in_memory(state) as client:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        if path == CHAT and not body.get("functions"):
            check_object(ChatCompletion, response.content, CHAT_EXTENSIONS)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            streamed = await client.post(path, json={**body, **options})
            assert_same_answer(answer, check_stream(streamed.content))
    return answer


async def refused(state: ServerState, **body: Any) -> str:
    async with in_memory(state) as client:
        response = await client.post(CHAT, json={"messages": HELLO, **body})
    assert response.status_code == 400, response.text
    assert engine_of(state).streams == []
    param: str = response.json()["error"]["param"]
    return param


async def test_thoughts_text_and_calls_are_told_apart(state: ServerState) -> None:
    engine_of(state).answer = says(f"<think>hm</think>So: {CALL}{CALL}")
    answer = await ask(state, tools=[TOOL], n=2)
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] == "hm"
        assert choice["message"]["content"].strip() == "So:"
        assert [call["function"] for call in choice["message"]["tool_calls"]] == [
            {"name": "f", "arguments": '{"a": "}é"}'}
        ] * 2
        assert choice["finish_reason"] == "tool_calls"
    assert 0 < answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < 50
    assert engine_of(state).grammars == ["", ""], "an open choice of lenient tools holds the model to nothing"


async def test_calls_are_read_behind_reasoning_that_stays_in_the_content(state: ServerState) -> None:
    engine_of(state).answer = says(f"<think>hm</think>So: {CALL}")
    answer = await ask(state, tools=[TOOL], separate_reasoning=False, rid="abc")
    message = answer["choices"][0]["message"]
    assert message["content"].strip() == "<think>hm</think>So:"
    assert len(message["tool_calls"]) == 1
    assert answer["id"] == "chatcmpl-abc"


async def test_calls_that_are_not_to_be_parsed_stay_in_the_content(state: ServerState) -> None:
    engine_of(state).answer = says(f"<think>hm</think>So: {CALL}")
    answer = await ask(state, tools=[TOOL], parse_tool_calls=False)
    choice = answer["choices"][0]
    assert choice["message"]["content"].strip() == f"So: {CALL}"
    assert choice["message"]["reasoning_content"] == "hm"
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "stop"


async def test_reasoning_may_be_left_out_and_is_counted_all_the_same(state: ServerState) -> None:
    engine_of(state).answer = says("<think>hm</think>Yes")
    answer = await ask(state, include_reasoning=False)
    assert "reasoning" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"] == "Yes"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert answer["usage"]["completion_tokens"] == len("<think>hm</think>Yes") + 1


async def test_reasoning_that_is_left_out_cannot_be_read_in_tokens_and_logprobs(state: ServerState) -> None:
    engine_of(state).answer = says("<think>secret</think>Yes")
    answer = await ask(state, include_reasoning=False, logprobs=True, top_logprobs=2)
    tokens = "".join(entry["token"] for entry in answer["choices"][0]["logprobs"]["content"])
    assert "Yes" in tokens
    assert "secret" not in tokens
    async with in_memory(state) as client:
        body = {"messages": HELLO, "max_tokens": 400, "include_reasoning": False, "return_token_ids": True}
        whole = await client.post(CHAT, json=body)
        streamed = await client.post(CHAT, json={**body, "stream": True})
    ids = whole.json()["choices"][0]["token_ids"]
    assert bytes(ids[:-1]).endswith(b"Yes")
    assert b"s" not in bytes(ids[:-4])
    assert check_stream(streamed.content, usage=False)["choices"][0]["token_ids"] == ids


async def test_a_call_without_arguments_has_an_empty_object(state: ServerState) -> None:
    engine_of(state).answer = says('<tool_call>\n{"name": "g"}\n</tool_call>')
    answer = await ask(state, tools=[TOOL, OTHER])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "g", "arguments": "{}"}


async def test_calls_that_are_required_have_nothing_beside_them_wherever_they_are_cut(state: ServerState) -> None:
    engine_of(state).answer = says(f"{CALL}\n{CALL}")
    for length in range(len(CALL) + 12):
        answer = await ask(state, tools=[TOOL], tool_choice="required", max_tokens=length + 1)
        message = answer["choices"][0]["message"]
        assert not message["content"], length
        for call in message.get("tool_calls", []):
            assert '{"a": "}é"}'.startswith(call["function"]["arguments"].removesuffix("\ufffd")), length


async def test_what_a_call_leaves_that_is_cut_off_is_no_content(state: ServerState) -> None:
    engine_of(state).answer = says(f"So:\n{CALL}")
    for length in range(len("So:\n") + len("<tool_"), len(CALL) + 4):
        answer = await ask(state, tools=[TOOL], max_tokens=length)
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == "So:", length
        assert choice["finish_reason"] == "length", length
        assert bool(choice["message"].get("tool_calls")) is (length >= len('So:\n<tool_call>\n{"name": "f"')), length
        assert answer["usage"]["completion_tokens"] == length


async def test_a_stop_string_cuts_a_call_off_as_well(state: ServerState) -> None:
    engine_of(state).answer = says(f"So:\n{CALL}")
    answer = await ask(state, tools=[TOOL], stop=["name"])
    assert answer["choices"][0]["message"]["content"] == "So:"
    assert answer["choices"][0]["finish_reason"] == "stop"
    whole = '{"a": "}é"}'
    for stop, reason, arguments in (
        ("é", "stop", '{"a": "}'),
        ("\n</", "tool_calls", whole),
        ("x", "tool_calls", whole),
    ):
        (choice,) = (await ask(state, tools=[TOOL], stop=[stop]))["choices"]
        assert choice["finish_reason"] == reason
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == arguments


async def test_what_the_model_ends_itself_and_is_no_call_is_content(state: ServerState) -> None:
    engine_of(state).answer = says('<tool_call>\n{"na')
    answer = await ask(state, tools=[TOOL])
    assert answer["choices"][0]["message"]["content"] == '<tool_call>\n{"na'


async def test_without_parallel_calls_the_first_one_counts(state: ServerState) -> None:
    engine_of(state).answer = says(CALL + CALL)
    answer = await ask(state, tools=[TOOL], parallel_tool_calls=False)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    legacy = await ask(state, functions=[TOOL["function"]])
    assert legacy["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": '{"a": "}é"}'}
    assert legacy["choices"][0]["finish_reason"] == "function_call"


async def test_a_custom_tool_gets_its_text(state: ServerState) -> None:
    engine_of(state).answer = says('<tool_call>\n{"name": "c", "arguments": {"input": "a\\n\\u00e9"}}\n</tool_call>')
    answer = await ask(state, tools=[CUSTOM, TOOL])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "c", "input": "a\né"})


SUM = 'start: e\ne: e "+" t | t\nt: "(" e ")" | /[0-9]+/ | "\\"" /.*/ LF\n%import common.LF\n'


def sums(definition: str = SUM, name: str = "sum") -> Any:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": grammar}}


async def test_json_has_the_white_space_that_the_operator_and_the_request_allow(grammars: Grammars) -> None:
    compiler = Compiler(token_bytes_of(byte_tokenizer(), (EOS,)))
    described: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    lark = 'start: %json {"type": "array"}'
    asked: list[tuple[dict[str, Any], str, str]] = [
        ({"response_format": described}, "", ""),
        ({"structured_outputs": {"grammar": lark}}, "", ""),
        ({"structured_outputs": {"structural_tag": {"format": {"type": "grammar", "grammar": lark}}}}, "", ""),
        ({"tools": [TOOL], "tool_choice": "required"}, '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
    ]
    for whitespace in get_args(JsonWhitespace):
        engine = FakeEngine(max_model_len=1 << 20)
        state = fake_state(engine, output=OUTPUT, grammars=grammars, json_whitespace=whitespace)
        for body, before, after in asked:
            await ask(state, max_tokens=1, **body)
            for inner, wanted in (("", "none"), ("\n    ", "indented")):
                value = f'{{"a":{inner}"b"{inner}}}' if before else f"[1{inner},{inner}2]"
                matcher = compiler.compile(engine_of(state).grammars[-1])
                taken = all(matcher.consume(byte) for byte in f"{before}{value}{after}".encode())
                assert taken == (wanted in ("none", whitespace)), (whitespace, body, value)
        compact = {"json": {"type": "array"}, "disable_any_whitespace": True}
        await ask(state, max_tokens=1, structured_outputs=compact)
        matcher = compiler.compile(engine_of(state).grammars[-1])
        assert not all(matcher.consume(byte) for byte in b"[1,\n2]")


async def test_indented_arguments_reach_the_client_as_they_are(state: ServerState) -> None:
    arguments = '{\n  "a": "b"\n}'
    engine_of(state).answer = says(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>')
    answer = await ask(state, tools=[TOOL], tool_choice="required")
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments


async def test_the_input_of_a_custom_tool_is_held_to_its_lark_grammar(state: ServerState) -> None:
    engine_of(state).answer = says("</think>\n\n" + CALL)
    await ask(state, tools=[sums()], tool_choice={"type": "custom", "custom": {"name": "sum"}})
    await ask(state, tools=[sums(), TOOL])
    named, free = engine_of(state).grammars[-2:]
    compiler = Compiler(token_bytes_of(byte_tokenizer(), (EOS,)))
    for text, allowed in (("(1+2)+3", True), ('"a\\\n+1', True), ("1+", False), ("", False), ("1 ", False)):
        input = json.dumps(text)
        call = f'<tool_call>\n{{"name": "sum", "arguments": {{"input": {input}}}}}\n</tool_call>'
        for grammar in (named, free):
            matcher = compiler.compile(grammar)
            said = all(matcher.consume(byte) for byte in call.encode()) and matcher.accepting()
            assert said == allowed, (text, grammar)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("start: a\n", "unknown name"), ("a: /x/", "start"), ("start: /a", "lexer"), ("start: (", "Expected"),
        ("start: /(?<=a)b/", "look"), ("start: <|end|>", "token"), ('start: %json {"type": "string"}', "%json"),
        ("start: " + "(" * 30_000 + '"a"' + ")" * 30_000, "too complex"), ("start: " + "(" * 500, ""),
    ],
)  # fmt: skip
async def test_a_grammar_that_cannot_be_held_is_refused_with_its_place(
    state: ServerState, definition: str, said: str
) -> None:
    began = time.monotonic()
    async with in_memory(state) as client:
        body = {"model": "fake", "messages": HELLO, "tools": [TOOL, sums(definition)], "tool_choice": "required"}
        answer = await client.post(CHAT, json=body)
    assert time.monotonic() - began < 10
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].custom.format.grammar.definition", error
    assert said in error["message"]


async def test_of_several_grammars_the_one_that_is_wrong_is_named(state: ServerState) -> None:
    async with in_memory(state) as client:
        for tools, param in (
            ([sums(), sums("start: a", "other")], "tools[1].custom.format.grammar.definition"),
            ([sums("start: a"), sums(name="other")], "tools[0].custom.format.grammar.definition"),
        ):
            answer = await client.post(
                CHAT, json={"model": "fake", "messages": HELLO, "tools": tools, "tool_choice": "required"}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        fine = await client.post(
            CHAT, json={"model": "fake", "messages": HELLO, "tools": [sums("start: a")], "tool_choice": "none"}
        )
        assert fine.status_code == 200


async def test_without_tools_or_choice_a_call_is_text(state: ServerState) -> None:
    engine_of(state).answer = says(CALL)
    bodies: list[dict[str, Any]] = [{}, {"tools": [TOOL], "tool_choice": "none"}]
    for body in bodies:
        answer = await ask(state, **body)
        assert answer["choices"][0]["message"]["content"] == CALL
        assert answer["choices"][0]["finish_reason"] == "stop"


def prompt_of(state: ServerState) -> str:
    return bytes(engine_of(state).streams[-1].prompt).decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"web_search_options": {}}, "web_search_options"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": True, "use_beam_search": True}, "logprob_token_ids"),
        ({"logprob_token_ids": [], "logprobs": True}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129, "logprobs": True}, "logprob_token_ids"),
        ({"logprob_token_ids": [3, 2**30], "logprobs": True}, "logprob_token_ids"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"return_weight_versions": True}, "return_weight_versions"),
        ({"return_mm_kwargs": True}, "return_mm_kwargs"),
        ({"input_ids": [1]}, "input_ids"),
        ({"session_params": {"id": "a"}}, "session_params"),
        ({"separate_reasoning": False, "include_reasoning": False}, "separate_reasoning"),
        ({"stop_regex": "^a"}, "stop_regex"),
        ({"messages": [{"role": "assistant", "content": "a", "audio": {"id": "1"}}, *HELLO]}, "messages[0].audio"),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(
    state: ServerState, body: dict[str, Any], param: str
) -> None:
    assert await refused(state, **body) == param


async def test_tools_are_told_where_the_template_does_not_know_them_and_one_may_be_called(state: ServerState) -> None:
    await ask(state, tools=[TOOL, OTHER])
    assert '"name":"f"' in prompt_of(state)
    assert '"name":"g"' in prompt_of(state)
    async with in_memory(state) as client:
        counted = await client.post("/tokenize", json={"messages": HELLO, "tools": [TOOL, OTHER]})
    assert counted.json()["tokens"] == engine_of(state).streams[-1].prompt
    await ask(state, tools=[TOOL], tool_choice="none")
    assert '"name":"f"' not in prompt_of(state)
    async with in_memory(state) as client:
        unused = {"messages": HELLO, "tools": [TOOL], "tool_choice": "none"}
        assert (await client.post("/tokenize", json=unused)).json()["tokens"] == engine_of(state).streams[-1].prompt


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ({"tools": [TOOL]}, False),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"tools": [TOOL], "tool_choice": "required"}, True),
        ({"tools": [TOOL, OTHER], "tool_choice": F}, True),
        ({"tools": [STRICT]}, True),
        ({"tools": [TOOL], "tool_choice": ALLOWED}, True),
        ({"response_format": SCHEMA}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"tools": [TOOL], "response_format": SCHEMA}, True),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": SCHEMA}, True),
        ({"structured_outputs": {"choice": ["a", "b"]}}, True),
        ({"guided_regex": "a+"}, True),
    ],
)
async def test_what_holds_the_model(state: ServerState, body: dict[str, Any], held: bool) -> None:
    engine_of(state).answer = says(CALL)
    await ask(state, **body)
    grammar = engine_of(state).grammars[-1]
    assert bool(grammar) is held
    if held:
        assert "</think>" in grammar, "it may think first"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("12", True),
        ("<think>so\n</think>12", True),
        ("<think>so\n</think>\n\n12", True),
        ("\n12", False),
        ("<think>so", False),
        ("<think>so</think>\n\n\n12", False),
        ("<think>so</think>x", False),
    ],
)
async def test_an_answer_in_a_form_may_be_thought_about_first(state: ServerState, text: str, fits: bool) -> None:
    await ask(state, response_format=SCHEMA)
    matcher = Compiler(token_bytes_of(byte_tokenizer(), (EOS,))).compile(engine_of(state).grammars[-1])
    assert (all(matcher.consume(byte) for byte in text.encode()) and matcher.accepting()) is fits
    engine_of(state).answer = says(text)
    answer = await ask(state, response_format=SCHEMA)
    if fits:
        assert answer["choices"][0]["message"]["content"] == "12"


async def test_a_named_tool_is_the_only_one_in_its_grammar(state: ServerState) -> None:
    engine_of(state).answer = says(CALL)
    await ask(state, tools=[TOOL, OTHER], tool_choice=F)
    grammar = engine_of(state).grammars[-1]
    assert '\\"f\\"' in grammar
    assert '\\"g\\"' not in grammar


async def test_completions_are_held_without_thinking(state: ServerState) -> None:
    await ask(state, COMPLETIONS, response_format=SCHEMA)
    grammar = engine_of(state).grammars[-1]
    assert grammar
    assert "think" not in grammar
    await ask(state, COMPLETIONS)
    assert engine_of(state).grammars[-1] == ""


async def test_an_answer_that_is_continued_goes_on_where_it_was(state: ServerState) -> None:
    engine_of(state).answer = says("more")
    fields: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    for said, kind in (("<think>hm", "reasoning"), ("<think>hm</think>So", "content")):
        for content in (said, [{"type": "text", "text": said}]):
            answer = await ask(state, messages=[*HELLO, {"role": "assistant", "content": content}], **fields)
            assert answer["choices"][0]["message"].get(kind) == "more"


async def test_thinking_is_bounded(state: ServerState) -> None:
    await ask(state, thinking_token_budget=7)
    found = engine_of(state).thinking[-1]
    assert found == Thinking(7, list(b"<think>"), list(b"</think>"), False)
    await ask(state)
    assert engine_of(state).thinking[-1] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/nowhere"}}}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "x"}}}}, None),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
async def test_what_cannot_be_held_is_refused_before_the_engine_sees_it(
    state: ServerState, body: dict[str, Any], param: str | None
) -> None:
    found = await refused(state, **body)
    assert found.startswith(param or "response_format.json_schema.schema")


async def test_schemas_that_are_too_many_for_one_grammar_are_refused_only_where_they_hold(state: ServerState) -> None:
    large = {"type": "object", "description": "x" * 100_000}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": large}} for number in range(6)]
    assert await refused(state, tools=tools, tool_choice="required") == "tools"


async def test_a_server_that_reads_no_calls_says_so() -> None:
    state = fake_state(FakeEngine(max_model_len=4096))
    assert await refused(state, tools=[TOOL], tool_choice="required") == "tool_choice"
    engine_of(state).answer = says(CALL)
    answer = await ask(state, tools=[TOOL])
    assert answer["choices"][0]["message"]["content"] == CALL
    assert '"name":"f"' in prompt_of(state)


@pytest.mark.parametrize("body", [{"tool_choice": "required"}, {"response_format": SCHEMA}])
async def test_every_format_of_calls_can_be_held_behind_thinking(grammars: Grammars, body: dict[str, Any]) -> None:
    limits = Limits()
    request = ChatRequest(messages=HELLO, tools=[TOOL, OTHER], **body)
    use, options = tool_use(request, limits), thinking_options(OutputFormat(), "")
    for format in FORMATS:
        output = OutputFormat(REASONING_FORMATS["qwen3"], format)
        state = fake_state(FakeEngine(), output=output, grammars=grammars)
        constraints = await constraints_of(state.chat, request, use, [1], options)
        assert "</think>" in constraints.grammar, format.name
        assert constraints.parser is not None
