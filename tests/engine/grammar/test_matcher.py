"""llguidance over a vocabulary of bytes: what it allows, where it ends, and what it says when it cannot go on."""

import json
import random
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from stentor.engine.core.grammar.constraint import Complete, ConstraintBroken, ParameterSets, TokenConstraint
from stentor.engine.core.grammar.matcher import MAX_ROW_ITEMS, Compiler, GrammarError, GuidanceMatcher
from stentor.engine.core.grammar.thinking import ThinkingBudget
from stentor.engine.core.grammar.token_sets import ids_in
from stentor.protocols.ipc.actors import Thinking
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.grammar.byte_vocabulary import EOS, SIZE, TOKENS, UNTHINK, VOCABULARY, text_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "😀"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
JSON = f"start: %json {json.dumps(SCHEMA)}"


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(VOCABULARY)


def _constraint(matcher: GuidanceMatcher | None, thinking: Thinking | None = None, **params: Any) -> TokenConstraint:
    sets = ParameterSets(SamplingParams(max_tokens=500, **params), SIZE, [EOS])
    return TokenConstraint(sets, matcher, None if thinking is None else ThinkingBudget(thinking))


def _draw(constraint: TokenConstraint, rng: random.Random, limit: int = 400) -> list[int]:
    """Tokens drawn at random from what is allowed, to the end of the grammar."""
    tokens: list[int] = []
    while not constraint.ended:
        assert len(tokens) < limit, "no end"
        allowed = constraint.allowed()
        assert allowed is not None
        tokens.append(rng.choice(ids_in(allowed)))
        constraint.accept(tokens[-1])
    return tokens


def test_whatever_is_drawn_by_a_schema_validates(compiler: Compiler) -> None:
    template = compiler.compile(JSON)
    for seed in range(30):
        tokens = _draw(_constraint(template.copy(), eos_token_ids=(EOS,)), random.Random(seed))
        jsonschema.validate(json.loads(text_of(tokens)), SCHEMA)


def test_text_may_be_cut_into_tokens_in_any_way(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile('start: "hello"'))
    assert {TOKENS[token] for token in ids_in(constraint.allowed() or 0)} == {b"h", b"hello"}


@pytest.mark.parametrize("eos", [(EOS,), (EOS, 3), ()])
def test_a_grammar_that_may_end_or_go_on_is_ended_by_eos(compiler: Compiler, eos: tuple[int, ...]) -> None:
    constraint = _constraint(compiler.compile("start: /a+/"), eos_token_ids=eos)
    assert ids_in(constraint.allowed() or 0) == [97]
    constraint.accept(97)
    assert set(ids_in(constraint.allowed() or 0)) == {97, *eos}
    assert not constraint.ended
    if eos:
        constraint.accept(eos[-1])
        assert constraint.ended


def test_a_grammar_that_admits_nothing_more_has_ended_without_eos(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile('start: "ab"'), eos_token_ids=(EOS,))
    constraint.accept(97)
    assert not constraint.ended
    constraint.accept(98)
    assert constraint.ended
    with pytest.raises(Complete):
        constraint.allowed()


def test_min_tokens_hold_the_end_back_but_never_beyond_the_grammar(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile("start: /a{1,3}/"), eos_token_ids=(EOS,), min_tokens=9)
    for _ in range(3):
        assert ids_in(constraint.allowed() or 0) == [97]
        constraint.accept(97)
    assert constraint.ended


def test_what_parameters_exclude_is_not_drawn_and_where_nothing_is_left_the_sequence_breaks(compiler: Compiler) -> None:
    template = compiler.compile("start: /[abc]x/")
    constraint = _constraint(template.copy(), banned_token_ids=(97,), allowed_token_ids=(97, 98, 100))
    assert ids_in(constraint.allowed() or 0) == [98]
    constraint.accept(98)
    with pytest.raises(ConstraintBroken, match="allowed_token_ids") as broken:
        constraint.allowed()
    assert broken.value.fault == "allowed_token_ids"
    ends = _constraint(compiler.compile("start: /a+/"), banned_token_ids=(97,), eos_token_ids=())
    with pytest.raises(ConstraintBroken) as banned:
        ends.allowed()
    assert banned.value.fault == "bad_words"


def test_a_complete_text_that_parameters_let_nothing_follow_is_complete(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile("start: /ab*/"), allowed_token_ids=(97,))
    constraint.accept(97)
    with pytest.raises(Complete):
        constraint.allowed()


def test_a_token_that_does_not_fit_breaks_the_sequence_in_one_line(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile('start: "ab"'))
    with pytest.raises(ConstraintBroken, match="cannot be followed any further") as broken:
        constraint.accept(99)
    assert "\n" not in str(broken.value)
    assert "non-verbose" not in str(broken.value)


@pytest.mark.parametrize("source", ["start: /a+", "start: missing", '{"grammars": [{"x": 1}]}', ""])
def test_a_grammar_that_cannot_be_used_is_refused_in_one_line(compiler: Compiler, source: str) -> None:
    with pytest.raises(GrammarError, match="the grammar cannot be used: ") as refused:
        compiler.compile(source)
    assert "\n" not in str(refused.value)


def test_special_tokens_are_drawn_where_a_grammar_names_them_and_nowhere_else(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile(f"start: /(.|\\n)*/ <[{UNTHINK}]> /b/"))
    drawable = ids_in(constraint.allowed() or 0)
    assert UNTHINK in drawable
    assert EOS not in drawable
    constraint.accept(UNTHINK)
    assert ids_in(constraint.allowed() or 0) == [98]


def test_copies_go_their_own_ways(compiler: Compiler) -> None:
    one = compiler.compile("start: /[ab]{3}/")
    two = one.copy()
    assert one.consume(97)
    assert two.allows(98)
    assert one.allowed() == two.allowed()
    for _ in range(2):
        one.consume(98)
    assert one.stopped()
    assert not two.stopped()


def test_a_budget_forces_the_end_of_thinking_once_a_character_is_whole(compiler: Compiler) -> None:
    source = f"start: /(.|\\n)*/ <[{UNTHINK}]> /[0-9]/"
    constraint = _constraint(compiler.compile(source), Thinking(2, [], [UNTHINK], True))
    constraint.accept(97)
    assert len(ids_in(constraint.allowed() or 0)) > 100
    constraint.accept(0xC3)  # half of é
    assert UNTHINK not in ids_in(constraint.allowed() or 0)
    constraint.accept(0xA9)
    assert ids_in(constraint.allowed() or 0) == [UNTHINK]
    constraint.accept(UNTHINK)
    assert ids_in(constraint.allowed() or 0) == list(range(48, 58))


def test_a_budget_without_a_grammar_restricts_nothing_but_what_is_due() -> None:
    constraint = _constraint(None, Thinking(1, [], [40, 41], True))
    assert constraint.allowed() is None
    assert not constraint.restricts(0, 0)
    assert constraint.restricts(1, 1), "the step after may have to be forced"
    constraint.accept(5)
    for due in (40, 41):
        assert ids_in(constraint.allowed() or 0) == [due]
        constraint.accept(due)
    assert constraint.allowed() is None
    assert not constraint.restricts(1, 1)


def test_a_budget_without_a_grammar_keeps_min_tokens() -> None:
    constraint = _constraint(
        None, Thinking(9, [], [40], False), min_tokens=1, stop_token_ids=(50,), eos_token_ids=(EOS,)
    )
    allowed = set(ids_in(constraint.allowed() or 0))
    assert allowed == set(range(SIZE)) - {50, EOS}
    constraint.accept(1)
    assert constraint.allowed() is None


def test_llguidance_is_not_imported_before_a_grammar_comes() -> None:
    code = (
        "import sys; import stentor.engine.core.loop, stentor.engine.core.entry; "
        "assert not {'llguidance', 'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_a_text_with_too_many_readings_ends_before_the_next_token_takes_long(compiler: Compiler) -> None:
    """What a token costs grows with the cube of the items before it, of which each brings some 33 here."""
    doubled = "\n".join(f"{a}: {b} {b} {b} {b} {b} {b} {b} {b}" for a, b in zip("bcdef", "cdefg", strict=True))
    matcher = compiler.compile(f'start: b b\n{doubled}\ng: "a" | "b"?')
    tokens = 0
    while not matcher.error():
        matcher.allowed()
        matcher.consume(98)
        tokens += 1
    assert f"max is {MAX_ROW_ITEMS}" in matcher.error()
    assert tokens < 40


@pytest.mark.parametrize("source", [JSON, "start: /a+b?/", 'start: %json {"type": "object"}'])
def test_drafts_are_tried_on_a_copy_and_what_may_follow_them_is_what_follows_once_they_are_drawn(
    compiler: Compiler, source: str
) -> None:
    template = compiler.compile(source)
    tried = 0
    for seed in range(20):
        rng = random.Random(seed)
        constraint, drawn = (_constraint(template.copy(), eos_token_ids=(EOS,)) for _ in range(2))
        for _ in range(30):
            if constraint.ended:
                break
            allowed = constraint.allowed()
            drafts: list[int] = []
            ahead = constraint.copy()
            while len(drafts) < 4 and not ahead.ended:
                drafts.append(rng.choice(ids_in(ahead.allowed() or 0)))
                ahead.accept(drafts[-1])
            behind = list(constraint.allowed_behind(allowed, drafts))
            for draft, found in zip(drafts, [allowed, *behind], strict=False):
                assert drawn.allowed() == found
                drawn.accept(draft)
                tried += 1
            assert constraint.allowed() == allowed, "nothing of the drafts is left"
            drawn = constraint.copy()
            token = rng.choice(ids_in(allowed or 0))
            for each in (constraint, drawn):
                each.accept(token)
    assert tried > 50


def test_no_mask_follows_a_draft_that_may_not_be_drawn_or_that_ends_the_text(compiler: Compiler) -> None:
    constraint = _constraint(compiler.compile('start: "abc"'), eos_token_ids=(EOS,))
    allowed = constraint.allowed()
    assert [ids_in(each or 0) for each in constraint.allowed_behind(allowed, [97, 98, 97, 98])] == [[98], [99]]
    assert [ids_in(each or 0) for each in constraint.allowed_behind(allowed, [97, 98, 99, 97])] == [[98], [99]]
    assert list(constraint.allowed_behind(allowed, [99])) == []
    assert list(constraint.allowed_behind(allowed, [])) == []


def test_drafts_count_for_a_budget_bans_and_min_tokens_only_while_they_are_tried() -> None:
    thinking = Thinking(2, [], [40], True)
    constraint = _constraint(None, thinking, banned_sequences=((5, 6),), min_tokens=2, stop_token_ids=(50,))
    allowed = constraint.allowed()
    assert allowed is not None
    first, second, third = constraint.allowed_behind(allowed, [4, 5, 40])
    assert first == allowed, "one token is still too few to stop"
    assert ids_in(second or 0) == [40], "the budget is spent"
    assert third is None, "nothing is restricted behind the end of thinking"
    assert constraint.allowed() == allowed
