"""Grammars are tried in a process that may die: the event loop, and whoever else asks, do not notice."""

import asyncio
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from unittest.mock import patch

import pytest

from stentor.engine.core.grammar.matcher import STEP_MAX_ITEMS, Compiler, GrammarError
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.engine.processes.process import Child
from stentor.loadtest.processes import alive
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.server.common.errors import Overloaded
from stentor.server.common.fair_queue import current_owner
from stentor.server.config.limits import GrammarLimits
from stentor.server.grammar import process
from stentor.server.grammar.answers import answer_expression
from stentor.server.grammar.checker import COSTLY_SECONDS, TOO_COMPLEX_CODE, Grammars, GrammarsUnavailable
from stentor.server.grammar.child import _one_of, client_message
from stentor.server.grammar.lark import Lark
from stentor.server.grammar.tags import grammar_expression
from stentor.tests.server.grammar.asked import asked
from stentor.tests.server.grammar.bombs import BOMBS, properties
from stentor.tests.support.counting import lines_executed, takes_linear_time

FIELD = "structured_outputs.grammar"
REFUSED = {
    "deep nesting", "100,000 properties", "4,000 optional properties", "a product of options", "a reference to itself",
    "repeats of repeats", "more repeats of repeats", "too long a pattern", "brackets in brackets", "doubling rules",
    "repeats in a grammar", "many choices", "patterns that must all hold",
}  # fmt: skip
"""Bombs that nothing could be done with; of the others some are harmless, where the engine stops at its limits."""
LINES, LINES_A_BYTE = 5000, 15
"""That the event loop executes itself for a grammar, at most: so many, and by the size of the request as JSON."""
PATIENT = 60.0
"""Seconds for a grammar that is in order: a machine may be that slow."""


@asynccontextmanager
async def grammars(
    vocabulary: TokenBytes, clock: Callable[[], float] = time.monotonic, **limits: float
) -> AsyncIterator[Grammars]:
    made = Grammars(lambda: vocabulary, GrammarLimits(**limits), clock)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


async def stopped(checker: Grammars) -> AbstractContextManager[int]:
    """While the block runs the child stands still; as if a grammar took it for ever."""
    await checker.check('start: "a"\n', FIELD)
    assert checker.pid is not None
    return _stopped(checker.pid)


@contextmanager
def _stopped(pid: int) -> Iterator[int]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):  # it was late, and killed
            os.kill(pid, signal.SIGCONT)


@contextmanager
def hurried(checker: Grammars, seconds: float = 0.0) -> Iterator[None]:
    """Within the block little time is given to a grammar: for one that would take for ever. With none at all a child
    that stands still counts as one that computes."""
    seen = itertools.count(step=1000)
    computes = patch.object(Child, "cpu_seconds", property(lambda _: float(next(seen))))
    checker._process._seconds = seconds
    try:
        with nullcontext() if seconds else computes:
            yield
    finally:
        checker._process._seconds = PATIENT


@pytest.mark.proof
def test_bombs_are_refused_or_harmless_and_cost_the_loop_little(
    vocabulary: TokenBytes, special: Mapping[str, int]
) -> None:
    """Counted is what the loop executes before it waits; how long it waits is the child's time limit."""
    costly: dict[str, int] = {}
    refused: dict[str, BadRequest] = {}
    put_off: set[str] = set()
    """For which a busy machine had no time."""
    sources: dict[str, tuple[str, str]] = {}

    def make(name: str) -> None:
        try:
            answer = asked(BOMBS[name], Limits())
            lark = Lark(special)
            sources[name] = lark.source(answer_expression(lark, answer)), answer.field
        except BadRequest as error:
            refused[name] = error

    for name, wanted in BOMBS.items():
        lines = lines_executed(partial(make, name))
        if lines > LINES + LINES_A_BYTE * len(json.dumps(wanted)):
            costly[name] = lines

    async def main() -> None:
        async with grammars(vocabulary) as checker:
            for name, (source, field) in sources.items():
                try:
                    await checker.check(source, field)
                except BadRequest as error:
                    refused[name] = error
                except Overloaded:
                    put_off.add(name)

    asyncio.run(main())
    assert costly == {}
    assert {*refused, *put_off} >= REFUSED
    for error in refused.values():
        assert (error.param or "").startswith("structured_outputs")
        assert len(error.message) < 400
        assert "\n" not in error.message


@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_the_loops_own_work_on_a_schema_grows_with_its_properties(required: bool, closed: bool) -> None:
    """Looking a name up in a list, say, takes no lines."""

    def work(count: int) -> Callable[[], object]:
        wanted = {"json": properties(count, required=required), "disable_additional_properties": closed}

        def make() -> str:
            lark = Lark({})
            return lark.source(answer_expression(lark, asked(wanted, Limits())))

        return make

    assert takes_linear_time(work, 4000)


def test_while_one_is_tried_the_loop_goes_on(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, timeout=PATIENT) as checker:
            with await stopped(checker):
                check = asyncio.create_task(checker.check('start: "b"\n', FIELD))
                for _ in range(10):
                    await asyncio.sleep(0.005)
                assert not check.done()
            await check

    asyncio.run(main())


def test_one_that_is_late_is_killed_and_the_next_is_served(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, timeout=PATIENT) as checker:
            with await stopped(checker) as before, hurried(checker), pytest.raises(BadRequest) as refused:
                await checker.check('start: "x"\n', FIELD)
            assert refused.value.code == TOO_COMPLEX_CODE
            assert refused.value.param == FIELD
            assert not alive(before)
            await checker.check('start: "b"\n', FIELD)
            assert checker.pid not in (None, before)

    asyncio.run(main())


def test_one_that_had_no_time_on_a_processor_may_come_again_at_once(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, timeout=PATIENT) as checker:
            with await stopped(checker) as before, hurried(checker, 0.1), pytest.raises(Overloaded) as refused:
                await checker.check('start: "x"\n', FIELD)
            assert refused.value.code == "grammars_full"
            assert not alive(before)
            await checker.check('start: "x"\n', FIELD)

    asyncio.run(main())


def test_one_that_was_late_is_tried_again_after_a_while(vocabulary: TokenBytes) -> None:
    """What was late on a busy machine may be none the less in order."""
    now = 100.0

    async def main() -> None:
        nonlocal now
        async with grammars(vocabulary, clock=lambda: now, timeout=PATIENT) as checker:
            with await stopped(checker), hurried(checker), pytest.raises(BadRequest):
                await checker.check('start: "b"\n', FIELD)
            now += COSTLY_SECONDS - 1
            with pytest.raises(BadRequest):
                await checker.check('start: "b"\n', FIELD)
            now += 1
            await checker.check('start: "b"\n', FIELD)

    asyncio.run(main())


def test_a_verdict_is_remembered_and_the_oldest_forgotten(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, cache=2, timeout=PATIENT) as checker:
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
        async with grammars(vocabulary, timeout=PATIENT) as checker:
            with await stopped(checker) as pid:
                waiting = asyncio.create_task(checker.check('start: "x"\n', FIELD))
                await asyncio.sleep(0.03)
                os.kill(pid, signal.SIGKILL)
                await waiting
            assert checker.pid not in (None, pid)

    asyncio.run(main())


def test_too_many_at_once_are_turned_away_and_the_same_one_is_tried_once(vocabulary: TokenBytes) -> None:
    async def main() -> None:
        async with grammars(vocabulary, max_waiting=1, timeout=PATIENT) as checker:
            with await stopped(checker):
                first = asyncio.create_task(checker.check('start: "x"\n', FIELD))
                second = asyncio.create_task(checker.check('start: "b"\n', FIELD))
                again = asyncio.create_task(checker.check('start: "b"\n', FIELD))
                await asyncio.sleep(0)
                with pytest.raises(Overloaded) as refused:
                    await checker.check('start: "c"\n', FIELD)
                assert refused.value.code == "grammars_full"
            await asyncio.gather(first, second, again)
            await checker.check('start: "c"\n', FIELD)
            assert checker.known == 4

    asyncio.run(main())


def test_grammars_of_one_owner_keep_out_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        may_end, tried = threading.Event(), []

        def check(_: object, source: str) -> str:
            may_end.wait(60)
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
        async with grammars(vocabulary, max_waiting=1, timeout=PATIENT) as checker:
            with await stopped(checker):
                first = asyncio.create_task(checker.check('start: "x"\n', FIELD))
                second = asyncio.create_task(checker.check('start: "b"\n', FIELD))
                await asyncio.sleep(0)
                second.cancel()
                await asyncio.gather(second, return_exceptions=True)
                third = asyncio.create_task(checker.check('start: "c"\n', FIELD))
                await asyncio.sleep(0)
            await third
            await first
            assert checker.known == 3

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_said_so_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        checker = Grammars(lambda: TokenBytes([bytes([byte]) for byte in range(256)], [], []), GrammarLimits(PATIENT))
        with monkeypatch.context() as broken:
            broken.setattr(checker._process, "_module", "stentor.server.grammar.nowhere")
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
        async with grammars(vocabulary, timeout=PATIENT) as checker:
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
        async with grammars(vocabulary, timeout=PATIENT) as checker:
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
        async with grammars(vocabulary, timeout=PATIENT) as checker:
            for wanted in wishes:
                lark = Lark(special)
                source = lark.source(answer_expression(lark, asked(wanted, Limits())))
                await checker.check(source, FIELD)
                assert compiler.compile(source).allowed()

    asyncio.run(main())


@pytest.mark.parametrize("fuse", [0, 60])
def test_no_mask_of_an_ambiguous_grammar_holds_the_engine_up_however_late_it_comes(
    compiler: Compiler, fuse: int
) -> None:
    """The checking process goes only so far into a grammar. What a mask costs grows with its items, which are bounded:
    the text ends after 7 tokens or 26, where masks of five times as many items, at some 0.9 s, take it beyond 50."""
    matcher = compiler.compile(f'start: /x{{{fuse}}}/ e e e e e e e e\ne: e e | /[a-z ]/ | ""\n')
    choose = random.Random(1)
    drawn = 0
    while not matcher.error():
        token = _one_of(matcher.allowed(), choose)
        if token is None or not matcher.consume(token):
            break
        drawn += 1
    assert f"limit {STEP_MAX_ITEMS}" in matcher.error()
    assert drawn < 40
