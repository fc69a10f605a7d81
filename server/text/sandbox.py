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
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2.exceptions import SecurityError

from .limits import FILTER_CHECKS, METHOD_CHECKS, bounded, check_binary, check_time, concat, measure

_NEEDLESS_FILTERS: Final = ("pprint", "urlize", "xmlattr")
_FORMATTERS: Final = ("format", "format_map")


class RaisedByTemplate(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


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
    """Writes a time check into every body that can run again, and makes ``a ~ b`` a bounded call."""

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


def _own_call(name: str, args: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    target = jinja2.nodes.EnvironmentAttribute(name, lineno=lineno)
    return jinja2.nodes.Call(target, args, [], None, None, lineno=lineno)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(concat)
    check_time = staticmethod(check_time)
    tilde = staticmethod(_tilde)

    def _generate(
        self, source: jinja2.nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        tree = _BoundedCalls().visit(source)
        return super()._generate(tree, name, filename, defer_init)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_binary(operator, left, right)
        return bounded(super().call_binop(context, operator, left, right))

    # the first names are mangled, so that they cannot clash with keywords of the template's call
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj is check_time:
            return check_time()
        text = getattr(__obj, "__self__", None)
        # jinja hands out its own wrapper for the two that format, and keeps the method inside
        name = getattr(__obj, "__name__", "")
        if name in _FORMATTERS and not isinstance(text, str):
            text = getattr(getattr(__obj, "__wrapped__", None), "__self__", None)
        if isinstance(text, str) and name in METHOD_CHECKS:
            METHOD_CHECKS[name](text, *args, *kwargs.values())
        return bounded(super().call(__context, __obj, *args, **kwargs))


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    check = FILTER_CHECKS.get(name)
    # jinja passes some filters their context, environment or evaluation context first
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        check_time()
        if check is not None:
            check(*args[skipped:], *kwargs.values())
        return bounded(function(*args, **kwargs))

    return run


def make_environment() -> jinja2.Environment:
    """An environment with what transformers gives chat templates, bounded."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    filters = {**environment.filters, "tojson": _tojson}
    for name in _NEEDLESS_FILTERS:
        del filters[name]
    environment.filters = {name: _bounded_filter(name, function) for name, function in filters.items()}
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _Namespace
    return environment
