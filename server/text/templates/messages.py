"""Prepares messages for a chat template: detects the content format that it reads, and converts to it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, Literal

from jinja2 import nodes

from ..errors import TemplateError
from .placeholders import numbered

ContentFormat = Literal["string", "list", "mixed"]
"""What a template does with ``message.content``: prints it, loops over its parts, or checks its type."""

NO_MEDIA: Final[Mapping[str, str]] = {}
REASONING_NAMES: Final = ("reasoning_content", "thinking", "reasoning")


def content_format(tree: nodes.Template) -> ContentFormat:
    """Reads off a template's source how it uses a message's content."""
    finder = _ContentFinder(tree)
    if not finder.loops_over_content():
        return "string"
    return "mixed" if finder.tests_for_string() else "list"


class _ContentFinder:
    """Follows ``messages`` and ``message.content`` through a template's loops and assignments."""

    def __init__(self, tree: nodes.Template) -> None:
        self._tree = tree
        self._lists = {"messages"}
        self._messages: set[str] = set()
        self._contents: set[str] = set()
        while self._follow():
            pass

    def _follow(self) -> bool:
        before = len(self._lists) + len(self._messages) + len(self._contents)
        for loop in self._tree.find_all(nodes.For):
            if isinstance(loop.target, nodes.Name) and self._is_list(loop.iter):
                self._messages.add(loop.target.name)
        for assign in self._tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name):
                self._alias(assign.target.name, assign.node)
        for macro in self._tree.find_all(nodes.Call):
            self._enter(macro)
        return len(self._lists) + len(self._messages) + len(self._contents) > before

    def _alias(self, name: str, value: nodes.Node) -> None:
        if self._is_content(value):
            self._contents.add(name)
        elif self._is_message(value):
            self._messages.add(name)
        elif self._is_list(value):
            self._lists.add(name)

    def _enter(self, call: nodes.Call) -> None:
        """Binds the arguments of a call to the macro's parameters."""
        if not isinstance(call.node, nodes.Name):
            return
        for macro in self._tree.find_all(nodes.Macro):
            if macro.name == call.node.name:
                for parameter, value in zip(macro.args, call.args, strict=False):
                    self._alias(parameter.name, value)

    def _is_list(self, node: nodes.Node) -> bool:
        match node:
            case nodes.Name(name=name):
                return name in self._lists
            case nodes.Getitem(arg=nodes.Slice()) | nodes.Filter() if node.node is not None:
                return self._is_list(node.node)
            case nodes.CondExpr():
                return self._is_list(node.expr1) or (node.expr2 is not None and self._is_list(node.expr2))
            case _:
                return False

    def _is_message(self, node: nodes.Node) -> bool:
        match node:
            case nodes.Name(name=name):
                return name in self._messages
            case nodes.Getitem() if not isinstance(node.arg, nodes.Slice):
                return self._is_list(node.node)
            case nodes.Filter(name="first" | "last") if node.node is not None:
                return self._is_list(node.node)
            case _:
                return False

    def _is_content(self, node: nodes.Node) -> bool:
        match node:
            case nodes.Name(name=name):
                return name in self._contents
            case nodes.Getitem(arg=nodes.Const(value="content")) | nodes.Getattr(attr="content"):
                return self._is_message(node.node)
            case nodes.Filter() if node.node is not None:
                return self._is_content(node.node)
            case _:
                return False

    def loops_over_content(self) -> bool:
        return any(self._is_content(loop.iter) for loop in self._tree.find_all(nodes.For))

    def tests_for_string(self) -> bool:
        return any(
            test.name in ("string", "sequence", "iterable", "mapping") and self._is_content(test.node)
            for test in self._tree.find_all(nodes.Test)
        )


def prepare_messages(
    messages: Sequence[Mapping[str, Any]],
    format: ContentFormat,
    *,
    knows_developer: bool,
    written: Mapping[str, str] = NO_MEDIA,
    unnamed: Mapping[str, str] = NO_MEDIA,
) -> list[dict[str, Any]]:
    """Copies of ``messages`` for a template.

    Keys with value None are removed, since templates print them, and so is an empty list of calls. Content is always
    present, since templates join it to other text; in place of None it is the refusal or empty. Role ``developer``
    becomes ``system`` for a template that does not know it. Arguments of tool calls become objects if they are JSON
    objects. Reasoning is available under each name that templates use. A template that prints content gets the
    ``written`` text of each modality before the text, as in vLLM; one that loops over parts and does not know a
    modality gets ``unnamed`` as text at the media's place. Raises :class:`TemplateError` for content that the template
    cannot render.
    """
    following = {modality: map(partial(numbered, text), count()) for modality, text in written.items()}
    put = format, following, unnamed
    return [_prepare(message, place, knows_developer, *put) for place, message in enumerate(messages)]


def _prepare(
    message: Mapping[str, Any],
    place: int,
    knows_developer: bool,
    format: ContentFormat,
    written: Mapping[str, Iterator[str]],
    unnamed: Mapping[str, str],
) -> dict[str, Any]:
    """``written``: by modality, the texts of the pieces of media that follow."""
    ready = {name: value for name, value in message.items() if value is not None}
    if ready.get("role") == "developer" and not knows_developer:
        ready["role"] = "system"
    if ready.get("role") == "tool" and format == "mixed":
        format = "string"  # those that take both seldom mean results of tools by that, and some print the parts
    ready["content"] = _content(ready.get("content", ready.get("refusal", "")), place, format, written, unnamed)
    if calls := ready.pop("tool_calls", None):  # templates check for calls by the key
        ready["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = next((ready[name] for name in REASONING_NAMES if ready.get(name)), None)
    if reasoning is not None:
        ready |= dict.fromkeys(REASONING_NAMES, reasoning)
    return ready


def _content(
    content: Any, place: int, format: ContentFormat, written: Mapping[str, Iterator[str]], unnamed: Mapping[str, str]
) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if format == "list" else content
    if not isinstance(content, list):
        raise TemplateError(f"messages[{place}].content is neither text nor a list of parts.")
    if format != "string":
        return [_part(part, unnamed) for part in content]
    media = [part["type"] for part in content if isinstance(part, Mapping) and part.get("type") in written]
    texts = [part for part in content if not (isinstance(part, Mapping) and part.get("type") in written)]
    return "\n".join([*(next(written[modality]) for modality in media), *(_text_of(part, place) for part in texts)])


def _part(part: Any, unnamed: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        return {"type": "text", "text": part}
    text = unnamed.get(part.get("type", ""))
    return dict(part) if text is None else {"type": "text", "text": text}


def _text_of(part: Any, place: int) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type", "unknown") if isinstance(part, Mapping) else type(part).__name__
        raise TemplateError(
            f"messages[{place}].content has a part of type {str(kind)[:40]!r}, but this model takes text only."
        )
    return text


def _tool_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = function.get("arguments")
    ready = _arguments(arguments) if isinstance(arguments, str) else arguments or {}
    return {**call, "function": {**function, "arguments": ready}}


def _arguments(text: str) -> Any:
    try:
        parsed = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text
