"""Conversations to prompt text, through a model's chat template."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

import jinja2
from jinja2 import meta

from stentor.protocols.common.limits import MAX_TEMPLATE_CHARS
from stentor.protocols.openai.messages import ROLES

from ...config.limits import DEFAULT_CHARS, DEFAULT_SECONDS
from ..errors import TemplateError
from .messages import REASONING_NAMES, ContentFormat, content_format, prepare_messages
from .narrow_templates import described, for_harmony, is_harmony, one_call_each, takes_one_call
from .sandbox import RaisedByTemplate, TemplateEnvironment, TooLate, TooLong

if TYPE_CHECKING:
    from ..tokenizers.tokenizer import ChatTemplates  # would load the library into the process that only renders

MAX_MESSAGE_CHARS: Final = 300
"""Characters of an error message written by a template."""
RESERVED_KWARGS: Final = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize", "conversation", "add_special_tokens"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner"),
    }
)
_NOTHING_TO_CONTINUE: Final = "continue_final_message is set, but the last message has no text to continue."
_FINAL_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "


class RenderOptions(TypedDict, total=False):
    """How a conversation is rendered, whichever template does it; see :meth:`ChatTemplate.render`."""

    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    written: Mapping[str, str] | None


class _Compiled:
    """A compiled template, and the form of messages that its source expects."""

    def __init__(self, environment: jinja2.Environment, source: str) -> None:
        self.template: Final = environment.from_string(source)
        self._source = source
        self.format: Final[ContentFormat] = content_format(environment.parse(source))
        self.knows_developer: Final = "developer" in source
        self.takes_tools: Final = "tools" in meta.find_undeclared_variables(environment.parse(source))
        self.takes_one_call: Final = takes_one_call(environment.parse(source))
        self.harmony: Final = is_harmony(source)

    def prepare(self, messages: Sequence[Mapping[str, Any]], written: Mapping[str, str]) -> list[dict[str, Any]]:
        """Fresh copies of a conversation's messages as this template renders them. Raises :class:`TemplateError`."""
        unnamed = {
            modality: text
            for modality, text in written.items()
            if modality not in self._source and text not in self._source
        }
        ready = prepare_messages(
            messages, self.format, knows_developer=self.knows_developer, written=written, unnamed=unnamed
        )
        if self.takes_one_call:
            ready = one_call_each(ready)
        return for_harmony(ready, REASONING_NAMES) if self.harmony and self.format == "string" else ready

    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
        """None without tools."""
        return (described(tools) if self.harmony else list(tools)) if tools else None


class ChatTemplate:
    """The chat templates of one model: one, several by name (``default``, ``tool_use``, …) or none.

    Safe to use from any thread. Templates of requests are rendered by one of these in the template process: see
    :mod:`.template_child`.
    """

    def __init__(
        self,
        templates: "ChatTemplates",
        special_tokens: Mapping[str, str],
        *,
        max_seconds: float = DEFAULT_SECONDS,
        max_chars: int = DEFAULT_CHARS,
    ) -> None:
        self._named: Final = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        self._special_tokens: Final = dict(special_tokens)
        self._max_seconds: Final = max_seconds
        self._max_chars: Final = max_chars
        self._environment: Final = TemplateEnvironment(max_chars)
        self._compiled: Final[dict[str, _Compiled]] = {}

    @property
    def reserved(self) -> frozenset[str]:
        """Names that template arguments from a client may not take."""
        return RESERVED_KWARGS | self._special_tokens.keys()

    def has(self, name: str) -> bool:
        """Whether the model has a template of this name."""
        return name in self._named

    def takes_tools(self, chat_template: str | None = None) -> bool:
        """Whether a template writes its tools; true for one that is missing or broken.

        ``chat_template`` as in :meth:`~..pool.TokenizerPool.render_chat`. A request's template is not parsed here.
        """
        if chat_template is not None and chat_template not in self._named:
            return "tools" in chat_template
        if chat_template is None and not self._named.keys() & {"default", "tool_use"}:
            return True
        try:
            return self._get(chat_template, with_tools=True).takes_tools
        except TemplateError:
            return True  # rendering will report the error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        written: Mapping[str, str] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        ``chat_template`` is the name of one of the model's templates. With ``continue_final_message`` the text ends
        where the content of the last message ends, for the model to continue. ``written`` is the text for media, by
        modality, in a template that takes only text. Raises :class:`TemplateError`.
        """
        self._check(messages, add_generation_prompt, continue_final_message, template_kwargs or {})
        compiled = self._get(chat_template, with_tools=bool(tools))
        self._environment.set_deadline(time.thread_time() + self._max_seconds)
        try:
            chat = compiled.prepare(messages, written or {})
            final = _mark_end(chat[-1]) if continue_final_message else None
            given = {
                **self._special_tokens,
                **(template_kwargs or {}),
                "messages": chat,
                "tools": compiled.tools(tools),
                "documents": list(documents) if documents else None,
                "add_generation_prompt": add_generation_prompt,
            }
            text = compiled.template.render(given)
            for place in _of_own_roles(chat):
                longer = [*chat[:place], _lengthened(chat[place]), *chat[place + 1 :]]
                if compiled.template.render({**given, "messages": longer}) == text:
                    role = chat[place]["role"]
                    raise TemplateError(
                        f"messages[{place}].role is {role!r}, which the model's chat template leaves out."
                    )
        except TemplateError:
            raise
        except Exception as error:
            raise self._explain(error) from error
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TemplateError("The chat template writes half a character (an unpaired surrogate).") from None
        return text if final is None else _cut_at_mark(text, final)

    def _check(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> None:
        if not messages:
            raise TemplateError("There are no messages; give at least one.")
        if add_generation_prompt and continue_final_message:
            raise TemplateError(
                "add_generation_prompt and continue_final_message exclude each other; set one of them to false."
            )
        if continue_final_message and messages[-1].get("content") is None:
            raise TemplateError(_NOTHING_TO_CONTINUE)
        taken = sorted(name for name in kwargs if name in self.reserved or name.startswith("_"))
        if taken:
            raise TemplateError(f"chat_template_kwargs may not set {', '.join(taken)}; leave them out.")

    def _get(self, name: str | None, *, with_tools: bool) -> _Compiled:
        if name is None:
            name = "tool_use" if with_tools and "tool_use" in self._named else "default"
        source = self._named.get(name)
        if source is None:
            names = f"; it has {', '.join(sorted(self._named))}" if self._named else ""
            raise TemplateError(
                f"The model has no {name} chat template{names}. Send one as chat_template, start the server with "
                "--chat-template FILE, or send the prompt as text to /v1/completions."
            )
        compiled = self._compiled.get(name)
        if compiled is None:  # two threads may both compile it
            compiled = self._compiled[name] = self._compile(source)
        return compiled

    def _compile(self, source: str) -> _Compiled:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(
                f"The chat template is {len(source)} characters long, at most {MAX_TEMPLATE_CHARS} are allowed."
            )
        try:
            return _Compiled(self._environment, source)
        except Exception as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> TemplateError:
        """One line without paths: the client sees a template's errors."""
        match error:
            case TooLate():
                return TemplateError(f"The chat template took longer than {self._max_seconds:g} seconds to render.")
            case TooLong():
                return TemplateError(f"The chat template writes more than {self._max_chars} characters.")
            case RaisedByTemplate():
                return TemplateError(f"The chat template refused the conversation: {_short(str(error.message))}")
            case jinja2.TemplateSyntaxError():
                return TemplateError(f"The chat template is wrong in line {error.lineno}: {_short(str(error.message))}")
            case jinja2.TemplateError():
                return TemplateError(f"The chat template failed: {_short(str(error.message))}")
            case RecursionError():
                return TemplateError("The chat template is nested too deeply.")
            case MemoryError():
                return TemplateError("The chat template needs too much memory.")
            case _:
                return TemplateError(f"The chat template failed on this conversation with {type(error).__name__}.")


def _of_own_roles(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where a message of each role first stands that is none of OpenAI's."""
    first: dict[str, int] = {}
    for place, message in enumerate(messages):
        first.setdefault(message.get("role", ""), place)
    return [place for role, place in first.items() if role not in ROLES]


def _lengthened(message: Mapping[str, Any]) -> dict[str, Any]:
    content, more = message["content"], "x"
    return {
        **message,
        "content": content + more if isinstance(content, str) else [*content, {"type": "text", "text": more}],
    }


def _mark_end(message: dict[str, Any]) -> str:
    """Puts a mark after the final message's text, and returns that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _FINAL_TAG
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _FINAL_TAG
            return text
    raise TemplateError(_NOTHING_TO_CONTINUE)


def _cut_at_mark(text: str, final: str) -> str:
    tag = _FINAL_TAG.strip()
    at = text.rfind(tag)
    if at < 0 or final.strip() not in text:
        raise TemplateError(
            "continue_final_message is set, but the chat template does not write the last message as it is."
        )
    if text[at : at + len(_FINAL_TAG)] == _FINAL_TAG:
        return text[:at]
    return text[:at].rstrip()  # the template trims its messages, so the mark lost its own space


def _short(text: str) -> str:
    line = " ".join(text.encode(errors="replace").decode().split())
    return line if len(line) <= MAX_MESSAGE_CHARS else line[:MAX_MESSAGE_CHARS] + "…"
