"""Where chat templates run: jinja2's sandbox, with what a template may use up bounded as well.

The sandbox keeps a template from reaching Python's internals. What it leaves open is time and
memory: loops in loops, strings that double, widths of a billion. A request may bring its own
template, so these are bounded too, where they arise:

- every turn of a loop and every call of a macro counts against a deadline (a call that the parser
  writes into their bodies);
- every operation that can make a value longer (``+ * ** % ~``, filters, calls, captured blocks)
  may make no text longer than :data:`MAX_CHARS` and no list longer than :data:`MAX_ITEMS`, and
  takes no number past :data:`MAX_NUMBER` where it could be a size.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

MAX_CHARS: Final = 8 << 20
"""Characters of a rendered chat, and of any text on the way."""
MAX_ITEMS: Final = 1_000_000
MAX_NUMBER: Final = 1_000_000
"""As an argument of a filter or a method, where it could be a width or a count."""
MAX_INT_BITS: Final = 256
_WIDE_FORMAT: Final = re.compile(r"\d{7}|\*")
_DEADLINE: Final = threading.local()


class Overrun(Exception):
    """A template used more than it may; the message says what of."""


class RaisedByTemplate(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


def set_deadline(at: float) -> None:
    """Bounds what this thread renders from now on; ``at`` is in ``time.monotonic()`` seconds."""
    _DEADLINE.at = at


def _tick() -> str:
    if time.monotonic() > getattr(_DEADLINE, "at", float("inf")):
        raise Overrun("time")
    return ""


def _bounded(value: Any) -> Any:
    """``value`` itself, if it is not too large to go on with."""
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise Overrun("size")
    elif isinstance(value, list | tuple | dict):
        if len(value) > MAX_ITEMS:
            raise Overrun("size")
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise Overrun("size")
    return value


def _check_arguments(args: Iterable[Any]) -> None:
    for arg in args:
        if isinstance(arg, int) and not -MAX_NUMBER <= arg <= MAX_NUMBER:
            raise Overrun("size")


def _bounded_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # carries over the marks by which jinja passes the environment
    def run(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(args)
        _check_arguments(kwargs.values())
        if function is jinja2.filters.FILTERS["format"]:
            _check_format(args)
        return _bounded(function(*args, **kwargs))

    return run


def _check_format(texts: Iterable[Any]) -> None:
    for text in texts:
        if isinstance(text, str) and _WIDE_FORMAT.search(text):
            raise Overrun("size")


def _concat(pieces: Iterable[str]) -> str:
    taken: list[str] = []
    left = MAX_CHARS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise Overrun("size")
        taken.append(piece)
    return "".join(taken)


def _tilde(*values: Any) -> str:
    return _concat(str(value) for value in values)


def _size(value: Any) -> int:
    if isinstance(value, int):
        return 1
    return len(value) if isinstance(value, str | list | tuple) else 1


def _check_binary(operator: str, left: Any, right: Any) -> None:
    match operator, left, right:
        case "**", _, int() if abs(right) > MAX_INT_BITS:
            raise Overrun("size")
        case "*", int() | str() | list() | tuple(), int() | str() | list() | tuple():
            times = left if isinstance(left, int) else right if isinstance(right, int) else 1
            if max(_size(left), _size(right)) > 1 and times * max(_size(left), _size(right)) > MAX_ITEMS:
                raise Overrun("size")
            if max(_size(left), _size(right)) == 1 and not (isinstance(left, int) and isinstance(right, int)):
                _check_arguments((left, right))
        case "%", str(), _:
            _check_format((left,))
        case _:
            pass


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplate(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscored names, which reach where the sandbox does not look."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.sandbox.SecurityError("names in a namespace may not begin with an underscore")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here it only passes its body on."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_concat)  # type: ignore[assignment]
    tick = staticmethod(_tick)
    tilde = staticmethod(_tilde)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in list(tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock))):
            node.body.insert(0, jinja2.nodes.ExprStmt(_own_call("tick", [], node.lineno), lineno=node.lineno))
        return _TildeCalls().visit(tree)  # type: ignore[no-any-return]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_binary(operator, left, right)
        return _bounded(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if __obj is _tick:
            return _tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) or __obj is not _range:
            _check_arguments(args)
            _check_arguments(kwargs.values())
        if isinstance(owner, str):
            _check_format((owner,) if getattr(__obj, "__name__", "") in ("format", "format_map") else ())
        return _bounded(super().call(__context, __obj, *args, **kwargs))


_range = jinja2.sandbox.safe_range


class _TildeCalls(jinja2.visitor.NodeTransformer):
    """Makes ``a ~ b`` a call that is bounded."""

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _own_call("tilde", node.nodes, node.lineno)


def _own_call(name: str, args: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    target = jinja2.nodes.EnvironmentAttribute(name, lineno=lineno)
    return jinja2.nodes.Call(target, args, [], None, None, lineno=lineno)


def make_environment() -> jinja2.Environment:
    """An environment with what transformers gives chat templates."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters = {name: _bounded_filter(function) for name, function in environment.filters.items()}
    environment.filters["tojson"] = _bounded_filter(_tojson)
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _Namespace
    return environment
