"""Requests that wait for their grammar: each is answered once, whatever comes meanwhile."""

from collections.abc import Callable

import anyio
import pytest

from stentor.engine.core.grammar import structured_output as keeper
from stentor.engine.core.grammar.grammar_queue import GrammarQueue, Prepared, refused
from stentor.engine.core.grammar.matcher import Compiler, GuidanceMatcher
from stentor.engine.core.grammar.structured_output import RequestConstraints, StructuredOutputManager
from stentor.engine.core.grammar.vocabulary import pieces_of
from stentor.protocols.ipc.actors import Finished, Resumed, Submit, Thinking
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


async def test_a_request_leaves_with_a_constraint_for_each_sequence() -> None:
    grammar_queue = GrammarQueue(_grammars())
    grammar_queue.enter(_submit())
    prepared = await grammar_queue.prepare(0)
    assert prepared is not None
    assert prepared.constraints is not None
    assert len(prepared.constraints.sequences) == 2
    assert prepared.constraints.sequences[0] is not prepared.constraints.sequences[1]
    assert grammar_queue.leave(prepared) == _submit()
    assert len(grammar_queue) == 0


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
    grammar_queue.enter(_submit(0, "start: /a"))
    grammar_queue.enter(_submit(1))
    bad, good = await grammar_queue.prepare(0), await grammar_queue.prepare(1)
    assert bad is not None
    assert bad.constraints is None
    assert bad.refusal.startswith("the grammar cannot be used")
    assert good is not None
    assert good.constraints is not None
    submit = grammar_queue.leave(bad)
    assert submit is not None
    ends = refused(submit, bad.refusal).finished
    assert [(end.index, end.reason, end.message) for end in ends] == [(i, "error", bad.refusal) for i in range(2)]


@pytest.mark.parametrize("fields", [{}, {"grammar": "", "thinking": Thinking(3, [], [1], True)}])
async def test_without_a_vocabulary_there_are_no_constraints(fields: dict[str, object]) -> None:
    grammar_queue = GrammarQueue(StructuredOutputManager())
    grammar_queue.enter(_submit(**fields))  # type: ignore[arg-type]
    prepared = await grammar_queue.prepare(0)
    assert prepared is not None
    assert "was not told" in prepared.refusal


async def test_an_abort_while_it_compiles_is_answered_at_once_and_for_good() -> None:
    gate = Gate()
    grammar_queue = GrammarQueue(_grammars(), gate)
    found: list[Prepared | None] = []

    async def prepare(rid: int) -> None:
        found.append(await grammar_queue.prepare(rid))

    async with anyio.create_task_group() as tasks:
        for rid in range(3):
            grammar_queue.enter(_submit(rid))
            tasks.start_soon(prepare, rid)
        await anyio.wait_all_tasks_blocked()
        assert gate.entered == 1, "one after the other"
        assert grammar_queue.sequences == 6
        aborted = grammar_queue.abort(0, -1)
        assert aborted is not None
        assert [(end.index, end.reason) for end in aborted.finished] == [(0, "abort"), (1, "abort")]
        one = grammar_queue.abort(1, 1)
        assert one is not None
        assert [end.index for end in one.finished] == [1]
        again = grammar_queue.abort(1, 1)
        assert again is not None
        assert again.finished == []
        assert grammar_queue.abort(7, -1) is None
        assert grammar_queue.sequences == 3
        assert grammar_queue.abort(2, 0) is not None
        assert grammar_queue.abort(2, 1) is not None
        gate.open.set()
    assert gate.entered == 2, "nobody compiles for a request that has ended"
    by_rid = {each.rid: each for each in found if each is not None}
    assert grammar_queue.leave(by_rid[0]) is None
    left = grammar_queue.leave(by_rid[1])
    assert left is not None
    assert left.resumed == Resumed([[], []], [1], False)
    assert len(grammar_queue) == 0


async def test_when_nothing_can_run_all_that_wait_are_told() -> None:
    grammar_queue = GrammarQueue(_grammars())
    grammar_queue.enter(_submit(0))
    grammar_queue.enter(_submit(1, n=1, resumed=Resumed([[]], [], True)))
    ended = grammar_queue.end_all("error", "gone").finished
    assert ended == [Finished(rid, index, "error", None, "gone") for rid, index in [(0, 0), (0, 1), (1, 0)]]
    assert grammar_queue.end_all("error", "gone").finished == []


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
    grammar_queue = GrammarQueue(_grammars())
    grammar_queue.enter(_submit(thinking=Thinking(3, [], [1, token], True)))
    prepared = await grammar_queue.prepare(0)
    assert prepared is not None
    assert "ids lie in" in prepared.refusal


async def test_whatever_goes_wrong_is_the_end_of_its_request_alone() -> None:
    """Both would end the engine; the first, in a task of nobody's, an idle one."""
    grammars = StructuredOutputManager()
    for piece in pieces_of([b"a" * 100_000, *TOKENS[1:]], frozenset(), frozenset([EOS])):
        grammars.take(piece)
    grammar_queue = GrammarQueue(grammars)
    await grammar_queue.warm_up()
    grammar_queue.enter(_submit(0))
    unusable = await grammar_queue.prepare(0)
    assert unusable is not None
    assert "this model's vocabulary cannot be used" in unusable.refusal

    grammar_queue = GrammarQueue(_grammars())
    grammar_queue.enter(_submit(1, resumed=Resumed([[97]], [], True)))
    short = await grammar_queue.prepare(1)
    assert short is not None
    assert (short.constraints, short.refusal) == (None, "the grammar cannot be used: IndexError")
