"""Formats that write calls as Python does: ``[name(key=value), …]``."""

from collections.abc import Sequence
from typing import Final

from ...grammar.lark import Lark
from ..interface import Parser, Tool
from ..markers import scanner
from .json_reader import escaped
from .layout import LaidOut, Layout, Signs, either, free, free_bare, members, quoted_input
from .machine import Machine, attempt, let_go, marked
from .output import Output
from .python_reader import NAME, python_value, word
from .reader import Reader, Steps
from .schemas import Arguments


class PythonCalls(LaidOut, frozen=True, kw_only=True):
    """A :class:`~.format.ToolFormat`."""

    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare: bool = False
    """Whether a list of calls may begin the answer."""

    @property
    def markers(self) -> frozenset[str]:
        return frozenset({*self.begins, *self.ends})

    def parser(self, tools: Sequence[Tool]) -> Parser:
        return Machine(self._read)

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        one = either(lark, tools, self._one)
        if self.begins and self.layout.opening.startswith(self.begins[0]):
            return free(lark, self.layout, one, self.begins[0])
        return free_bare(lark, self.layout, one, "[")

    def _one(self, lark: Lark, tool: Tool) -> str:
        arguments = Arguments(tool.parameters)
        items = []
        for name in arguments.names:
            types = arguments.types(name)
            field = f"tools.{tool.name}.parameters"
            if tool.grammar is not None:
                value = quoted_input(lark, tool.grammar)
            elif types == {"boolean"}:
                value = '( "True" | "False" )'
            elif name in arguments.properties:
                value = lark.json(arguments.whole(arguments.schema(name)), field, closed=True)
            else:
                value = lark.json({"type": "string"}, field)
            items.append((f"{lark.literal(name + '=')} {value}", name in arguments.required))
        return f'{lark.literal(tool.name + "(")} {members(lark, items, ", ")} ")"'

    def _read(self, reader: Reader, output: Output) -> Steps[None]:
        def bare(_: str) -> Steps[bool]:
            return (yield from reader.space()) == "[" and (yield from _calls(reader, output, ()))

        def behind(_: str) -> Steps[bool]:
            return (yield from _calls(reader, output, self.ends))

        if self.bare:
            yield from attempt(reader, output, "", bare)
        yield from marked(reader, output, scanner((*self.begins, *self.ends)), behind, strays=frozenset(self.ends))


def _calls(reader: Reader, output: Output, ends: tuple[str, ...]) -> Steps[bool]:
    """Reads calls that come next, in a list or on lines. False if there is none. The reader must be keeping text."""
    in_list = (yield from reader.space()) == "["
    if in_list:
        yield from reader.character()
    began = whole = False
    while True:
        char = yield from reader.space()
        if char.isidentifier():
            before = output.calls
            whole = yield from _call(reader, output)
            if output.calls == before:
                if began:
                    let_go(reader, output)
                return began
            began = True
            if not whole:
                return True
            reader.keep()
        elif began and char == ",":
            yield from reader.character()
        elif began and char == "]" and in_list:
            yield from reader.character()
            reader.keep()
            in_list = False
        else:
            break
    if began:
        if ends and (yield from reader.accept(*ends)):
            reader.forget()
        else:
            let_go(reader, output)
    return began


def _call(reader: Reader, output: Output) -> Steps[bool]:
    """One call; whether it is whole. It began if the output counts one more."""
    name = yield from word(reader, NAME)
    if not (yield from reader.accept("(")):
        return False
    char = yield from reader.space()
    key = ""
    if char != ")":
        key = yield from _key(reader)
        if not key:
            return False
    reader.forget()
    output.start(name)
    opening = "{"
    while key:
        output.arguments(f'{opening}"{escaped(key)}": ')
        opening = ", "
        if not (yield from python_value(reader, output.arguments)):
            return False
        char = yield from reader.space()
        if char == ",":
            yield from reader.character()
            char = yield from reader.space()
        if char == ")":
            break
        key = yield from _key(reader)
        if not key:
            return False
    yield from reader.character()
    output.arguments("{}" if opening == "{" else "}")
    output.end()
    return True


def _key(reader: Reader) -> Steps[str]:
    """A name and the equals sign behind it; the empty text if something else follows."""
    key = yield from word(reader, NAME)
    yield from reader.space()
    return key if key and (yield from reader.accept("=", "==")) == "=" else ""


FORMATS: Final = (
    PythonCalls(
        name="lfm2",
        layout=Layout(opening="<|tool_call_start|>[", between=", ", closing="]<|tool_call_end|>"),
        begins=("<|tool_call_start|>",),
        ends=("<|tool_call_end|>",),
        signs=(Signs(("<|tool_call_start|>",)), Signs(("List of tools: ",))),
    ),
    PythonCalls(
        name="llama4_pythonic",
        layout=Layout(opening="[", between=", ", closing="]"),
        begins=("<|python_start|>",),
        ends=("<|python_end|>",),
        bare=True,
        signs=(Signs(("<|python_start|>",), ('"parameters": dictionary of argument name',)),),
    ),
    PythonCalls(
        name="olmo3",
        layout=Layout(opening="<function_calls>\n", between="\n", closing="\n</function_calls>"),
        begins=("<function_calls>",),
        ends=("</function_calls>",),
        signs=(Signs(("<function_calls>",), ("｜DSML｜", "<invoke")),),
    ),
    PythonCalls(
        name="pythonic",
        layout=Layout(opening="[", between=", ", closing="]"),
        bare=True,
        signs=(Signs(("[func_name1(params_name1=params_value1",)),),
    ),
)
