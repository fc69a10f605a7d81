"""Grammars are tried in a process that may die: the event loop, and whoever else asks, do not notice."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from stentor.engine.core.grammar.matcher import Compiler, GrammarError
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.loadtest.processes import alive
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.server.common.errors import Overloaded
from stentor.server.common.fair_queue import current_owner
from stentor.server.config.limits import GrammarLimits
from stentor.server.grammar import checker as checker_module
from stentor.server.grammar import process
from stentor.server.grammar.answers import answer_expression
from stentor.server.grammar.checker import TOO_COMPLEX_CODE, Grammars, GrammarsUnavailable
from stentor.server.grammar.child import _one_of, client_message
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.schema import encoded, prepare
from stentor.server.grammar.tags import grammar_expression
from stentor.tests.server.grammar.asked import asked
from stentor.tests.server.grammar.bombs import BOMBS

FIELD = "structured_outputs.grammar"
SLOW = Lark({}).source(f"%json {encoded(prepare(BOMBS['4,000 properties']['json'], FIELD))}")
"""Takes some hundreds of milliseconds to compile."""
REFUSED = {
    "deep nesting", "100,000 properties", "4,000 optional properties", "a product of options", "a reference to itself",
    "repeats of repeats", "more repeats of repeats", "too long a pattern", "brackets in brackets", "doubling rules",
    "repeats in a grammar", "many choices", "patterns that must all hold",
}  # fmt: skip
"""Bombs that nothing could be done with; of the others some are harmless, where the engine stops at its limits."""
REFUSED_WITHIN = 2.0
"""Seconds on a machine that others use, too; alone, they take a fraction of the time limit and at most that."""
MAX_LAG = 0.05


@asynccontextmanager
async def grammars(vocabulary: TokenBytes, **limits: float) -> AsyncIterator[Grammars]:
    made = Grammars(lambda: vocabulary, GrammarLimits(**limits))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


async def _lag(until: asyncio.Event) -> float:
    """The longest that the loop was busy with one thing, in seconds of its own: others may have the processor, too."""
    worst = 0.0
    while not until.is_set():
        began = time.thread_time()
        await asyncio.sleep(0.005)
        worst = max(worst, time.thread_time() - began)
    return worst


@pytest.mark.alone  # it measures how soon
def test_bombs_are_refused_in_time_or_harmless_and_the_loop_goes_on(
    vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    late: list[str] = []
    refused: dict[str, BadRequest] = {}

    async def main() -> None:
        async with grammars(vocabulary) as checker:
            await checker.check('start: "a"\n', FIELD)
            for name, wanted in BOMBS.items():
                done = asyncio.Event()
                timer = asyncio.create_task(_lag(done))
                await asyncio.sleep(0)
                began = time.monotonic()
                try:
                    answer = asked(wanted, Limits())
                    lark = Lark(special)
                    await checker.check(lark.source(answer_expression(lark, answer)), answer.field)
                except BadRequest as error:
                    refused[name] = error
                took = time.monotonic() - began
                done.set()
                if took > REFUSED_WITHIN or await timer > 2 * MAX_LAG:
                    late.append(f"{name}: {took:.2f} s, the loop was busy for {await timer:.3f} s")

    asyncio.run(main())
    assert late == []
    assert set(refused) >= REFUSED
    for error in refused.values():
        assert (error.param or "").startswith("structured_outputs")
        assert len(error.message) < 400
        assert "\n" not in error.message


def test_one_that_is_late_is_killed_and_the_next_is_served(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, timeout=0.3) as checker:
            await checker.check('start: "a"\n', FIELD)
            before = checker.pid
            assert before is not None
            os.kill(before, signal.SIGSTOP)
            check = asyncio.create_task(checker.check(SLOW, FIELD))
            turns = 0
            while not check.done():
                await asyncio.sleep(0.005)
                turns += 1
            with pytest.raises(BadRequest) as refused:
                await check
            assert refused.value.code == TOO_COMPLEX_CODE
            assert refused.value.param == FIELD
            assert turns > 5, "the loop waited for it"
            assert not alive(before)
            await checker.check('start: "b"\n', FIELD)
            assert checker.pid not in (None, before)

    asyncio.run(main())


def test_one_that_was_late_is_tried_again_after_a_while(
    vocabulary: TokenBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was late on a busy machine may be none the less in order."""
    monkeypatch.setattr(checker_module, "_COSTLY_SECONDS", 0.4)

    async def main() -> None:
        async with grammars(vocabulary) as checker:
            await checker.check('start: "a"\n', FIELD)
            assert checker.pid is not None
            os.kill(checker.pid, signal.SIGSTOP)  # nobody has a processor for it
            with pytest.raises(BadRequest):
                await checker.check('start: "b"\n', FIELD)
            with pytest.raises(BadRequest):
                await checker.check('start: "b"\n', FIELD)
            await asyncio.sleep(0.5)
            await checker.check('start: "b"\n', FIELD)

    asyncio.run(main())


def test_a_verdict_is_remembered_and_the_oldest_forgotten(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, cache=2) as checker:
            await checker.check('start: "a"\n', FIELD)
            with pytest.raises(BadRequest):
                await checker.check("start: nothing\n", FIELD)
            pid = checker.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)  # whatever is answered from now on is remembered
            await checker.check('start: "a"\n', FIELD)
            with pytest.raises(BadRequest):
                await checker.check("start: nothing\n", FIELD)
            assert checker.pid == pid, "another had to be started"
            await checker.check('start: "c"\n', FIELD)
            assert checker.known == 2
            assert checker.pid != pid

    asyncio.run(main())


def test_a_child_that_is_killed_meanwhile_costs_no_verdict(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, timeout=10.0) as checker:
            await checker.check('start: "a"\n', FIELD)
            pid = checker.pid
            assert pid is not None
            waiting = asyncio.create_task(checker.check(SLOW, FIELD))
            await asyncio.sleep(0.03)
            os.kill(pid, signal.SIGKILL)
            await waiting

    asyncio.run(main())


def test_too_many_at_once_are_turned_away_and_the_same_one_is_tried_once(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, max_waiting=1, timeout=10.0) as checker:
            first = asyncio.create_task(checker.check(SLOW, FIELD))
            second = asyncio.create_task(checker.check('start: "b"\n', FIELD))
            again = asyncio.create_task(checker.check('start: "b"\n', FIELD))
            await asyncio.sleep(0.01)
            with pytest.raises(Overloaded) as refused:
                await checker.check('start: "c"\n', FIELD)
            assert refused.value.code == "grammars_full"
            await asyncio.gather(first, second, again)
            await checker.check('start: "c"\n', FIELD)
            assert checker.known == 3

    asyncio.run(main())


def test_grammars_of_one_owner_keep_out_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        may_end, tried = threading.Event(), []

        def check(_: object, source: str) -> str:
            may_end.wait(5)
            tried.append(source)
            return ""

        monkeypatch.setattr(process.GrammarProcess, "check", check)
        checker = Grammars(lambda: TokenBytes([], [], []), GrammarLimits(max_waiting=4))

        def ask(owner: str, *sources: str) -> list[asyncio.Task[None]]:
            current_owner.set(owner)
            return [asyncio.create_task(checker.check(source, FIELD)) for source in sources]

        many = ask("a", *(f"a{number}" for number in range(5)))
        await asyncio.sleep(0)
        other = ask("b", "b0", "a4")  # in its own line, also where another has asked for the same
        await asyncio.sleep(0)
        (refused,) = ask("b", "b1")
        with pytest.raises(Overloaded):
            await refused
        may_end.set()
        await asyncio.gather(*other)
        ended = await asyncio.gather(*many, return_exceptions=True)
        assert tried == ["a0", "a1", "b0", "a2", "a4"]
        assert [isinstance(error, Overloaded) for error in ended] == [False, False, False, True, True]
        assert not checker._trials
        assert len(checker._waiting) == 0
        checker.close()

    asyncio.run(main())


def test_one_that_nobody_waits_for_any_more_makes_room(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, max_waiting=1, timeout=10.0) as checker:
            first = asyncio.create_task(checker.check(SLOW, FIELD))
            second = asyncio.create_task(checker.check('start: "b"\n', FIELD))
            await asyncio.sleep(0.01)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await checker.check('start: "c"\n', FIELD)
            await first
            assert checker.known == 2

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_said_so_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        checker = Grammars(lambda: TokenBytes([bytes([byte]) for byte in range(256)], [], []), GrammarLimits())
        with monkeypatch.context() as broken:
            broken.setattr(checker._process._child, "_module", "stentor.server.grammar.nowhere")
            with pytest.raises(GrammarsUnavailable):
                await checker.check('start: "a"\n', FIELD)
        await checker.check('start: "a"\n', FIELD)
        checker.close()

    asyncio.run(main())


def test_half_a_character_is_the_clients_mistake_and_costs_no_process(vocabulary: TokenBytes) -> None:
    def spelled(text: str) -> str:
        lark = Lark({})
        return lark.source(grammar_expression(lark, f'root ::= "{text}"', FIELD))

    async def main() -> None:
        async with grammars(vocabulary) as checker:
            await checker.check(spelled("a"), FIELD)
            pid = checker.pid
            for source in ('start: "\ud83d"\n', spelled(r"\ud83d")):
                with pytest.raises(BadRequest, match="half a character") as refusal:
                    await checker.check(source, FIELD)
                assert refusal.value.param == FIELD
            assert spelled(r"\ud83d\ude00") == spelled("😀")
            await checker.check(spelled(r"\ud83d\ude00"), FIELD)
            assert checker.pid == pid

    asyncio.run(main())


def test_nothing_is_started_before_the_first_grammar(vocabulary: TokenBytes) -> None:
    checker = Grammars(lambda: vocabulary, GrammarLimits())
    assert checker.pid is None
    checker.close()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"regex": "a("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "[z-a]"}, "invalid"),
        ({"grammar": "start: other"}, "other"),
        ({"grammar": "no grammar at all"}, "Expected"),
        ({"json": {"type": "string", "pattern": "("}}, "unclosed group"),
        ({"json": {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False}}, "'a'"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "incompatible"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    compiler: Compiler, special: Mapping[str, int], wanted: dict[str, object], said: str
) -> None:
    lark = Lark(special)
    source = lark.source(answer_expression(lark, asked(wanted, Limits())))
    with pytest.raises(GrammarError) as broken:
        compiler.compile(source)
    why = client_message(str(broken.value))
    assert said in why
    assert not any(mark in why for mark in ("\n", "%json", "|", "^^", "r0", "x-guidance"))
    assert len(why) < 300


def test_what_is_wrong_reaches_the_client_with_its_field(vocabulary: TokenBytes, special: Mapping[str, int]) -> None:
    async def main() -> None:
        async with grammars(vocabulary) as checker:
            lark = Lark(special)
            source = lark.source(answer_expression(lark, asked({"regex": "a("}, Limits())))
            for _ in range(2):  # as it was tried, and as it is remembered
                with pytest.raises(BadRequest) as refused:
                    await checker.check(source, "structured_outputs.regex")
                assert refused.value.message == (
                    "`structured_outputs.regex`: the pattern is not valid or not supported: unclosed group."
                )
                assert refused.value.param == "structured_outputs.regex"

    asyncio.run(main())


def test_what_passes_compiles_in_the_engine(
    compiler: Compiler, vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    wishes: list[dict[str, object]] = [
        {"json": {}},
        {"regex": "[a-z]+"},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "a"+'},
    ]

    async def main() -> None:
        async with grammars(vocabulary) as checker:
            for wanted in wishes:
                lark = Lark(special)
                source = lark.source(answer_expression(lark, asked(wanted, Limits())))
                await checker.check(source, FIELD)
                assert compiler.compile(source).allowed()

    asyncio.run(main())


@pytest.mark.alone  # it measures how long a mask takes
@pytest.mark.parametrize("fuse", [0, 60])
def test_no_mask_of_an_ambiguous_grammar_holds_the_engine_up_however_late_it_comes(
    compiler: Compiler, fuse: int
) -> None:
    """The checking process goes only so far into a grammar."""
    matcher = compiler.compile(f'start: /x{{{fuse}}}/ e e e e e e e e\ne: e e | /[a-z ]/ | ""\n')
    choose = random.Random(1)
    worst = 0.0
    for _ in range(120):
        began = time.thread_time()
        allowed = matcher.allowed()
        worst = max(worst, time.thread_time() - began)
        token = _one_of(allowed, choose)
        if token is None or not matcher.consume(token):
            break
    assert worst < 0.05
