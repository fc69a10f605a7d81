"""Where chat templates run: jinja2's sandbox, with what a template may use up bounded as well.

The sandbox keeps a template from reaching Python's internals. What it leaves open is time and
memory: loops in loops, strings that double, widths of a billion. A request may bring its own
template, so these are bounded where they arise: every turn of a loop and every call of a macro
counts against a deadline (through a call written into their bodies), and operators, filters,
methods and captured blocks pass the checks of :mod:`.limits`.
"""

import functools
import json
from collections.abc import Callable
from datetime import datetime
from types import FunctionType
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter

from .guards import (
    LAZY_FILTERS,
    check_indented,
    check_join,
    check_round,
    guard_test,
    is_callable_method,
    measured,
    take,
)
from .limits import (
    FILTER_CHECKS,
    METHOD_CHECKS,
    Overrun,
    bounded,
    check_binary,
    check_chars,
    check_time,
    concat,
    measure,
)

_NEEDLESS_FILTERS: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
_FORMATTERS: Final = ("format", "format_map")
_MAX_DATE_FORMAT: Final = 256
_NEW_ITEM_BYTES: Final = 64
"""Of a list of short texts, as splitting one makes."""
_SHORT_LITERAL: Final = 8
"""Items of a list that may be written without being counted."""
_FILTER_CHECKS: Final[dict[str, Callable[..., None]]] = {
    **FILTER_CHECKS,
    "join": check_join,
    "round": check_round,
}


class RaisedByTemplate(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


def _raise_exception(message: object) -> NoReturn:
    measure(message)
    raise RaisedByTemplate(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_DATE_FORMAT:
        raise Overrun("size")
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: jinja's own filter would escape it for HTML."""
    if indent is not None:
        check_indented(value, len(indent) if isinstance(indent, str) else int(indent))
    if separators is not None:
        check_chars(measure(value) * (1 + sum(map(len, separators))))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's own adds up in one call, and lists as well."""
    assert isinstance(environment, jinja2.sandbox.SandboxedEnvironment)
    items = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
    total = start
    for item in items:
        check_time()
        total = environment.call_binop(None, "+", total, item)  # type: ignore[arg-type]
    return total


def _finalize(value: Any) -> Any:
    """Every value on its way into the text."""
    if not isinstance(value, str | jinja2.Undefined):
        measure(value)
    return value


def _tilde(*values: Any) -> str:
    return concat(str(_finalize(value)) for value in values)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscored names, which reach where the sandbox does not look."""

    # no name for the instance, so that a template may have an attribute called self
    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __repr__(self) -> str:
        return "<Namespace>"  # its values may print far longer than they are

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("names in a namespace may not begin with an underscore")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _BoundedCalls(jinja2.visitor.NodeTransformer):
    """Writes checks where jinja offers none.

    Every body that can run again begins with a look at the clock; ``a ~ b`` becomes a bounded call;
    what is compared is measured; slices and long literals are counted.
    """

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        return self._with_check(node)

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Node:
        return self._with_check(node)

    def visit_CallBlock(self, node: jinja2.nodes.CallBlock) -> jinja2.nodes.Node:
        return self._with_check(node)

    def _with_check(self, node: jinja2.nodes.For | jinja2.nodes.Macro | jinja2.nodes.CallBlock) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.ExprStmt(_own_call("check_time", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _own_call("tilde", node.nodes, node.lineno)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:
        self.generic_visit(node)
        # a constant is no list, and is compared with one at no cost
        if len(node.ops) > 1 or not (_is_constant(node.expr) or _is_constant(node.ops[0].expr)):
            node.expr = _own_call("measured", [node.expr], node.lineno)
            for operand in node.ops:
                operand.expr = _own_call("measured", [operand.expr], node.lineno)
        return node

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _own_call("bounded", [node], node.lineno)
        if not _is_constant(node.arg):
            # it is hashed, or printed where there is no such item
            node.arg = _own_call("measured", [node.arg], node.lineno)
        return node

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if len(node.items) <= _SHORT_LITERAL else _own_call("bounded", [node], node.lineno)

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if len(node.items) <= _SHORT_LITERAL else _own_call("bounded", [node], node.lineno)

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if node.ctx != "load" or (len(node.items) <= _SHORT_LITERAL and all(map(_is_constant, node.items))):
            return node
        # alone of these it can be hashed, which visits all that it holds
        return _own_call("bounded", [_own_call("measured", [node], node.lineno)], node.lineno)


def _is_constant(node: jinja2.nodes.Node) -> bool:
    return isinstance(node, jinja2.nodes.Const)


def _own_call(name: str, args: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    target = jinja2.nodes.EnvironmentAttribute(name, lineno=lineno)
    return jinja2.nodes.Call(target, args, [], None, None, lineno=lineno)


_OWN_CALLS: Final[frozenset[Any]] = frozenset((check_time, measured, bounded, _tilde))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(concat)
    check_time = staticmethod(check_time)
    tilde = staticmethod(_tilde)
    measured = staticmethod(measured)
    bounded = staticmethod(bounded)

    def _generate(
        self, source: jinja2.nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        tree = _BoundedCalls().visit(source)
        return super()._generate(tree, name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if callable(value) and not is_callable_method(obj, attr):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_binary(operator, left, right)
        return bounded(super().call_binop(context, operator, left, right))

    # the first names are mangled, so that they cannot clash with keywords of the template's call
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is FunctionType and __obj in _OWN_CALLS:
            return __obj(*args)
        text = getattr(__obj, "__self__", None)
        # jinja hands out its own wrapper for the two that format, and keeps the method inside
        name = getattr(__obj, "__name__", "")
        if name in _FORMATTERS and not isinstance(text, str):
            text = getattr(getattr(__obj, "__wrapped__", None), "__self__", None)
        if isinstance(text, str):
            if name == "join":
                check_join(*args, text)
            elif name in METHOD_CHECKS:
                METHOD_CHECKS[name](text, *args, *kwargs.values())
        elif isinstance(text, list | tuple | jinja2.runtime.LoopContext):
            for value in (text, *args):
                measured(value)
        return bounded(super().call(__context, __obj, *args, **kwargs), _NEW_ITEM_BYTES)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    check = _FILTER_CHECKS.get(name)
    unmeasured = 1 if name in LAZY_FILTERS else 0
    # jinja passes some filters their context, environment or evaluation context first
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        check_time()
        given = (*args[skipped:], *kwargs.values())
        for value in given[unmeasured:]:
            measured(value)
        if check is not None:
            check(*given)
        value = function(*args, **kwargs)
        return bounded(take(value) if hasattr(value, "__next__") else value, _NEW_ITEM_BYTES)

    return run


def make_environment() -> jinja2.Environment:
    """An environment with what transformers gives chat templates, bounded."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    filters = {**environment.filters, "sum": _sum, "tojson": _tojson}
    for name in _NEEDLESS_FILTERS:
        del filters[name]
    environment.filters = {name: _bounded_filter(name, function) for name, function in filters.items()}
    tests: Any = environment.tests  # annotated as builtin functions
    environment.tests = {name: guard_test(name, test) for name, test in tests.items()}
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _Namespace
    return environment
