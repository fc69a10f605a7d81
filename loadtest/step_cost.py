"""How a worker's step grows with its batch and its context, beside what the machine can do at most.

    stentor bench steps --save steps.json
    stentor bench report steps.json --svg batch,context,prefill,chunk --width 1040 --height 640 --out steps.svg

One process, no scheduler: plans are made by hand and handed to the runner. Decode steps are timed over a grid of
sequences at once and tokens that each has in the cache; prefill steps over their tokens, and a chunk over what is
in the cache before it. Shapes are taken in random order, so that a machine that slows down bends no curve. The
limit of a decode step is reading all weights once and every key and value; that of a prefill, its products.

``--march`` compiles the kernels for another processor, whose form they then take: ``cooperlake`` (AVX-512 with bfloat16
and VNNI, no tiles), ``cascadelake`` (VNNI alone), ``skylake-avx512``, ``alderlake`` (AVX2 with VNNI), ``x86-64-v3``
(AVX2). ``--beside-threads`` compares numbers of threads instead; exit code 1 where the worker's own is 5 % slower.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.kernels import native
from stentor.kernels.native.build import THIS_CPU
from stentor.kernels.tuning.timing import Timing, time_call, time_product
from stentor.protocols.ipc.actors import WorkerReady

from .record import Steps
from .step_curves import CHUNK, Figure, surprises
from .step_runs import StepRunner, decode_bytes, decode_length
from .thread_counts import ROWS, ThreadCounts, print_counts, time_counts
from .tool import ToolError, at_least, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
CONTEXTS = (16, 128, 512, 1024, 2048, 4096, 8192)
PREFILLS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_COLUMNS = 4096
_SIDES = (512, 1024, 2048)


class Shape(NamedTuple):
    kind: str
    """``decode``, ``prefill`` (of a whole prompt) or ``chunk`` (after some context)."""
    rows: int
    tokens: int
    """Of each row."""
    context: int

    @property
    def length(self) -> int:
        """What each of its sequences needs of the cache."""
        return decode_length(self.context) if self.kind == "decode" else self.tokens + self.context

    def __str__(self) -> str:
        return f"{self.kind} of {self.rows} x {self.tokens} at {self.context}"


def main(argv: list[str]) -> int:
    parser = make_parser("steps", "Times a worker's steps on the CPU against batch size and context length.")
    number = at_least(1)
    parser.add_argument("--batch", type=number, nargs="+", default=list(BATCHES), metavar="ROWS")
    parser.add_argument("--context", type=number, nargs="+", default=list(CONTEXTS), metavar="TOKENS")
    parser.add_argument("--prefill", type=number, nargs="*", default=list(PREFILLS), metavar="TOKENS")
    parser.add_argument(
        "--cache-tokens",
        type=number,
        default=40960,
        metavar="TOKENS",
        help="of KV cache, filled first; shapes that need more are left out (40960)",
    )
    parser.add_argument("--march", default=THIS_CPU, metavar="NAME", help="that the kernels are compiled for (native)")
    parser.add_argument(
        "--beside-threads", type=number, nargs="+", metavar="N", help="compare the worker's own threads with these"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of decode steps of one shape (0.5)")
    parser.add_argument("--repeats", type=number, default=5, help="of a prefill step (5)")
    parser.add_argument("--read-bytes", type=at_least(1 << 20), default=512 << 20, help="to measure bandwidth (2**29)")
    add_worker_options(parser, without=("device", "max-model-len", "max-num-seqs", "max-num-batched-tokens"))
    return run_tool(parser, argv, _measure, _show, CheckpointError, SetupError, WeightError)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Steps | ThreadCounts:
    """Loads the model, fills the cache, and times every shape that fits into it."""
    if native.prepare(march=arguments.march) is None and arguments.march != THIS_CPU:
        raise ToolError(f"no kernels for {arguments.march}: {native.unavailable_reason()}")
    named = worker_config(arguments)
    model = open_checkpoint(Path(named.model), named.load_format).decoder
    length = min(model.max_position, max(decode_length(max(arguments.context)), CHUNK + max(arguments.context) + 1))
    config = worker_config(
        arguments,
        max_model_len=max(length, min(model.max_position, max(arguments.prefill, default=0))),
        max_num_seqs=max(*arguments.batch, *ROWS),
        max_num_batched_tokens=max([CHUNK, *arguments.prefill]),
        kv_cache_memory=arguments.kv_cache_memory or _cache_bytes(model, arguments.cache_tokens),
        device="cpu",
    )
    with Console(stderr=True).status("loading") as status:
        setup = set_up(config, lambda phase, done, total: status.update(f"{phase} {done / max(total, 1):.0%}"))
        runner = StepRunner(setup, model, arguments.cache_tokens, config.seed)
        status.update("filling the KV cache")
        runner.fill()
        ran = {"worker": describe(config), "march": arguments.march, "notes": setup.ready.notes}
        if arguments.beside_threads:
            status.update("comparing threads")
            own = native.threads()
            compared = time_counts(runner, arguments.beside_threads, arguments.repeats, arguments.seconds)
            return ThreadCounts(own=own, steps=compared, **ran, **about)
        status.update("measuring what the machine can do")
        ceilings = measure_cpu_ceilings(arguments.read_bytes)
        shapes = [shape for shape in make_shapes(arguments, length) if runner.fits(shape.rows, shape.length)]
        random.Random(config.seed).shuffle(shapes)
        figures = []
        for number, shape in enumerate(shapes, 1):
            status.update(f"{number} of {len(shapes)}: {shape}")
            if shape.kind == "decode":
                taken = runner.decode(shape.rows, shape.context, seconds=arguments.seconds)
            else:
                taken = runner.prefill(shape.tokens, shape.context, arguments.repeats)
            figures.append(make_figure(shape, taken, model, setup.ready, ceilings))
    figures.sort(key=lambda each: (each.kind, each.rows, each.tokens, each.context))
    found = surprises(figures)
    return Steps(ceilings=ceilings, figures=figures, surprises=found, **ran, **about)


def _show(console: Console, record: Steps | ThreadCounts) -> int:
    if isinstance(record, ThreadCounts):
        return print_counts(console, record)
    print_steps(console, record)
    return 0


def make_shapes(arguments: argparse.Namespace, longest: int) -> list[Shape]:
    """Every shape that was asked for; a context is cut where a sequence would outgrow ``longest`` tokens."""
    room = longest - decode_length(0)
    decode = [
        Shape("decode", rows, 1, context)
        for rows in arguments.batch
        for context in dict.fromkeys(min(context, room) for context in arguments.context)
    ]
    prefill = [Shape("prefill", 1, tokens, 0) for tokens in arguments.prefill if tokens <= longest]
    before = dict.fromkeys(min(context, longest - CHUNK) for context in arguments.context)
    chunks = [Shape("chunk", 1, CHUNK, context) for context in before if context > 0]
    return [*decode, *prefill, *(chunks if arguments.prefill else [])]


def make_figure(shape: Shape, times: Timing, model: ModelSpec, ready: WorkerReady, ceilings: dict[str, Any]) -> Figure:
    kind, rows, tokens, context = shape
    read = decode_bytes(ready, model, rows, context + tokens)
    flops = rows * model.flops(tokens, context - (kind == "decode"), sampled=1)
    by_memory = read / ceilings["read_bytes_per_second"]
    by_products = flops / max(ceilings["product_flops_per_second"].values())
    return Figure(
        kind=kind,
        rows=rows,
        tokens=tokens,
        context=context,
        milliseconds=1e3 * times.median,
        fastest_milliseconds=1e3 * times.fastest,
        steps=times.calls,
        tokens_per_second=rows * tokens / times.median,
        megabytes=read / 1e6,
        gigaflops=flops / 1e9,
        share=(by_memory if kind == "decode" else by_products) / times.median,
    )


def print_steps(console: Console, record: Steps) -> None:
    rates = record.ceilings["product_flops_per_second"].items()
    products = ", ".join(f"{side}: {rate / 1e9:,.0f}" for side, rate in rates)
    caption = (
        "share: of the bytes that can be read for decode, of the products for prefill; measured in this run with "
        f"{torch.get_num_threads()} threads: {record.ceilings['read_bytes_per_second'] / 1e9:.1f} GB/s read; "
        f"GFLOP/s of bfloat16 products by side: {products}"
    )
    rows = []
    for each in record.figures:
        seconds = each.milliseconds / 1e3
        shape = f"{each.rows} rows" if each.kind == "decode" else f"{each.tokens} tokens"
        name = f"{each.kind}, {shape}" + (f" at {each.context:,}" if each.kind != "prefill" else "")
        times = (f"{each.milliseconds:,.2f}", f"{each.fastest_milliseconds:,.2f}", f"{each.tokens_per_second:,.0f}")
        rates = (f"{each.megabytes / 1e3 / seconds:,.1f}", f"{each.gigaflops / seconds:,.0f}", f"{each.share:.0%}")
        rows.append([name, *times, *rates])
    columns = ("step", "ms", "fastest", "tokens/s", "GB/s", "GFLOP/s", "share")
    console.print(table(columns, rows, caption=caption))
    for note in record.notes:
        console.print(note, highlight=False)
    for line in record.surprises:
        console.print(f"surprise: {line}", highlight=False)


def measure_cpu_ceilings(read_bytes: int) -> dict[str, Any]:
    """The best of several passes each: neighbours on the machine can only take away. One stream of float32 far larger
    than any cache, read by the fastest of several reductions, and bfloat16 products of square matrices by their side.
    """
    data = torch.ones(read_bytes // 4 // _COLUMNS, _COLUMNS)
    reductions: tuple[Callable[[], object], ...] = (
        lambda: torch.linalg.vector_norm(data),
        data.sum,
        data.amax,
        lambda: torch.mv(data, data[0]),
    )
    cpu = torch.device("cpu")
    return {
        "read_bytes_per_second": data.nbytes / min(time_call([each], cpu).fastest for each in reductions),
        "product_flops_per_second": {side: 2 * side**3 / time_product(side, cpu).fastest for side in _SIDES},
    }


def _cache_bytes(model: ModelSpec, tokens: int) -> int:
    """Room for ``tokens`` in the widest type that a cache has."""
    return sum(group.token_bytes(4) for group in model.cache_groups) * (tokens + 1024)
