"""``stentor bench adapters``: streams with LoRA adapters beside streams without, and what loading one does to others.

    stentor bench adapters --streams 32 --adapters 16 --rank 16 --save adapters.json
    stentor bench adapters --loads 1000 --rounds 0

One server has the model, and random adapters of all projections of its layers. In each round as many streams as there
are lanes are sent at once, for the model and then for the adapters, dealt out evenly; the median over rounds of the
ratio is told. Then an adapter is loaded and unloaded by an admin again and again, beside four streams that have none:
what counts are the gaps between two tokens, and the memory of all processes before and behind.
"""

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import msgspec
import torch
from rich.console import Console
from safetensors.torch import save_file

from stentor.engine.layers.linear.adapters import AdapterPlaces
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.models.decoder import Decoder
from stentor.protocols.ipc.config import LoadFormat

from .client import STREAMED, StreamError, complete
from .media_load import gaps
from .peers.figures import streams_round
from .processes import pss_bytes, tree
from .record import Record, Spread
from .recovery import Load
from .server_process import HOST, ServerProcess
from .serving.measure import spread
from .tool import ToolError, at_least, make_parser, run_tool, table

NAME: Final = "base"
BESIDE: Final = 4
"""Streams beside which adapters are loaded."""
_SETTLE_SECONDS: Final = 3.0


@dataclass(frozen=True)
class BesideLoads:
    """In milliseconds, as every spread."""

    loads: int
    load: Spread
    """From an admin's request to its answer."""
    alone: Spread
    """Of the gaps between two moments at which a stream had tokens, as ``beside``."""
    beside: Spread
    bytes_before: int
    """Of all processes, in proportion where they share pages, once one adapter was loaded and unloaded."""
    bytes_after: int


class AdapterLoad(Record, frozen=True, kw_only=True, tag="adapters"):
    model: str
    streams: int
    adapters: int
    rank: int
    adapter_bytes: int
    """Of the file of one."""
    base: list[float]
    """Tokens a second, by round."""
    adapted: list[float]
    ratio: float | None
    beside_loads: BesideLoads | None = None


def shapes_of(model: Path, load_format: LoadFormat = "auto") -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every projection of a layer that adapters may add to, by its stored name: of those that
    have several, one."""
    places = AdapterPlaces()
    context = LayerContext(torch.device("cpu"), torch.float32, False, shapes_only=True, adapters=places)
    Decoder(open_checkpoint(model, load_format).decoder, context, max_model_len=1)
    found, seen = {}, set()
    for name, place in places.by_name.items():
        key = id(place.linears[0]), place.column
        if ".layers." in name and len(place.linears) == 1 and key not in seen:
            seen.add(key)
            found[name] = place.stored_inputs, place.stored_outputs
    return found


def write_adapter(folder: Path, shapes: dict[str, tuple[int, int]], rank: int, seed: int) -> int:
    """Writes an adapter in PEFT's format, in bfloat16, that changes little of what the model says; returns the bytes of
    its matrices."""
    draw = torch.Generator().manual_seed(seed)

    def matrices() -> Iterator[tuple[str, torch.Tensor]]:
        for name, (inputs, outputs) in shapes.items():
            for which, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
                matrix = torch.randn(size, generator=draw) / inputs
                yield f"base_model.model.{name}.lora_{which}.weight", matrix.to(torch.bfloat16)

    stored = dict(matrices())
    folder.mkdir(parents=True)
    save_file(stored, folder / "adapter_model.safetensors")
    targets = sorted({name.rpartition(".")[2] for name in shapes})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(config))
    return sum(matrix.nbytes for matrix in stored.values())


async def together(port: int, models: Sequence[str], tokens: int) -> float:
    """Tokens a second of as many streams at once, each of its model."""
    bodies = [
        {
            "model": model,
            "prompt": f"Stream {number} tells a tale:",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **STREAMED,
        }
        for number, model in enumerate(models)
    ]
    return streams_round(await asyncio.gather(*(complete(port, body) for body in bodies)))["output_tokens_per_s"]


async def beside_loads(server: ServerProcess, key: str, loads: int, seconds: float, tokens: int) -> BesideLoads:
    """``seconds``: for which the streams run alone first. Raises StreamError where one of them is lost."""
    load = Load(server.port, tokens, NAME)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", headers=headers, timeout=60) as admin:

        async def post(path: str, **fields: str) -> float:
            began = time.perf_counter()
            answer = await admin.post(path, json=fields)
            if answer.status_code != 200:
                raise ToolError(f"{path} gave status {answer.status_code}: {answer.text[:200]}")
            return time.perf_counter() - began

        async def turn(number: int) -> float:
            took = await post("/v1/load_lora_adapter", lora_name=f"extra-{number}", lora_path="0")
            await post("/v1/unload_lora_adapter", lora_name=f"extra-{number}")
            return took

        async with load.lanes(BESIDE):
            await load.flows_since(0.0)
            await turn(-1)
            await asyncio.sleep(_SETTLE_SECONDS)
            held = sum(map(pss_bytes, tree(server.pid)))
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            first = time.perf_counter()
            took = [await turn(number) for number in range(loads)]
            ended = time.perf_counter()
            await asyncio.sleep(_SETTLE_SECONDS)
            behind = sum(map(pss_bytes, tree(server.pid)))
    if load.failures:
        raise StreamError(f"{len(load.failures)} streams were lost; the first: {load.failures[0]}")
    alone, beside = gaps(load.streams, began, first), gaps(load.streams, first, ended)
    return BesideLoads(loads, spread(took), alone, beside, held, behind)


def main(argv: list[str]) -> int:
    parser = make_parser("adapters", __doc__, epilog="What follows -- goes to `stentor serve` as it is.")
    number, some = at_least(1), at_least(0)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as of `stentor serve` (%(default)s)")
    parser.add_argument("--load-format", choices=get_args(LoadFormat), default="auto", help="as of `stentor serve`")
    parser.add_argument("--streams", type=number, default=32, metavar="N", help="at once (32)")
    parser.add_argument("--adapters", type=number, default=16, metavar="N", help="that these have (16)")
    parser.add_argument("--rank", type=number, default=16, metavar="N", help="of each (16)")
    parser.add_argument("--rounds", type=some, default=5, metavar="N", help="behind one to warm up (5)")
    parser.add_argument("--output-tokens", type=number, default=64, metavar="N", help="of a stream (64)")
    parser.add_argument("--loads", type=some, default=50, metavar="N", help="beside streams (50)")
    parser.add_argument("--seconds", type=number, default=5, metavar="N", help="of these streams alone (5)")
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return run_tool(parser, argv, _measure, show, CheckpointError, StreamError)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> AdapterLoad:
    model, count = resolve_model(arguments.model), arguments.adapters
    key = secrets.token_hex()
    base, adapted, loads = list[float](), list[float](), None
    with tempfile.TemporaryDirectory(prefix="adapters-") as folder:
        shapes = shapes_of(model, arguments.load_format)
        nbytes = [write_adapter(Path(folder, str(seed)), shapes, arguments.rank, seed) for seed in range(count)]
        sizes = ["--max-loras", str(count), "--max-cpu-loras", str(count + 1), "--max-lora-rank", str(arguments.rank)]
        options = [
            str(model),
            "--load-format",
            arguments.load_format,
            "--served-model-name",
            NAME,
            "--enable-lora",
            "--lora-folder",
            folder,
            *sizes,
        ]
        lanes = [*("--max-num-seqs", str(arguments.streams)), "--admin-key", key, *arguments.serve]
        with ServerProcess([*options, *lanes]) as server:
            names = [str(number % count) for number in range(arguments.streams)]
            for turn in range(arguments.rounds + 1 if arguments.rounds else 0):
                for models, found in (([NAME] * len(names), base), (names, adapted)):
                    rate = asyncio.run(together(server.port, models, arguments.output_tokens if turn else 8))
                    if turn:  # the first warms up
                        found.append(rate)
            if arguments.loads:
                asked = beside_loads(server, key, arguments.loads, arguments.seconds, arguments.output_tokens)
                loads = asyncio.run(asked)
    pairs = zip(base, adapted, strict=True)
    return AdapterLoad(
        model=arguments.model,
        streams=arguments.streams,
        adapters=count,
        rank=arguments.rank,
        adapter_bytes=nbytes[0],
        base=base,
        adapted=adapted,
        ratio=statistics.median(new / old for old, new in pairs) if base else None,
        beside_loads=loads,
        **about,
    )


def show(console: Console, record: AdapterLoad) -> None:
    if record.ratio is not None:
        rows = [
            [name, *(f"{figure(rates):,.0f}" for figure in (min, statistics.median, max))]
            for name, rates in (("the model", record.base), (f"{record.adapters} adapters", record.adapted))
        ]
        title = (
            f"tokens/s of {record.streams} streams, adapters of rank {record.rank} ({record.adapter_bytes / 1e6:.1f} "
            f"MB each): {record.ratio:.2f} of the model's, the median of {len(record.base)} rounds"
        )
        console.print(title, highlight=False, soft_wrap=True)
        console.print(table(("streams of", "least", "median", "most"), rows))
    if (found := record.beside_loads) is not None:
        rows = [
            [name, f"{each.count:,}", *(f"{figure:.1f}" for figure in (each.p50, each.p99, each.max))]
            for name, each in (("gaps alone", found.alone), ("gaps beside loads", found.beside), ("loads", found.load))
        ]
        title = (
            f"{found.loads} loads and unloads beside {BESIDE} streams; {found.bytes_before / 2**20:,.0f} MiB before "
            f"and {found.bytes_after / 2**20:,.0f} behind"
        )
        console.print(title, highlight=False, soft_wrap=True)
        console.print(table(("ms", "count", "median", "p99", "largest"), rows))
