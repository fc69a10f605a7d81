"""Grammars that requests wait for: each is answered once, or has ended before its turn."""

from collections.abc import Callable

import anyio
import pytest

from stentor.engine.core.grammar import structured_output as keeper
from stentor.engine.core.grammar.grammar_queue import GrammarQueue, Prepared
from stentor.engine.core.grammar.matcher import Compiler, GuidanceMatcher
from stentor.engine.core.grammar.structured_output import RequestConstraints, StructuredOutputManager
from stentor.engine.core.grammar.vocabulary import pieces_of
from stentor.protocols.ipc.actors import Resumed, Submit, Thinking
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.grammar.byte_vocabulary import EOS, TOKENS, VOCABULARY

pytestmark = pytest.mark.anyio


def _submit(rid: int = 0, grammar: str = "start: /[ab]{4}/", n: int = 2, **fields: object) -> Submit:
    params = SamplingParams(max_tokens=9)
    return Submit(rid, [1], params, list(range(n)), 0, "", 0.0, grammar=grammar, **fields)  # type: ignore[arg-type]


def _grammars() -> StructuredOutputManager:
    grammars = StructuredOutputManager()
    for piece in pieces_of(TOKENS, frozenset(VOCABULARY.special), frozenset([EOS])):
        grammars.take(piece)
    return grammars


class Gate:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.entered = 0

    async def __call__(self, work: Callable[[], RequestConstraints]) -> RequestConstraints:
        self.entered += 1
        await self.open.wait()
        return work()


def _lives(rid: int) -> bool:
    return True


async def test_a_request_gets_a_constraint_for_each_sequence() -> None:
    prepared = await GrammarQueue(_grammars()).prepare(_submit(), _lives)
    assert prepared is not None
    assert prepared.constraints is not None
    assert len(prepared.constraints.sequences) == 2
    assert prepared.constraints.sequences[0] is not prepared.constraints.sequences[1]


async def test_what_was_drawn_before_is_replayed_and_what_does_not_fit_says_so() -> None:
    resumed = Resumed([[97, 98], [99], []], [2], True)
    constraints = _grammars().constraints_of(_submit(n=3, resumed=resumed))
    one, _, ended = constraints.sequences
    assert one is not None
    assert one.allowed() == 1 << 97 | 1 << 98
    assert ended is None
    assert list(constraints.broken) == [1]
    whole = _grammars().constraints_of(_submit(n=1, resumed=Resumed([[97] * 4], [], True)))
    assert whole.sequences[0] is not None
    assert whole.sequences[0].ended


async def test_a_bad_grammar_is_the_end_of_its_request_alone() -> None:
    grammar_queue = GrammarQueue(_grammars())
    bad = await grammar_queue.prepare(_submit(0, "start: /a"), _lives)
    good = await grammar_queue.prepare(_submit(1), _lives)
    assert bad is not None
    assert bad.constraints is None
    assert bad.refusal.startswith("the grammar cannot be used")
    assert good is not None
    assert good.constraints is not None


@pytest.mark.parametrize("fields", [{}, {"grammar": "", "thinking": Thinking(3, [], [1], True)}])
async def test_without_a_vocabulary_there_are_no_constraints(fields: dict[str, object]) -> None:
    prepared = await GrammarQueue(StructuredOutputManager()).prepare(_submit(**fields), _lives)  # type: ignore[arg-type]
    assert prepared is not None
    assert "did not get" in prepared.refusal


async def test_one_is_compiled_after_the_other_and_none_for_who_has_ended_before_its_turn() -> None:
    gate = Gate()
    grammar_queue = GrammarQueue(_grammars(), gate)
    ended: set[int] = set()
    found: list[Prepared | None] = []

    async def prepare(rid: int) -> None:
        found.append(await grammar_queue.prepare(_submit(rid), lambda rid: rid not in ended))

    async with anyio.create_task_group() as tasks:
        for rid in range(3):
            tasks.start_soon(prepare, rid)
        await anyio.wait_all_tasks_blocked()
        assert gate.entered == 1, "one after the other"
        ended |= {0, 2}
        gate.open.set()
    assert gate.entered == 2
    assert [None if each is None else each.rid for each in found] == [0, 1, None]


async def test_a_grammar_is_compiled_once_for_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = _grammars()
    compiled: list[str] = []
    inner = Compiler.compile

    def watched(self: Compiler, source: str) -> GuidanceMatcher:
        compiled.append(source)
        return inner(self, source)

    monkeypatch.setattr(Compiler, "compile", watched)
    monkeypatch.setattr(keeper, "_CACHED", 2)
    sources = [f'start: "{letter}"' for letter in "abacb"]
    for source in sources:
        grammars.constraints_of(_submit(grammar=source))
    assert compiled == [sources[0], sources[1], sources[3], sources[1]]


@pytest.mark.parametrize("token", [-1, len(TOKENS)])
async def test_thinking_that_ends_with_no_token_is_refused(token: int) -> None:
    thinking = Thinking(3, [], [1, token], True)
    prepared = await GrammarQueue(_grammars()).prepare(_submit(thinking=thinking), _lives)
    assert prepared is not None
    assert "ids lie in" in prepared.refusal


async def test_whatever_goes_wrong_is_the_end_of_its_request_alone() -> None:
    """Both would end the engine, the first one even while idle, since it happens in a task of its own."""
    grammars = StructuredOutputManager()
    for piece in pieces_of([b"a" * 100_000, *TOKENS[1:]], frozenset(), frozenset([EOS])):
        grammars.take(piece)
    grammar_queue = GrammarQueue(grammars)
    await grammar_queue.warm_up()
    unusable = await grammar_queue.prepare(_submit(0), _lives)
    assert unusable is not None
    assert "this model's vocabulary cannot be used" in unusable.refusal

    resumed = Resumed([[97]], [], True)
    short = await GrammarQueue(_grammars()).prepare(_submit(1, resumed=resumed), _lives)
    assert short is not None
    assert (short.constraints, short.refusal) == (None, "the grammar cannot be used: IndexError")
