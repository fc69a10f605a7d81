"""A grammar that was turned allows, between quotes, the JSON of what the client's own allows, and nothing else."""

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.core.grammar.matcher import Compiler, GrammarError
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.tools import MAX_LARK
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.quoted_lark import COMMON, MAX_LENGTH, _quoted, quoted_lark
from stentor.server.grammar.quoted_regex import quoted_text
from stentor.server.text.tokenizers.grammar_tokens import token_bytes_of
from stentor.tests.examples import examples
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.grammar.walking import KeepingCompiler, matches, written
from stentor.tests.support.counting import takes_linear_time

SUM: Final = r"""
// sums, in brackets or not
start: e
e: e ("+" | "-") t | t
t: "(" e ")" | NUMBER   # what else
NUMBER: /[0-9]{1,3}/
"""
SQL: Final = r"""
start: "SELECT" SP columns SP "FROM" SP NAME (SP "WHERE" SP condition)? ";"
columns: NAME ("," SP NAME)* | "*"
condition: NAME SP "=" SP TEXT
NAME: /[a-z_]{1,4}/
TEXT: "'" /[^']{0,4}/ "'" | "\"" /(\\.|[^"\\\n]){0,3}/ "\""
SP: " " | "\n\t"
"""
PATCH: Final = r"""
start: begin hunk{1,2} end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " /[a-z\/.]{1,6}/ LF add{1,2}
add: "+" /([ "\\\t]*)/ LF -> line
%import common.LF
"""
OPERATORS: Final = r"""
start: A | B | C ~ 2 | d
A: /[a"\n]{2,4}/ & ~/(?s:.*)\n\n(?s:.*)/
B: "<" ~("a" | "\"") & /<(?s:.){1,3}/
C: "0".."9" | "\x0e".."\x1f"
d: "HeLLo\n"i [ "?" ] ~"\\" "!"
"""
SPACED: Final = r"""
%import common (INT, WS)
%import common.CNAME -> WORD
%ignore WS
%ignore /#[^\n]{0,2}\n/
start: statement{1,3}
statement: WORD "=" (INT | ESCAPED) ";"
ESCAPED: /"([^"\\]|\\.){0,3}"/
"""
PARTS: Final = {"sum": SUM, "sql": SQL, "patch": PATCH, "operators": OPERATORS, "spaced": SPACED}
TEXTS: Final = {
    "sum": ["1", "(1+2)-33", "((7))", "", "1+", "(1", "1 ", "1234"],
    "sql": ["SELECT * FROM t;", 'SELECT a, b FROM t WHERE c = "\\"x";', "SELECT a\n\tFROM t;", "SELECT * FROM t"],
    "patch": [
        '*** Begin Patch\n*** Add File: a/b\n+ "\t\\\n+\n*** End Patch\n', "*** Begin Patch\n*** Add File: a\n+ \n+\n"
    ],
    "operators": [
        'a"', "a\na\n", "a\n\n", "<b", "<a", '<"', "<ab", "12", "\x10\x1f", "hEllO\n?\x00!", "HELLO\n\\!",
        "HELLO\nx!", "1", "<\xff",
    ],
    "spaced": ["a=1;", 'a = "x\\"y" ;\nb\t= 2;', "a = 1 # n\n;", "a = ;", "a b", "a=1;b=2;c=3;d=4;"],
}  # fmt: skip
BYTES: Final = token_bytes_of(byte_tokenizer(), (257,))


@pytest.fixture(scope="module")
def bytewise() -> Compiler:
    return KeepingCompiler(BYTES)


def string_of(source: str) -> str:
    lark = Lark({"<s>": 256, "</s>": 257})
    return lark.source(f'"\\"" {lark.grammar(quoted_lark(source, "f"))} "\\""')


def accepts(compiler: Compiler, source: str, text: str) -> bool:
    return matches(compiler.compile(source), text.encode())


@pytest.mark.parametrize("name", PARTS)
def test_the_same_texts_are_allowed(bytewise: Compiler, name: str) -> None:
    allowed = 0
    for text in TEXTS[name]:
        mine = accepts(bytewise, string_of(PARTS[name]), f'"{quoted_text(text)}"')
        assert mine == accepts(bytewise, PARTS[name], text), text
        allowed += mine
    assert 0 < allowed < len(TEXTS[name])


@pytest.mark.parametrize("name", PARTS)
def test_whatever_is_written_is_json_of_what_the_clients_grammar_allows(bytewise: Compiler, name: str) -> None:
    ended = 0
    for seed in range(12):
        text, whole = written(bytewise, BYTES, string_of(PARTS[name]), seed, most=400)
        if not whole:
            continue
        ended += 1
        said = json.loads(text)
        if name == "spaced":
            said = said.rstrip()  # where a grammar stands alone, nothing is ignored behind its last word
        assert accepts(bytewise, PARTS[name], said), said
        assert text == f'"{quoted_text(json.loads(text))}"'
    assert ended >= 6


LINE: Final = 'start: line+ "end"\nline: "> " {} LF\n%import common.LF\n'


@pytest.mark.parametrize(
    "what",
    ["/.*/", "/(.+)/", "/[^\\n]*/", "TEXT", "WORD*", "/x?.*/", "/(a|[^\\n])*/", "/.{1,}/", '/a.*|".*/i'],
)
def test_what_takes_anything_ends_where_a_line_does(bytewise: Compiler, what: str) -> None:
    source = LINE.format(what) + 'TEXT: /[^\\n]/+\nWORD: /"?[^\\n ]+/\n'
    for text in ('> a\n> "a\\\t"\nend', '> a"\nend', "> a", "end"):
        mine = accepts(bytewise, string_of(source), f'"{quoted_text(text)}"')
        assert mine == accepts(bytewise, source, text) == (text.endswith("end") and len(text) > 3), text


@pytest.mark.parametrize("ignored", ["%ignore /[ \\n]+/", "%ignore WS\n%import common.WS", "%ignore WS\nWS: /[ \\n]/+"])
def test_white_space_ends_where_a_quotation_mark_stands(bytewise: Compiler, ignored: str) -> None:
    source = f'start: ("\\"" | "a")+ "."\n{ignored}\n'
    for text in ('a \n" "\n\n a.', '"\n"."', "a b."):
        mine = accepts(bytewise, string_of(source), f'"{quoted_text(text)}"')
        assert mine == accepts(bytewise, source, text) == (text[-2:] == "a."), text


@st.composite
def grammars(draw: st.DrawFn) -> str:
    """Three rules and two terminals, of any few characters, with brackets, denials and repeats."""
    text = st.text('ab"\\\n\t é', min_size=1, max_size=3).map(lambda text: json.dumps(text))
    pattern = st.sampled_from(["/[^a]/", "/[a-b]{1,2}/", r"/\n|\\/", "/./", r'/[^"\\]/', r"/\w+/", "/(?s:.)b/"])
    terminal = st.one_of(text, pattern, text.map(lambda text: text + "i"))
    lines = [f"{name}: {draw(terminal)} | {draw(terminal)} {draw(terminal)}" for name in ("A", "B")]
    lines.append(f"C: /(?s:.{{1,3}})/ & ~({draw(terminal)} | {draw(terminal)})")
    atom = st.one_of(terminal, st.sampled_from(["A", "B", "C", "x", '"(" x ")"', "[ A ]", "(A | B)*"]))
    lines.append(f"x: {draw(atom)} {draw(terminal)} | {draw(terminal)}")
    return "\n".join([f"start: {draw(atom)} | {draw(atom)} x", *draw(st.permutations(lines))])


@settings(max_examples=examples(30, 300), deadline=None)
@given(grammars(), st.integers(0, 9))
def test_of_any_grammar_what_is_written_is_allowed(bytewise: Compiler, source: str, seed: int) -> None:
    try:
        bytewise.compile(source)
    except GrammarError:
        return
    text, whole = written(bytewise, BYTES, string_of(source), seed, most=60)
    if whole:
        assert accepts(bytewise, source, json.loads(text)), text


@pytest.mark.parametrize("name", COMMON)
def test_names_of_the_common_module_mean_what_they_mean_to_the_engine(bytewise: Compiler, name: str) -> None:
    texts = [
        *'0a_Z- \n\r\t\f"#/.+', "12", "-1", "+1.5", ".5", "1.", "1e5", "1.5E-3", "e5", '"a\\"b"', '"a', "aZ", "_a1",
        "\r\n\n", "# x", "// x", "-- x", "/* * x */", "/**/", " \t", " \n", "f0", "1.e5", "-.5e+5",
    ]  # fmt: skip
    theirs = f"%import common.{name}\nstart: {name}"
    taken = [text for text in texts if accepts(bytewise, theirs, text)]
    assert taken
    assert [text for text in texts if accepts(bytewise, string_of(theirs), f'"{quoted_text(text)}"')] == taken


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("start: <|end|>", "token"), ('start: %json {"type": "object"}', "%json"), ("start: @other", "@other"),
        ('start: %regex {"substring_words": "a b"}', "%regex"), ('start: %lark {\nstart: "a"\n}', "%lark"),
        ("start: /a\\b/", "escape"), ('start: "\\q"', "quotes"), ('start: "\\ud800"', "half"),
        ('start: "b".."a"', "range"), ("%import common.NOPE\nstart: NOPE", "NOPE"),
        ("%import python.X\nstart: X", "%import"), ("%llguidance {}\nstart: \"a\"", "%llguidance"),
        ('start[stop="a"]: /.*/', "stop"), ("%declare A\nstart: A", "%declare"),
    ],
)  # fmt: skip
def test_what_cannot_be_turned_is_refused_with_its_place(source: str, said: str) -> None:
    with pytest.raises(BadRequest, match="`tools.0..x`: .*" + said) as refused:
        quoted_lark(source, "tools[0].x")
    assert refused.value.param == "tools[0].x"


def test_what_is_made_of_a_grammar_is_bounded() -> None:
    with pytest.raises(BadRequest, match="too large"):
        quoted_lark("start: /" + "." * (MAX_LENGTH // 50) + "/", "f")


@pytest.mark.proof(each="part")
@pytest.mark.parametrize(
    "part",
    [
        "(",
        "[",
        "~",
        "~(",
        '"a" ',
        "/./ ",
        "/(/",
        "A: /./\n",
        "|",
        "\n",
        " ",
        "%ignore WS\n",
        "#",
        "\\",
        '"',
        "/",
        "%import common.WS\n",
    ],
)
def test_it_takes_no_longer_than_a_text_is_long(part: str) -> None:
    def work(length: int) -> Callable[[], None]:
        _quoted.cache_clear()
        return partial(_quote, "start: " + part * (length // len(part)))

    assert takes_linear_time(work, MAX_LARK // 2)


def _quote(source: str) -> None:
    with contextlib.suppress(BadRequest):
        quoted_lark(source, "f")


@settings(max_examples=examples(75, 1500), deadline=None)
@given(st.text('start: AB\n"/\\[]()~|&%<>@#{}*+?ignore.,-!0', max_size=40))
def test_no_text_makes_it_fail(source: str) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(quoted_lark(source, "f"), str)
