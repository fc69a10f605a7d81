"""Runs steps of every common kind before requests come.

A kernel is compiled at its first run with a kind of arguments, which takes a second or more and delays all rows. The
kind depends on a step's numbers of tokens and rows: the powers of two around them, whether they are one, and whether 16
divides them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from stentor.kernels import MAX_DECODE_QUERY_LEN
from stentor.protocols.ipc.sampling import MAX_LOGPROBS, SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

from ..adapters.setup import as_adapted
from ..compute.async_compute import AsyncCompute, AsyncRunner
from ..compute.sync_compute import SyncRunner
from ..device.graphs import GraphSize
from ..families.setup_parts import ProgressCallback
from ..passes.pass_graphs import PassGraphs
from .profile import busy_params

_TOPS = (0, 1, 2, 4, 8, 12, 16, 20)
"""Numbers of alternatives for log-probabilities, one of each kind."""
_SHORT = 17


def counts(most: int) -> list[int]:
    """Numbers up to ``most``, ascending: for each range between powers of two, some that 16 divides and others."""
    found = {1, most, max(1, most - most % 16)}
    power = 2
    while power <= most:
        found |= {power, min(power + 1, most)}
        power *= 2
    return sorted(found)


def warm_up(
    runner: AsyncRunner,
    compute: AsyncCompute,
    slots: int,
    tokens: int,
    max_model_len: int,
    vocab_size: int,
    progress: ProgressCallback,
    *,
    adapted: bool = False,
) -> None:
    """Run steps of up to ``slots`` rows and ``tokens`` tokens on a runner without rows, which is left without.

    ``adapted``: also steps of rows with adapters. The largest come first, so that smaller ones find reserved memory.
    """
    plans = list(_plans(slots, tokens, max_model_len, vocab_size))
    sizes = [GraphSize(size) for size in counts(slots)[::-1]]
    if adapted:
        plans += as_adapted(plans)
        sizes += [replace(size, adapted=True) for size in sizes]
    _run_all(runner, [partial(compute.warm, size) for size in sizes], plans, progress)


def warm_up_drafts(
    runner: SyncRunner | AsyncRunner,
    slots: int,
    drafts: int,
    tokens: int,
    max_model_len: int,
    progress: ProgressCallback,
    graphs: Sequence[PassGraphs] = (),
) -> None:
    """Run steps of up to ``slots`` rows with as many tokens as a row with up to ``drafts`` drafts has, on a runner
    without rows, which is left without. A kernel of attention is compiled for each power of two of them.

    ``graphs``: of the runner; their passes are run as they will be captured.
    """
    longest = min(1 + drafts, MAX_DECODE_QUERY_LEN, max_model_len)
    lengths = sorted({1, longest, *(length for length in (2, 4, 8) if length < longest)}, reverse=True)
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    plans = [
        _plan([length] * rows, greedy)
        for length in lengths
        for rows in reversed(counts(slots))
        if rows * length <= tokens
    ]
    passes = [
        partial(each.warm, replace(each.largest, decodes=size))
        for each in graphs
        for size in counts(each.largest.tokens)[::-1]
    ]
    _run_all(runner, passes, plans, progress)


def _run_all(
    runner: SyncRunner | AsyncRunner,
    passes: Sequence[Callable[[], None]],
    plans: Sequence[StepPlan],
    progress: ProgressCallback,
) -> None:
    """Run passes, then plans, whose rows are released at once."""
    total = len(passes) + len(plans)
    for number, run in enumerate(passes):
        progress("preparing kernels", number, total)
        run()
    for number, plan in enumerate(plans, len(passes)):
        progress("preparing kernels", number, total)
        runner.step(plan)
        runner.release([row.slot for row in plan.rows])
    progress("preparing kernels", total, total)


def _plans(slots: int, tokens: int, max_model_len: int, vocab_size: int) -> Iterator[StepPlan]:
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    for count in reversed(counts(min(tokens, slots * max_model_len))):
        yield _plan(_lengths(count, max_model_len), greedy)
    short = min(_SHORT, max_model_len)
    if slots > 1 and tokens > short:
        yield _plan([1] * min(slots - 1, tokens - short) + [short], greedy)
    if max_model_len > short:
        # few tokens after a long prefix, whose keys several programs share
        row = NewRow(0, [0] * max_model_len, max_model_len, greedy, 0, [])
        yield StepPlan(0, 0, [], [row], [RowStep(0, max_model_len - short, min(short, tokens), [], False, state=0)])
    for top in sorted({min(top, MAX_LOGPROBS, vocab_size) for top in _TOPS}):
        params = SamplingParams(max_tokens=1, logprobs=top, prompt_logprobs=top)
        yield _plan([min(short, tokens)], params)
    # tables that few rows use
    every = replace(
        busy_params(vocab_size),
        logit_bias=((0, 1.0),),
        banned_token_ids=(1 % vocab_size,),
        min_tokens=1,
        eos_token_ids=(2 % vocab_size,),
    )
    yield _plan([min(short, tokens)], every)


def _lengths(count: int, most: int) -> list[int]:
    """Row lengths of ``count`` tokens in all, each up to ``most``."""
    whole, rest = divmod(count, most)
    return [most] * whole + [rest] * (rest > 0)


def _plan(lengths: list[int], params: SamplingParams) -> StepPlan:
    """A plan of rows without blocks: they share the first block and state slot, whose contents are not read."""
    new = [NewRow(slot, [0] * length, length, params, slot, []) for slot, length in enumerate(lengths)]
    rows = [RowStep(slot, 0, length, [], True, state=0) for slot, length in enumerate(lengths)]
    return StepPlan(0, 0, [], new, rows)
