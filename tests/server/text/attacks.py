"""Templates that want what they may not have."""

from typing import Final

_BIG = "{% set b = 'a' * 8000000 %}"
_TREE = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
_TREES = _TREE + "{% set m = namespace(x=[1]) %}{% for i in range(60) %}{% set m.x = [m.x, m.x] %}{% endfor %}"
_TUPLES = "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
_PILE = "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = "
_GROW = "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = "
_END = " %}{% endfor %}"

COSTLY: Final = {
    # loops
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a filter in a loop": "{% for a in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "a range too long": "{% for i in range(10 ** 9) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "fibonacci": "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a source nested deeply": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks nested deeply": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "operators nested deeply": "{{ " + "-" * 30_000 + "1 }}",
    # values that hold themselves over and over: one call into C visits 2^60 of them
    "compare": _TREES + "{{ 1 if n.x == m.x }}",
    "compare views": _TREES + "{{ {'a': n.x}.items() == {'a': m.x}.items() }}",
    "select": _TREES + "{{ [n.x] | select('eq', m.x) | list | length }}",
    "loop.changed": _TREES + "{% for a in [n.x, m.x] %}{{ loop.changed(a) }}{% endfor %}",
    "count": _TREES + "{{ [n.x].count(m.x) }}",
    "sort": _TREES + "{{ [n.x, m.x] | sort | length }}",
    "hash": _TUPLES + "{{ {n.x: 1} | length }}",
    "unique": _TUPLES + "{{ [n.x] | unique | list | length }}",
    "print": _TREE + "{{ n.x }}",
    "print views": _TREE + "{{ {'a': n.x}.values() }}",
    "json": _TREE + "{{ n.x | tojson }}",
    "raise": _TREE + "{{ raise_exception(n.x) }}",
    "join": _TREE + "{{ ''.join([n.x] | map('string')) | length }}",
    "format": _TREE + "{{ '{0.x}'.format(n) | length }}",
    "no such item": _TREE + "{{ messages[n.x].y }}",
    # texts and lists that grow in one step
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat a list": "{{ [1] * 10 ** 10 }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) | length }}",
    "bytes": "{{ 'a'.encode() * 10000000000 }}",
    "bytes of a number": "{{ (1).to_bytes(10000000000, 'big') | length }}",
    "width of a filter": "{{ 'a' | center(10 ** 10) }}",
    "width of a method": "{{ 'a'.ljust(10000000000) }}",
    "width of percent": "{{ '%10000000000d' % 1 }}",
    "width of format": "{{ '{:>10000000000}'.format('a') }}",
    "width from a value": "{{ '{:{w}}'.format('a', w=10000000000) | length }}",
    "width from a bound method": "{% set f = '{:{}}'.format %}{{ f('a', 10000000000) | length }}",
    "many widths": "{{ ('{0:999999}' * 100000).format('a') | length }}",
    "batch": "{{ [1] | batch(10 ** 10, 'x') | list }}",
    "slice": "{{ [1] | slice(10 ** 10) | list }}",
    "indented json": "{{ [1] | tojson(indent=10000000000) | length }}",
    "deeply indented json": "{% set n = namespace(x=[1] * 9000) %}{% for i in range(400) %}{% set n.x = [n.x] %}"
    "{% endfor %}{{ n.x | tojson(indent=60) | length }}",
    "json separators": _BIG + "{{ ([1] * 10000) | tojson(separators=(b, b)) | length }}",
    "wordwrap": _BIG + "{{ b | wordwrap(1, true, b) | length }}",
    "join a range": _BIG + "{{ range(99999) | join(b) | length }}",
    "join a text": _BIG + "{{ b.join(b) | length }}",
    "sum of lists": "{{ ([[1] * 100000] * 1000) | sum(start=[]) | length }}",
    "lorem ipsum": "{{ lipsum(n=1000000) | length }}",
    "date": _BIG + "{{ strftime_now(b ~ '%2000000000Y') | length }}",
    # numbers and time
    "a power": "{{ 9 ** (9 ** 9) }}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(90) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "round": "{{ 1 | round(1000000000, 'ceil') }}",
    "strip": "{{ ('a' * 4000000).strip('b' * 4000000 ~ 'a') | length }}",
    "select in": "{% set l = range(99999) | list * 10 %}{{ range(99999) | select('in', l) | list | length }}",
    # memory, a piece at a time
    "doubling by tilde": _GROW + "n.x ~ n.x" + _END,
    "doubling by plus": _GROW + "n.x + n.x" + _END,
    "doubling by block": "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
    "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y" + _END,
    "doubling by join": _GROW + "[n.x, n.x] | join" + _END,
    "doubling by replace": _GROW + "n.x.replace('a', 'aa')" + _END,
    "doubling lists": _PILE.replace("[]", "[1]") + "n.x + n.x" + _END,
    "output": "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "pile of texts": _PILE + "n.x + ['a' * 8000000]" + _END,
    "pile of lists": _PILE + "n.x + [[i] * 1000000]" + _END,
    "pile of slices": _BIG + _PILE + "[n.x, b[i:]]" + _END,
    "pile of literals": _PILE + "[n.x, " + "i," * 8000 + "]" + _END,
    "pile of pieces": _BIG + _PILE + "[n.x, ('ab,' * 400000).split(',')]" + _END,
}
"""Each takes hours or many gigabytes, or is nested too deeply."""

WRONG: Final = {
    "class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'str' object is unsafe"),
    "globals": ("{{ raise_exception.__globals__.os }}", "'__globals__' of 'function' object is unsafe"),
    "namespace": ("{% set n = namespace(__class__=1) %}", "underscore"),
    "namespace by name": ("{% set n = namespace() %}{% set n._x = 1 %}", "underscore"),
    "mutation": ("{{ messages.append(1) }}", "is unsafe"),
    "mutation of a message": ("{{ messages[0].update(a=1) }}", "is unsafe"),
    "import": ("{% import 'os' as os %}", "TypeError"),
    "import from": ("{% from 'os' import path %}", "TypeError"),
    "include": ("{% include ['/etc/passwd', 'x'] ignore missing %}", "TypeError"),
    "set": ("{% set messages.x = 1 %}", "non-namespace object"),
    "syntax": ("{% for %}", "wrong in line 1"),
    "undefined": ("{{ missing.attribute.deeper }}", "'missing' is undefined"),
    "division": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "type": ("{{ 1 + 'a' }}", "TypeError"),
    "unknown filter": ("{{ 1 | nothing }}", "No filter named 'nothing'"),
    "raise": ("{{ raise_exception('no /etc/passwd') }}", "refused the conversation: no /etc/passwd"),
    "half a character": (r"{{ '\ud800' }}", "half a character"),
    "half a character raised": (r"{{ raise_exception('\ud800') }}", "refused the conversation"),
}
"""Each is refused at once, with these words."""

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
}
"""Each is refused or comes to nothing: no type, no function, no module."""
