"""The pool: what it gives, how it holds back, what it skips."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.common.errors import Overloaded
from stentor.server.text.errors import TemplateError, TextTooLong
from stentor.server.text.pool import ENCODING_BYTES, INLINE_CHARS, TokenizationBudget, TokenizerPool
from stentor.server.text.templates import template_process
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.harness import until
from stentor.tests.server.text.patience import PATIENT, patient_pool

USER = {"role": "user", "content": "Hi"}
RENDER: Any = {"add_generation_prompt": False, "continue_final_message": False}


class Gate:
    """A job that stays in its thread until it is let go."""

    def __init__(self) -> None:
        self.began = 0
        self.go = threading.Event()

    def __call__(self) -> str:
        self.began += 1
        assert self.go.wait(PATIENT)
        return "done"


async def settle() -> None:
    """Until every task waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_texts_become_ids_and_ids_become_texts() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer())
        for text in ("short", "é" * INLINE_CHARS, "x" * (INLINE_CHARS + 1)):
            ids = await pool.encode(text)
            assert ids == pool.tokenizer.encode(text)
            assert await pool.encode_batch([text, "b"]) == [ids, [98]]
            assert await pool.decode(ids) == text
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["encode", "decode"])
def test_the_loop_goes_on_while_a_long_text_is_worked_on(kind: str) -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer())
        text = "a b " * 200_000
        ids = list(text.encode())
        most = 0
        for _ in range(20):  # the machine may have kept this thread from running; the lock, held, always does
            job = asyncio.create_task(pool.encode(text) if kind == "encode" else pool.decode(ids))
            turns = 0
            while not job.done():
                turns += 1
                await asyncio.sleep(0.002)
            most = max(most, turns)
            if most > 10:
                break
        assert most > 10, "the interpreter's lock was held"
        pool.close()

    asyncio.run(main())


def test_a_chat_becomes_the_ids_of_its_rendering() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer())
        ids = await pool.render_chat([USER], add_generation_prompt=True, continue_final_message=False)
        assert pool.tokenizer.decode(ids) == "<user>Hi\n<assistant>"
        named = await pool.render_chat(
            [USER],
            add_generation_prompt=False,
            continue_final_message=False,
            chat_template="{{ bos_token }}{{ x }}",
            template_kwargs={"x": 7},
            add_special_tokens=True,
        )
        assert named == [256, 55]
        pool.close()

    asyncio.run(main())


def test_a_template_that_does_not_end_fails_and_frees_its_thread() -> None:
    async def main() -> None:
        pool = patient_pool(0.1, threads=1)
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(TemplateError, match=TOOK_LONGER):
            await pool.render_chat(
                [USER], add_generation_prompt=False, continue_final_message=False, chat_template=endless
            )
        assert len(await asyncio.wait_for(pool.encode("x" * 5000), PATIENT)) == 5000
        pool.close()

    asyncio.run(main())


def test_a_full_pool_makes_callers_wait() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer(), threads=1, max_pending=2)
        gate = Gate()
        jobs = [asyncio.create_task(pool.run(gate)) for _ in range(5)]
        await until(lambda: gate.began == 1)
        assert pool._executor._work_queue.qsize() == 1
        gate.go.set()
        assert await asyncio.gather(*jobs) == ["done"] * 5
        assert gate.began == 5
        pool.close()

    asyncio.run(main())


def test_a_cancelled_job_that_has_not_begun_is_skipped() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer(), threads=1, max_pending=2)
        gate = Gate()
        jobs = [asyncio.create_task(pool.run(gate)) for _ in range(4)]
        await until(lambda: gate.began == 1)
        for job in jobs[1:]:
            job.cancel()
        await settle()
        gate.go.set()
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert results[0] == "done"
        assert all(isinstance(result, asyncio.CancelledError) for result in results[1:])
        assert len(await pool.encode("x" * 5000)) == 5000
        assert gate.began == 1
        await until(lambda: pool._places._value == 2)
        pool.close()

    asyncio.run(main())


def test_a_running_job_keeps_its_place_when_its_caller_goes() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer(), threads=1, max_pending=1)
        gate = Gate()
        gone = asyncio.create_task(pool.run(gate))
        await until(lambda: gate.began == 1)
        gone.cancel()
        await settle()
        waiting = asyncio.create_task(pool.run(lambda: "next"))
        await settle()
        assert not waiting.done()
        assert pool._executor._work_queue.qsize() == 0, "it waits for a place"
        gate.go.set()
        assert await asyncio.wait_for(waiting, PATIENT) == "next"
        pool.close()

    asyncio.run(main())


TOOK_LONGER = "took longer than"
HOSTILE = {
    "holds the lock": ("{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}", TOOK_LONGER),
    "compares for ever": (
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(40) %}"
        "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
        TOOK_LONGER,
    ),
    "fills the memory": (
        "{% set text = 'a' * 8000000 %}{{ ([{'a': text}] * 1000) | map(attribute='a') | join | length }}",
        "too much memory",
    ),
}


@contextmanager
def hurried(pool: TokenizerPool, patience: float = 1000.0) -> Iterator[None]:
    """Within the block a template that a request brings is given little CPU time, for one that would take for ever, and
    ``patience`` times as much by the clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool._foreign, "_seconds", 0.3)
        patch.setattr(template_process, "_PATIENCE", patience)
        yield


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_of_a_request_harms_nobody_else(name: str) -> None:
    source, reason = HOSTILE[name]

    async def main() -> None:
        pool = patient_pool(threads=1)
        with hurried(pool) if reason == TOOK_LONGER else nullcontext():
            hostile = asyncio.create_task(pool.render_chat([USER], chat_template=source, **RENDER))
            while not hostile.done():
                await pool.render_chat([USER], **RENDER)
                await asyncio.sleep(0.002)
        with pytest.raises(TemplateError, match=reason):
            hostile.result()
        assert await pool.render_chat([USER], chat_template="{{ messages[0].content }}", **RENDER) == [72, 105]
        pid = pool._foreign.pid
        assert pid is not None
        pool.close()
        async with asyncio.timeout(PATIENT):
            while Path(f"/proc/{pid}").exists():
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_others_are_rendered_while_a_template_of_a_request_takes_its_time() -> None:
    async def main() -> None:
        pool = patient_pool(threads=1)
        assert await pool.render_chat([USER], chat_template="{{ 1 }}", **RENDER) == [49]
        assert pool._foreign.pid is not None
        os.kill(pool._foreign.pid, signal.SIGSTOP)
        slow = asyncio.create_task(pool.render_chat([USER], chat_template="{{ 2 }}", **RENDER))
        for _ in range(10):
            await pool.render_chat([USER], **RENDER)
            await asyncio.sleep(0.002)
        assert not slow.done()
        os.kill(pool._foreign.pid, signal.SIGCONT)
        assert await slow == [50]
        pool.close()

    asyncio.run(main())


def test_a_template_s_process_that_hangs_is_killed_and_the_next_one_serves() -> None:
    async def main() -> None:
        pool = patient_pool(threads=1)
        render: Any = partial(pool.render_chat, [USER], **RENDER)
        assert await render(chat_template="{{ 1 }}") == [49]
        first = pool._foreign.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with hurried(pool, patience=0.5), pytest.raises(Overloaded, match="too busy to render"):
            await render(chat_template="{{ 2 }}")
        assert await render(chat_template="{{ 3 }}") == [51]
        assert pool._foreign.pid not in (first, None)
        assert not Path(f"/proc/{first}").exists()
        pool.close()

    asyncio.run(main())


def test_what_one_template_of_a_request_leaves_behind_does_not_fail_the_next() -> None:
    greedy = (
        "{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = ns.l + ['a' * 8000000 ~ i] %}{% endfor %}"
    )

    async def main() -> None:
        pool = patient_pool(threads=1)
        with pytest.raises(TemplateError, match="too much memory"):
            await pool.render_chat([USER], chat_template=greedy, **RENDER)
        for _ in range(2):
            modest = "{{ ('a b ' * 100000) | wordcount }}"
            assert await pool.render_chat([USER], chat_template=modest, **RENDER) == list(b"200000")
        pool.close()

    asyncio.run(main())


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(demo_gguf: Path) -> None:
    async def run() -> None:
        pool = TokenizerPool(load_tokenizer(demo_gguf))
        try:
            text = "hello world " * 100_000
            with pytest.raises(TextTooLong) as refusal:
                await pool.encode(text, most_tokens=8192)
            assert 8192 < refusal.value.fewest <= 200_001
            with pytest.raises(TextTooLong):
                await pool.encode_batch(["a", text], most_tokens=8192)
            with pytest.raises(TextTooLong):
                await pool.render_chat(
                    [{"role": "user", "content": text}],
                    add_generation_prompt=True,
                    continue_final_message=False,
                    most_tokens=8192,
                )
            spaces = " " * 20_000
            ids = await pool.encode(spaces)
            assert await pool.encode(spaces, most_tokens=len(ids)) == ids, "what fits is never refused"
        finally:
            pool.close()

    asyncio.run(run())


def test_texts_are_encoded_while_there_is_memory_for_all_of_them_and_wait_otherwise() -> None:
    tokenizer = byte_tokenizer()
    room = TokenizationBudget(ENCODING_BYTES * 1000)
    first_in, go, second_in = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with room.hold(tokenizer, ["x" * 600], "prompt"):
            first_in.set()
            assert go.wait(PATIENT)

    def second() -> None:
        with room.hold(tokenizer, ["x" * 200, "é" * 150], "prompt"):
            second_in.set()

    threads = [threading.Thread(target=target) for target in (first, second)]
    threads[0].start()
    assert first_in.wait(PATIENT)
    with room.hold(tokenizer, ["x" * 400], "prompt"):
        assert room.held == ENCODING_BYTES * 1000
    threads[1].start()
    assert room.held == ENCODING_BYTES * 600
    assert not second_in.is_set()
    go.set()
    assert second_in.wait(PATIENT)
    for thread in threads:
        thread.join()
    assert room.held == 0


def test_a_text_of_few_tokens_is_counted_before_it_is_refused_for_its_length() -> None:
    tokenizer = byte_tokenizer()
    room = TokenizationBudget(ENCODING_BYTES * 1000)
    with pytest.raises(BadRequest, match="1001 tokens"), room.hold(tokenizer, ["x" * 1001], "prompt"):
        pass
    setattr(tokenizer, "count_in_pieces", lambda text: len(text) // 4)  # noqa: B010  # as of words
    with room.hold(tokenizer, ["x" * 4000], "prompt"):
        assert room.held == ENCODING_BYTES * 1000


def test_tokens_are_counted_in_pieces_with_one_more_at_most_for_each_cut() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.count_in_pieces("é" * 20_000) == 40_000
    assert tokenizer.count_in_pieces("") == 0
