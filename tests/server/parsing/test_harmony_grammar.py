"""What gpt-oss's grammars allow is what its parser reads, and the other way round where the format says so."""

import json
import random
from collections.abc import Callable

import jsonschema
import pytest
from tokenizers import AddedToken

from stentor.engine.core.grammar.matcher import Compiler, Matcher
from stentor.server.grammar.answers import compose
from stentor.server.grammar.lark import Lark
from stentor.server.parsing.harmony import MARKERS
from stentor.server.parsing.interface import CallArguments, CallEnd, CallStart, Content, Thought, Tool
from stentor.server.parsing.output import HARMONY_TOOLS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.text.tokenizers.grammar_tokens import special_tokens_of, token_bytes_of
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.fakes import EOS, byte_tokenizer
from stentor.tests.server.grammar.walking import ids_in_sample
from stentor.tests.server.parsing.pieces import of_kind, parse

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("get_weather", None, SCHEMA), Tool("now", None, None)]
HARMONY = OutputFormat(REASONING_FORMATS["gpt_oss"], HARMONY_TOOLS)


def tokenizer() -> Tokenizer:
    backend = byte_tokenizer().backend
    backend.add_special_tokens([AddedToken(text, special=True) for text in sorted(MARKERS)])
    return Tokenizer(backend, {"eos_token": "</s>"}, None)


TOKENIZER = tokenizer()
COMPILER = Compiler(token_bytes_of(TOKENIZER, (EOS,)))


def matcher_of(body: Callable[[Lark], str], *, thinking: bool = True) -> Matcher:
    lark = Lark(special_tokens_of(TOKENIZER))
    reasoning = HARMONY.reasoning
    assert reasoning is not None
    source = compose(
        lark,
        thinking_end=reasoning.end if thinking else None,
        opened=False,
        body=body(lark),
        thinking_begin=reasoning.begin,
    )
    return COMPILER.compile(source)


def allows(matcher: Matcher, text: str) -> bool:
    """Whether the text is accepted whole, or up to a point where the grammar allows only the end."""
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        if not matcher.consume(token):
            return False
    return matcher.accepting()


def written(matcher: Matcher, seed: int) -> str:
    choose = random.Random(seed)
    ids: list[int] = []
    while not matcher.stopped() and len(ids) < 400:
        token = choose.choice(ids_in_sample(matcher.allowed(), choose))
        if token == EOS:
            break
        assert matcher.consume(token)
        ids.append(token)
    return TOKENIZER.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("seed", range(12))
def test_a_required_call_is_read_back_as_one_call_that_its_schema_allows(seed: int) -> None:
    text = written(matcher_of(lambda lark: HARMONY_TOOLS.grammar(lark, TOOLS, parallel=True), thinking=False), seed)
    parser = HARMONY.parser(TOOLS, opened=False)
    assert parser is not None
    start, arguments, end = parse(parser, [text])
    assert isinstance(start, CallStart)
    assert isinstance(arguments, CallArguments)
    assert isinstance(end, CallEnd)
    found = json.loads(arguments.text)
    jsonschema.validate(found, SCHEMA if start.name == "get_weather" else {"type": "object", "maxProperties": 0})


CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bern"}<|call|>'
THOUGHT = "<|channel|>analysis<|message|>Hm {<|end|><|start|>assistant"
ASIDE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"


def test_a_required_call_may_be_thought_about_first_and_must_come_then() -> None:
    def required(lark: Lark) -> str:
        return HARMONY_TOOLS.grammar(lark, TOOLS, parallel=False)

    assert allows(matcher_of(required), CALL)
    assert allows(matcher_of(required), THOUGHT + CALL)
    assert not allows(matcher_of(required), THOUGHT + "<|channel|>final<|message|>No")
    assert not allows(matcher_of(required), CALL.replace("Bern", "Rome"))


def test_strict_tools_leave_everything_free_but_their_calls() -> None:
    def free(lark: Lark) -> str:
        return HARMONY_TOOLS.free_grammar(lark, TOOLS)

    final = "<|channel|>final<|message|>It rains {.<|return|>"
    for text in (CALL, THOUGHT + CALL, THOUGHT + ASIDE + CALL, THOUGHT + final, final, final[: -len("<|return|>")]):
        assert allows(matcher_of(free), text), text
    assert not allows(matcher_of(free), THOUGHT + CALL.replace("Bern", "Rome"))


@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_a_constrained_answer_is_a_final_message(thought: str) -> None:
    matcher = matcher_of(lambda lark: HARMONY.answer(lark, lark.json(SCHEMA)))
    text = thought + '<|channel|>final<|message|>{"city": "Zürich"}<|return|>'
    assert allows(matcher, text)
    parser = HARMONY.parser((), opened=False)
    assert parser is not None
    pieces = parse(parser, [text])
    assert of_kind(pieces, Content) == '{"city": "Zürich"}'
    assert of_kind(pieces, Thought) == ("Hm {" if thought else "")


def test_other_formats_have_nothing_around_an_answer() -> None:
    assert OutputFormat(REASONING_FORMATS["qwen3"]).answer(Lark({}), "x") == "x"
