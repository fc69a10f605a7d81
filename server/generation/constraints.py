"""Constraints and parser of one request's answer: grammar, thinking budget, parser."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from stentor.protocols.common.bounds import TEXT_TOO_LONG
from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.actors import Thinking
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.sampling import not_served
from stentor.protocols.openai.structured import Answer, JsonAnswer, wanted_answer
from stentor.protocols.openai.tools import NO_TOOLS, OfferedTool, ToolUse

from ..grammar.answers import answer_expression, compose
from ..grammar.checker import TOO_COMPLEX_CODE
from ..grammar.client_grammar import checked_lark
from ..grammar.lark import Lark
from ..grammar.quoted_lark import quoted_lark
from ..grammar.schema import prepare
from ..grammar.whitespace import WHITESPACE
from ..parsing.interface import Parser
from ..parsing.output import OutputFormat
from ..parsing.thinking import ThinkingOptions, thinking_budget
from ..parsing.tools.format import ToolFormat
from .calls import CallFilter
from .chat_model import ChatModel
from .prompt import callable_tools

_REASONING_TAIL: Final = 48
"""Tokens at a prompt's end that say whether the model begins inside its reasoning."""
GRAMMAR_COST: Final = 16
"""Characters of a schema that a tool's grammar takes as long as, for each of its own."""
MAX_ALONE: Final = 4
"""Most grammars of tools that are tried one by one before the combined grammar; each may take its time."""
MAX_BLAMED: Final = 8
"""Grammars that are tried one by one where all of a request's together cannot be used."""
INLINE_BYTES: Final = 16 << 10
"""Bytes of schemas that are translated on the event loop; larger ones are in a thread."""


class Constraints(msgspec.Struct, frozen=True):
    """By default the answer is unconstrained, and its text is its content."""

    grammar: str = ""
    thinking: Thinking | None = None
    parser: Callable[[], Parser] | None = None
    visible: frozenset[str] = frozenset()


FREE: Final = Constraints()


async def constraints_of(
    chat: ChatModel, body: ChatRequest, use: ToolUse, prompt: list[int], options: ThinkingOptions
) -> Constraints:
    """Raises BadRequest for a grammar, schema or tool that cannot be held, naming the field."""
    output = chat.output
    answer = wanted_answer(body, chat.limits)
    _check_together(use, answer, output)
    if answer is None and use.mode == "none" and output.reasoning is None:
        return FREE
    opened = thinking_opened(chat, body, prompt, options)
    read = _unseparated(output) if not body.separate_reasoning else output
    parser = parser_of(read, use if body.parse_tool_calls else NO_TOOLS, opened)
    parsed = parser is not None or not (body.separate_reasoning and body.parse_tool_calls)
    return Constraints(
        grammar=await _grammar(chat, use, answer, opened),
        thinking=thinking_budget(output, chat.pool.tokenizer, options.budget, opened=opened),
        parser=parser,
        visible=output.visible_with(calls=use.mode != "none" and bool(use.usable)) if parsed else frozenset(),
    )


def _unseparated(output: OutputFormat) -> OutputFormat:
    """Reads reasoning as text. Raises BadRequest where the format has no text that holds both."""
    if output.harmony:
        raise not_served("separate_reasoning", "`separate_reasoning: false` with a model that answers in channels")
    return replace(output, reasoning=None)


async def answer_constraints(chat: ChatModel, answer: Answer | None) -> Constraints:
    """Constraints of a text outside a conversation: no reasoning, no calls. Raises BadRequest."""
    if answer is None:
        return FREE
    write = partial(_source, _lark_of(chat), NO_TOOLS, answer, OutputFormat(), None, False)
    return Constraints(await _checked(chat, write, _answer_bytes(answer), answer.field))


def parser_of(output: OutputFormat, use: ToolUse, opened: bool) -> Callable[[], Parser] | None:
    """Makes the parser of one choice; None if there is nothing to parse."""
    tools = callable_tools(use.usable) if use.mode != "none" else []
    if output.parser(tools, opened=opened) is None:
        return None
    alone = use.mode == "required"
    filtered = bool(tools) and (alone or bool(use.custom) or not use.parallel)

    def make() -> Parser:
        parser = output.parser(tools, opened=opened)
        assert parser is not None  # there was one before
        return CallFilter(parser, use.custom, parallel=use.parallel, alone=alone) if filtered else parser

    return make


def _check_together(use: ToolUse, answer: Answer | None, output: OutputFormat) -> None:
    if use.mode != "required":
        return
    field = "function_call" if use.legacy else "tool_choice"
    if output.tools is None:
        raise wrong(
            field, "cannot require a call: this server reads no tool calls (--tool-call-parser none)", "unsupported"
        )
    if answer is not None and not answer.field.startswith("response_format"):
        excluded = answer.field.split(".")[0]
        raise wrong(excluded, f"excludes a `{field}` that requires a call; send one of them")


def thinking_opened(chat: ChatModel, body: ChatRequest, prompt: list[int], options: ThinkingOptions) -> bool:
    """Whether the answer to ``prompt``, written of ``body``, begins inside the model's reasoning."""
    if chat.output.reasoning is None:
        return False
    tail = chat.pool.tokenizer.decode(prompt[-_REASONING_TAIL:], skip_special_tokens=False)
    continued = _text_of(body.messages[-1]) if body.continue_final_message else ""
    return chat.output.thinking_opened(tail, wanted=options.wanted, continued=continued)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)


async def _grammar(chat: ChatModel, use: ToolUse, answer: Answer | None, opened: bool) -> str:
    calls = use.mode == "required" or any(tool.strict for tool in use.usable) or use.allowed is not None
    format = chat.output.tools if use.mode != "none" and (calls or answer is not None) else None
    if format is None and answer is None:
        return ""
    size = _answer_bytes(answer) + (0 if format is None else _schema_bytes(use, chat.limits))
    write = partial(_source, _lark_of(chat), use, answer, chat.output, format, opened)
    tools = "functions" if use.legacy else "tools"
    field = tools if answer is None or use.mode == "required" else answer.field
    grammars = [tool for tool in use.usable if tool.grammar is not None] if format is not None else []
    size += GRAMMAR_COST * sum(len(tool.grammar or "") for tool in grammars)
    try:
        if len(grammars) <= MAX_ALONE:
            await _check_alone(chat, grammars)
        return await _checked(chat, write, size, field)
    except BadRequest as refusal:
        if refusal.param in (field, *(tool.field for tool in grammars)):
            await _blame(chat, grammars, refusal)
        raise


async def _blame(chat: ChatModel, tools: Sequence[OfferedTool], refusal: BadRequest) -> None:
    """Raises BadRequest naming the tool whose own grammar the engine refuses, if one is at fault.

    The error is then about the client's own text, not about the combined grammar.
    """
    if len(tools) == 1 and refusal.code == TOO_COMPLEX_CODE:
        field = tools[0].field
        raise BadRequest(refusal.message.replace(f"`{refusal.param}`", f"`{field}`", 1), field, refusal.code)
    if refusal.code == TOO_COMPLEX_CODE:
        return  # one after the other, they would take as many times as long
    await _check_alone(chat, tools[:MAX_BLAMED])


async def _check_alone(chat: ChatModel, tools: Sequence[OfferedTool]) -> None:
    """Each tool's grammar as the client wrote it: from there, trying it goes further into it than from a call's
    beginning. Raises BadRequest naming the tool's field."""
    for tool in tools:
        await chat.grammars.check(checked_lark(tool.grammar or "", tool.field), tool.field)


async def _checked(chat: ChatModel, write: Callable[[], str], size: int, field: str) -> str:
    # other streams need not wait for work that takes tenths of a second
    source = write() if size <= INLINE_BYTES else await anyio.to_thread.run_sync(write)
    await chat.grammars.check(source, field)
    return source


def _answer_bytes(answer: Answer | None) -> int:
    return len(msgspec.json.encode(answer.schema)) if isinstance(answer, JsonAnswer) else 0


def _schema_bytes(use: ToolUse, limits: Limits) -> int:
    """Size of the schemas of all callable tools as JSON. Raises BadRequest if they are too many for one grammar."""
    size = sum(len(msgspec.json.encode(tool.parameters)) for tool in use.usable)
    if size > limits.max_schema_chars:
        field = "functions" if use.legacy else "tools"
        raise refused(
            field,
            f"the schemas of the tools that calls are held to come to {size} bytes as JSON; this server allows at "
            f"most {limits.max_schema_chars}. Require fewer tools, or none strictly",
            TEXT_TOO_LONG,
        )
    return size


def _lark_of(chat: ChatModel) -> Lark:
    return Lark(chat.special_tokens, WHITESPACE[chat.config.json_whitespace])


def _source(
    lark: Lark,
    use: ToolUse,
    answer: Answer | None,
    output: OutputFormat,
    format: ToolFormat | None,
    opened: bool,
) -> str:
    body = _body(lark, use, answer, output, format)
    reasoning = output.reasoning
    return compose(
        lark,
        thinking_end=None if reasoning is None else reasoning.end,
        opened=opened,
        body=body,
        thinking_begin=None if reasoning is None else reasoning.begin,
        newlines=not output.harmony,
    )


def _body(lark: Lark, use: ToolUse, answer: Answer | None, output: OutputFormat, format: ToolFormat | None) -> str:
    """An expression for the answer without its reasoning."""
    if format is None:
        assert answer is not None
        return output.answer(lark, answer_expression(lark, answer))
    for tool in use.usable:
        # to name it: the format does not know the field
        if tool.grammar is None:
            prepare(tool.parameters or {}, tool.field, closed=True)
        else:
            quoted_lark(tool.grammar, tool.field)
    tools = callable_tools(use.usable)
    if use.mode == "required":
        return format.grammar(lark, tools, parallel=use.parallel)
    if answer is None:
        return format.free_grammar(lark, tools)
    answer_rule = output.answer(lark, answer_expression(lark, answer))
    return lark.either([answer_rule, format.grammar(lark, tools, parallel=use.parallel)])
