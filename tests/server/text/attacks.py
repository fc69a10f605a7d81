"""Templates that want what they may not have, and a program that renders them one by one and says what came of it.

A program of its own, since what gets through may hold the interpreter's lock for ever, or fill the memory.
"""

import json
import resource
import sys
import time
from typing import Final

from stentor.server.text.chat_template import ChatTemplate
from stentor.server.text.errors import TemplateError

SECONDS: Final = 0.1
MEMORY: Final = 3 << 29

_BIG = "{% set b = 'a' * 8000000 %}"
_TREE = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
_TREES = _TREE + "{% set m = namespace(x=[1]) %}{% for i in range(60) %}{% set m.x = [m.x, m.x] %}{% endfor %}"
_TUPLES = "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
_PILE = "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = "
_END = " %}{% endfor %}"

COSTLY: Final = {
    # values that hold themselves over and over
    "compare": _TREES + "{{ 1 if n.x == m.x }}",
    "compare views": _TREES + "{{ {'a': n.x}.items() == {'a': m.x}.items() }}",
    "look in a list": _TREES + "{{ n.x in [m.x] }}",
    "test eq": _TREES + "{{ n.x is eq m.x }}",
    "test in": _TREES + "{{ n.x is in [m.x] }}",
    "select eq": _TREES + "{{ [n.x] | select('eq', m.x) | list | length }}",
    "selectattr eq": _TREES + "{{ [n] | selectattr('x', 'eq', m.x) | list | length }}",
    "loop.changed": _TREES + "{% for a in [n.x, m.x] %}{{ loop.changed(a) }}{% endfor %}",
    "count": _TREES + "{{ [n.x].count(m.x) }}",
    "sort": _TREES + "{{ [n.x, m.x] | sort | length }}",
    "sort by attribute": _TREES + "{{ [n, m] | sort(attribute='x') | length }}",
    "group": _TREES + "{{ [{'a': n.x}, {'a': m.x}] | groupby('a') | length }}",
    "dictsort": _TREES + "{{ {'a': n.x, 'b': m.x} | dictsort(by='value') | length }}",
    "min": _TREES + "{{ [n.x, m.x] | min | length }}",
    "hash": _TUPLES + "{{ {n.x: 1} | length }}",
    "look up": _TUPLES + "{{ {1: 1}[n.x] }}",
    "unique": _TUPLES + "{{ [n.x] | unique | list | length }}",
    "raise": _TREE + "{{ raise_exception(n.x) }}",
    "print views": _TREE + "{{ {'a': n.x}.values() }}",
    "join": _TREE + "{{ [n.x] | map('default') | join | length }}",
    "join attribute": _TREE + "{{ [n] | join(attribute='x') | length }}",
    "method join": _TREE + "{{ ''.join([n.x] | map('string')) | length }}",
    "format": _TREE + "{{ '{0.x}'.format(n) | length }}",
    "text filter": _TREE + "{{ n.x | upper | length }}",
    "no such item": _TREE + "{{ messages[n.x].y }}",
    # texts that grow in one step
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) | length }}",
    "bytes": "{{ 'a'.encode() * 10000000000 }}",
    "bytes of a number": "{{ (1).to_bytes(10000000000, 'big') | length }}",
    "width from a value": "{{ '{:{w}}'.format('a', w=10000000000) | length }}",
    "width from a bound method": "{% set f = '{:{}}'.format %}{{ f('a', 10000000000) | length }}",
    "width from a map": "{{ '{a:{b}}'.format_map({'a': 'x', 'b': 10000000000}) | length }}",
    "many widths": "{{ ('{0:999999}' * 100000).format('a') | length }}",
    "indented json": "{{ [1] | tojson(indent=10000000000) | length }}",
    "deeply indented json": "{% set n = namespace(x=[1] * 9000) %}{% for i in range(400) %}{% set n.x = [n.x] %}"
    "{% endfor %}{{ n.x | tojson(indent=60) | length }}",
    "json separators": _BIG + "{{ ([1] * 10000) | tojson(separators=(b, b)) | length }}",
    "wordwrap": _BIG + "{{ b | wordwrap(1, true, b) | length }}",
    "join a range": _BIG + "{{ range(99999) | join(b) | length }}",
    "join mapped": _BIG + "{{ range(99999) | map('string') | join(b) | length }}",
    "join a text": _BIG + "{{ b.join(b) | length }}",
    "sum of lists": "{{ ([[1] * 100000] * 1000) | sum(start=[]) | length }}",
    "date": _BIG + "{{ strftime_now(b ~ '%2000000000Y') | length }}",
    # numbers and time
    "round": "{{ 1 | round(1000000000, 'ceil') }}",
    "round mapped": "{{ [1] | map('round', 99999999, 'floor') | list }}",
    "strip": "{{ ('a' * 4000000).strip('b' * 4000000 ~ 'a') | length }}",
    "select in": "{% set l = range(99999) | list * 10 %}{{ range(99999) | select('in', l) | list | length }}",
    # memory, a piece at a time
    "pile of texts": _PILE + "n.x + ['a' * 8000000]" + _END,
    "pile of lists": _PILE + "n.x + [[i] * 1000000]" + _END,
    "pile of slices": _BIG + _PILE + "[n.x, b[i:]]" + _END,
    "pile of literals": _PILE + "[n.x, " + "i," * 8000 + "]" + _END,
    "pile of pieces": _BIG + _PILE + "[n.x, ('ab,' * 400000).split(',')]" + _END,
}
"""Each has to be refused."""

CURIOUS: Final = {
    "attr": "{{ '' | attr('__class__') }}",
    "attr in parts": "{{ '' | attr('__cla' ~ 'ss__') }}",
    "item": "{{ ''['__class__'] }}",
    "map": "{{ [''] | map(attribute='__class__') | list }}",
    "format": "{{ '{0.__class__}'.format('') }}",
    "format map": "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}",
    "bound format": "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "markup format": "{{ ('{0.__class__}' | safe).format('') }}",
    "generator": "{{ (messages | map('string')).gi_frame }}",
    "context": "{{ self._TemplateReference__context }}{{ context }}{{ environment }}",
    "loop": "{% for i in [1] %}{{ loop._iterable }}{{ loop.__class__ }}{% endfor %}",
    "macro": "{% macro f() %}{% endmacro %}{{ f._environment }}{{ f._func }}",
    "caller": "{% macro f() %}{{ caller.__globals__ }}{% endmacro %}{% call f() %}{% endcall %}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "joiner": "{{ joiner | attr('__init__') }}",
    "namespace": "{% set n = namespace() %}{{ n._Namespace__attrs }}{{ namespace.__init__ }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "undefined": "{{ missing._fail_with_undefined_error }}{{ missing.__init__ }}",
    "function": "{{ dict.__globals__ }}{{ raise_exception.__code__ }}{{ strftime_now.__closure__ }}",
    "import": "{% from 'os' import path %}",
    "include": "{% include ['/etc/passwd', 'x'] ignore missing %}",
    "change": "{{ messages.append(1) }}",
    "set": "{% set messages.x = 1 %}",
}
"""Each has to be refused or to come to nothing: no type, no function, no module."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    table = {"costly": COSTLY, "curious": CURIOUS}[sys.argv[1]]
    template = ChatTemplate(None, {}, max_seconds=SECONDS)
    for name, source in table.items():
        print(json.dumps(name), flush=True)
        began = time.process_time()
        try:
            text, error = template.render([{"role": "user", "content": "x"}], chat_template=source), None
        except TemplateError as refusal:
            text, error = "", str(refusal)
        print(json.dumps([text[:500], error, time.process_time() - began]), flush=True)


if __name__ == "__main__":
    main()
