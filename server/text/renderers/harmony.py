"""gpt-oss's conversations (harmony), by its makers' library (extra ``harmony``).

The library has no vocabulary and would download one; ours comes from a file (``o200k_base.tiktoken``), which it checks.
Without it the model's own chat template writes the same format.
"""

import datetime
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...parsing.harmony import PYTHON, PYTHON_CODE
from ..errors import TemplateError
from ..pool import TokenizerPool
from .interface import RenderRequest, tool_names
from .mistral import RendererError
from .plain import called, flat_messages, functions, reasoning_of, refuse_template

if TYPE_CHECKING:
    import openai_harmony

VOCABULARY: Final = "o200k_base.tiktoken"
_FOLDER_VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"
_JSON: Final = "<|constrain|>json"
_MESSAGE_CHARS: Final = 300
NAMESPACES: Final = ("browser", "python")
"""Namespaces of tools in the model's training; their functions are called by ``namespace.name``."""


class HarmonyRenderer:
    """``template_kwargs``: ``reasoning_effort`` (low, medium, high) and ``model_identity``."""

    def __init__(self, pool: TokenizerPool, vocabulary: Path) -> None:
        """``vocabulary``: the file, or the folder that it is in. Raises :class:`RendererError`."""
        self._pool = pool
        self._encoding = _load(vocabulary)

    def takes_tools(self, chat_template: str | None) -> bool:
        return True

    async def render(self, conversation: RenderRequest) -> list[int]:
        refuse_template(conversation, "harmony")
        if conversation.continue_final_message:
            raise TemplateError("The harmony renderer cannot continue a message; leave continue_final_message out.")
        return await self._pool.run(functools.partial(self._write, conversation))

    def _write(self, conversation: RenderRequest) -> list[int]:
        from openai_harmony import HarmonyError, Role

        tokens: list[int]
        try:
            written = to_harmony(conversation, datetime.datetime.now(datetime.UTC).date())
            if conversation.add_generation_prompt:
                tokens = self._encoding.render_conversation_for_completion(written, Role.ASSISTANT)
            else:
                tokens = self._encoding.render_conversation(written)
        except (HarmonyError, ValueError) as error:
            line = " ".join(str(error).split())[:_MESSAGE_CHARS]
            raise TemplateError(f"The harmony renderer refused the conversation: {line}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's, in Rust, which no `except Exception` meets
                raise
            raise TemplateError("The harmony renderer failed on the conversation.") from error
        return tokens


def to_harmony(conversation: RenderRequest, today: datetime.date) -> "openai_harmony.Conversation":
    """The conversation in the library's types. Raises TemplateError."""
    from openai_harmony import Conversation as Written

    messages = flat_messages(conversation)
    return Written.from_messages([*_beginning(conversation, messages, today), *_turns(messages)])


def _beginning(
    conversation: RenderRequest, messages: list[dict[str, Any]], today: datetime.date
) -> "Iterator[openai_harmony.Message]":
    """The system message is the model's own; a client's system message becomes the developer's instructions."""
    from openai_harmony import DeveloperContent, Message, ReasoningEffort, Role, SystemContent

    kwargs = conversation.template_kwargs
    effort = str(kwargs.get("reasoning_effort") or "medium").capitalize()
    if effort not in {each.value for each in ReasoningEffort}:
        raise TemplateError("reasoning_effort must be low, medium or high for this model.")
    system = SystemContent.new().with_reasoning_effort(ReasoningEffort(effort))
    system = system.with_conversation_start_date(today.isoformat())
    if kwargs.get("model_identity"):
        system = system.with_model_identity(str(kwargs["model_identity"]))
    offered = functions(conversation.tools) if conversation.tools else []
    own = [tool for tool in offered if not _built_in(tool["name"])]
    for namespace in _namespaces(offered):
        system = system.with_tools(namespace)
    yield Message.from_role_and_content(Role.SYSTEM, system)
    instructions = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    if not instructions and not own:
        return
    developer = DeveloperContent.new()
    if instructions:
        developer = developer.with_instructions("\n\n".join(instructions))
    if own:
        developer = developer.with_function_tools([_described(tool, tool["name"]) for tool in own])
    yield Message.from_role_and_content(Role.DEVELOPER, developer)


def _built_in(name: str) -> bool:
    """Whether a function is one of a namespace that the model was made for, rather than one of ``functions``."""
    return name.partition(".")[0] in NAMESPACES and "." in name


def _recipient(name: str) -> str:
    if name == PYTHON_CODE:
        return PYTHON
    return name if _built_in(name) else f"functions.{name}"


def _channel(name: str) -> str:
    return "analysis" if _built_in(name) else "commentary"


def _namespaces(tools: list[dict[str, Any]]) -> "Iterator[openai_harmony.ToolNamespaceConfig]":
    from openai_harmony import ToolNamespaceConfig

    for namespace in NAMESPACES:
        inside = [tool for tool in tools if tool["name"].startswith(f"{namespace}.")]
        if inside:
            code = next((tool for tool in inside if tool["name"] == PYTHON_CODE), None)
            described = [_described(tool, tool["name"].partition(".")[2]) for tool in inside if tool is not code]
            yield ToolNamespaceConfig(name=namespace, description=code and code.get("description"), tools=described)


def _described(tool: dict[str, Any], name: str) -> "openai_harmony.ToolDescription":
    from openai_harmony import ToolDescription

    return ToolDescription.new(name, tool.get("description") or "", parameters=tool.get("parameters"))


def _turns(messages: list[dict[str, Any]]) -> "Iterator[openai_harmony.Message]":
    from openai_harmony import Author, Message, Role

    names = tool_names(messages)
    for index, message in enumerate(messages):
        match message["role"]:
            case "system" | "developer":
                continue
            case "user":
                yield Message.from_role_and_content(Role.USER, message["content"])
            case "tool":
                name = names.get(message.get("tool_call_id", ""), message.get("name"))
                if name is None:
                    raise TemplateError(f"messages[{index}].tool_call_id names no call of this conversation.")
                author = Author.new(Role.TOOL, _recipient(name))
                answer = Message.from_author_and_content(author, message["content"])
                yield answer.with_channel(_channel(name)).with_recipient("assistant")
            case "assistant":
                yield from _answered(message)
            case role:
                raise TemplateError(f"messages[{index}].role is {role!r}, which harmony does not know.")


def _answered(message: dict[str, Any]) -> "Iterator[openai_harmony.Message]":
    from openai_harmony import Message, Role

    if reasoning := reasoning_of(message):
        yield Message.from_role_and_content(Role.ASSISTANT, reasoning).with_channel("analysis")
    calls = called(message)
    if message["content"]:
        channel = "commentary" if calls else "final"
        yield Message.from_role_and_content(Role.ASSISTANT, message["content"]).with_channel(channel)
    for name, arguments in calls:
        said = arguments.get("code") if name == PYTHON_CODE else None
        text = said if isinstance(said, str) else json.dumps(arguments, ensure_ascii=False)
        call = Message.from_role_and_content(Role.ASSISTANT, text)
        kind = "code" if _built_in(name) else _JSON
        yield call.with_channel(_channel(name)).with_recipient(_recipient(name)).with_content_type(kind)


def _load(vocabulary: Path) -> "openai_harmony.HarmonyEncoding":
    folder = vocabulary if vocabulary.is_dir() else vocabulary.parent
    if not (folder / VOCABULARY).is_file():
        raise RendererError(f"--harmony-vocabulary: there is no {VOCABULARY} in {folder}")
    try:
        import openai_harmony
    except ImportError as error:
        raise RendererError("the harmony renderer needs openai-harmony: pip install 'stentor[harmony]'") from error
    before = os.environ.get(_FOLDER_VARIABLE)
    os.environ[_FOLDER_VARIABLE] = str(folder)  # the library has no other setting
    try:
        return openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    except openai_harmony.HarmonyError as error:
        raise RendererError(f"--harmony-vocabulary: {folder / VOCABULARY} cannot be used: {error}") from error
    finally:
        if before is None:
            del os.environ[_FOLDER_VARIABLE]
        else:
            os.environ[_FOLDER_VARIABLE] = before
