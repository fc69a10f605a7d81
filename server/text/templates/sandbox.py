"""The sandbox of chat templates: jinja2's immutable sandbox, configured as in transformers, with a deadline.

The sandbox keeps a template from Python's internals. It bounds neither time nor memory: a template of a request
therefore runs in a child process (:mod:`.template_process`). The model's own templates run in threads of the server.
Their only client input is the messages, which the request limits bound, but nested loops over many messages may take
hours. So every loop iteration and macro call checks the deadline, pieces of text are counted as they are joined, and
repeating a text is bounded: templates of image models repeat a marker as often as an argument says, which a request may
set.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2.exceptions import SecurityError


class RaisedByTemplate(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


class TooLate(Exception):
    """A template renders for longer than it may."""


class TooLong(Exception):
    """A template writes more characters than it may."""


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja with transformers' functions for chat templates. Safe to use from any thread."""

    intercepted_binops = frozenset({"*"})

    def __init__(self, max_chars: int) -> None:
        """``max_chars``: of a rendered text, and of each block or macro that is captured on the way."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._max_chars = max_chars
        self._deadlines = threading.local()
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    def set_deadline(self, deadline: float) -> None:
        """Deadline of this thread's next renderings, in ``time.thread_time()`` seconds: other work of a busy machine
        does not count."""
        self._deadlines.current = deadline

    def check_time(self) -> None:
        """Raises :class:`TooLate`. Templates call it: see :class:`_TimeChecks`."""
        if time.thread_time() > self._deadlines.current:
            raise TooLate

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins the output of a template or a macro. Raises :class:`TooLong`."""
        taken: list[str] = []
        total = 0
        for piece in pieces:
            total += len(piece)
            if total > self._max_chars:
                raise TooLong
            taken.append(piece)
        return "".join(taken)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """``left * right``. Raises :class:`TooLong`."""
        for sequence, times in ((left, right), (right, left)):
            repeats = isinstance(sequence, str | list | tuple) and isinstance(times, int)
            if repeats and len(sequence) * times > self._max_chars:
                raise TooLong
        return super().call_binop(context, operator, left, right)

    def _generate(
        self, source: jinja2.nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        return super()._generate(_TimeChecks().visit(source), name, filename, defer_init)


class _TimeChecks(jinja2.visitor.NodeTransformer):
    """Begins every body that can run again with a call of :meth:`TemplateEnvironment.check_time`."""

    def _with_check(self, node: jinja2.nodes.For | jinja2.nodes.Macro | jinja2.nodes.CallBlock) -> jinja2.nodes.Node:
        self.generic_visit(node)
        # a Call node would go through the sandbox's own checks of calls, at 2 µs each
        check = jinja2.nodes.EnvironmentAttribute("check_time()", lineno=node.lineno)
        node.body.insert(0, jinja2.nodes.ExprStmt(check, lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _with_check


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno)


class _Dict:
    """``dict`` without the type's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


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


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: jinja's own filter would escape it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_items_of,
    )


def _items_of(value: object) -> list[Any]:
    """Values of lazy filters as lists: llama.cpp's templates, unlike transformers', write them as JSON."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
