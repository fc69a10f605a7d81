"""What grammars cost: the time of a mask, and the rate of constrained streams beside that of free ones.

    stentor bench grammar-cost --model FOLDER --streams 8 --output-tokens 256 --rounds 3

*Masks*: everything that the engine does for one token of one choice beyond what it does without a grammar (feed the
token, compute what may follow, put it into a message and encode that), on this model's vocabulary, along random texts
of each schema, drawn evenly from what is allowed: stranger texts than a model's, and so dearer. *Rate*: real engine and
worker processes; the same number of streams of the same length, in turns with a grammar and without, and the quotient
of the median rates.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from stentor.engine.client.client import EngineClient
from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.grammar.matcher import Compiler
from stentor.engine.core.grammar.token_sets import MaskWriter, ids_in
from stentor.engine.core.grammar.vocabulary import TokenBytes, pieces_of
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.sampling import SamplingParams

from .processes import cpu_seconds, tree
from .record import Record, quantile
from .tool import add_flag, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

WHITESPACE: Final = {"whitespace_flexible": False, "whitespace_pattern": r"\n?(?:\x20{0,32}|\t{0,8})"}
"""As the server has it by default."""
_TEXT: Final = {"type": "string", "maxLength": 40}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "person": {
        "type": "object",
        "properties": {"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "mail": _TEXT},
        "required": ["name", "age", "mail"],
        "additionalProperties": False,
    },
    "enums": {
        "type": "object",
        "properties": {f"field_{n}": {"enum": [f"value {n} {m}" for m in range(20)]} for n in range(12)},
        "required": [f"field_{n}" for n in range(12)],
        "additionalProperties": False,
    },
    "nested": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "label": _TEXT,
                    "weight": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["label", "weight", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "choice": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"kind{n}"}, f"only_{n}": _TEXT, "note": _TEXT},
                "required": ["kind", f"only_{n}"],
                "additionalProperties": False,
            }
            for n in range(30)
        ]
    },
    "pattern": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}(/[a-z]+){0,3}$"},
            "when": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
        },
        "required": ["id", "when", "mail"],
        "additionalProperties": False,
    },
}
_ENDLESS: Final = {"type": "array", "items": SCHEMAS["person"], "minItems": 10_000}
"""So that streams end by their length alone."""


class MaskCost(msgspec.Struct, frozen=True):
    """Microseconds a token."""

    schema: str
    tokens: int
    compile_ms: float
    p50: float
    p99: float
    highest: float
    frame_bytes: float
    """Of a message with the mask of one row, on average."""


class RateCost(msgspec.Struct, frozen=True):
    streams: int
    free: list[float]
    """Tokens a second, a round each."""
    constrained: list[float]
    ratio: float
    free_cpu_ms: list[float]
    """CPU time of engine and worker a token, a round each."""
    constrained_cpu_ms: list[float]
    cpu_ratio: float
    """Of the free to the constrained: below 1 where grammars cost."""


def source_of(schema: dict[str, Any]) -> str:
    return f"start: %json {json.dumps({**schema, 'x-guidance': WHITESPACE})}"


def read_vocabulary(folder: Path) -> TokenBytes:
    """Of a tokenizer of the byte-level kind."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = {id: token.content.encode() for id, token in tokenizer.get_added_tokens_decoder().items()}
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    alphabet = _byte_alphabet()
    tokens = []
    for id in range(size):
        text = tokenizer.id_to_token(id) or ""
        tokens.append(added.get(id) or bytes(alphabet[character] for character in text if character in alphabet))
    config = json.loads((folder / "config.json").read_text())
    eos = config.get("eos_token_id") or 0
    return TokenBytes(tokens, sorted(added), eos if isinstance(eos, list) else [eos])


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in tokens of GPT-2's kind."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {chr(256 + n): value for n, value in enumerate(others)}


def mask_cost(name: str, compiler: Compiler, vocabulary: TokenBytes, tokens: int) -> MaskCost:
    began = time.perf_counter()
    template = compiler.compile(source_of(SCHEMAS[name]))
    compiled = time.perf_counter() - began
    sets = ParameterSets(
        SamplingParams(max_tokens=1, eos_token_ids=tuple(vocabulary.eos)), len(vocabulary.tokens), vocabulary.eos
    )
    rng = random.Random(1)
    seconds: list[float] = []
    frames: list[int] = []
    while len(seconds) < tokens:
        constraint = TokenConstraint(sets, template.copy(), None)
        token: int | None = None
        for _ in range(400):
            began = time.thread_time()
            if token is not None:
                constraint.accept(token)
            if constraint.ended:
                break
            allowed = constraint.allowed() or 0
            writer = MaskWriter()
            writer.add(0, allowed)
            frame = encoder.encode(writer.masks(0, 0))
            seconds.append(time.thread_time() - began)
            frames.append(len(frame))
            token = _draw(rng, allowed, len(vocabulary.tokens))
    micro = [each * 1e6 for each in seconds]
    return MaskCost(
        name,
        len(micro),
        compiled * 1e3,
        statistics.median(micro),
        quantile(micro, 0.99),
        max(micro),
        statistics.fmean(frames),
    )


def _draw(rng: random.Random, allowed: int, size: int) -> int:
    if allowed.bit_count() > size // 50:
        while True:
            token = rng.randrange(size)
            if allowed >> token & 1:
                return token
    return rng.choice(ids_in(allowed))


async def rate_cost(
    config: EngineConfig, vocabulary: TokenBytes, streams: int, tokens: int, rounds: int, temperature: float
) -> RateCost:
    client = EngineClient(config)
    special, eos = frozenset(vocabulary.special), frozenset(vocabulary.eos)
    client.set_vocabulary(lambda: pieces_of(vocabulary.tokens, special, eos))
    rng = random.Random(2)
    params = SamplingParams(max_tokens=tokens, temperature=temperature)
    grammar = source_of(_ENDLESS)

    async def read(number: int, source: str, arrivals: list[float]) -> None:
        prompt = [rng.randrange(300, len(vocabulary.tokens)) for _ in range(32)]
        async for events in client.submit(prompt, params, [number], grammar=source):
            now = time.perf_counter()
            for event in events:
                if isinstance(event, SequenceTokens):
                    arrivals.extend([now] * len(event.tokens))
                elif isinstance(event, Finished) and event.reason != "length":
                    raise RuntimeError(f"a stream ended with {event.reason}: {event.message}")

    async def rate(source: str) -> tuple[float, float]:
        arrivals: list[float] = []
        pids = tree(client.pid or 0)
        before = sum(map(cpu_seconds, pids))
        async with anyio.create_task_group() as readers:
            for number in range(streams):
                readers.start_soon(read, number, source, arrivals)
        # the first tokens tell of prompts
        arrivals.sort()
        first = arrivals[streams]
        cpu = (sum(map(cpu_seconds, pids)) - before) / len(arrivals)
        return (len(arrivals) - streams) / (arrivals[-1] - first), cpu * 1e3

    free: list[tuple[float, float]] = []
    constrained: list[tuple[float, float]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        await client.wait_started()
        for source in ("", grammar):
            await rate(source)
        for _ in range(rounds):
            free.append(await rate(""))
            constrained.append(await rate(grammar))
        tasks.cancel_scope.cancel()
    pairs = list(zip(free, constrained, strict=True))
    return RateCost(
        streams,
        [rate for rate, _ in free],
        [rate for rate, _ in constrained],
        statistics.median(with_[0] / without[0] for without, with_ in pairs),
        [cpu for _, cpu in free],
        [cpu for _, cpu in constrained],
        statistics.median(without[1] / with_[1] for without, with_ in pairs),
    )


class GrammarCost(Record, frozen=True, kw_only=True):
    """What ``stentor bench grammar-cost`` saves."""

    kind: Literal["grammar cost"] = "grammar cost"
    worker: dict[str, Any]
    masks: list[MaskCost]
    rates: list[RateCost]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, _show)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> GrammarCost:
    config = worker_config(arguments)
    vocabulary = read_vocabulary(Path(config.model))
    masks: list[MaskCost] = []
    if arguments.mask_tokens:
        began = time.perf_counter()
        compiler = Compiler(vocabulary)
        ready = time.perf_counter() - began
        print(f"{len(vocabulary.tokens)} tokens; llguidance imported and ready in {ready:.2f} s")
        masks = [mask_cost(name, compiler, vocabulary, arguments.mask_tokens) for name in SCHEMAS]
    amount = (arguments.output_tokens, arguments.rounds, arguments.temperature)
    rates = [
        anyio.run(rate_cost, EngineConfig(config), vocabulary, streams, *amount, backend_options={"use_uvloop": True})
        for streams in arguments.streams
    ]
    return GrammarCost(worker=describe(config), masks=masks, rates=rates, **about)


def _show(console: Console, record: GrammarCost) -> None:
    rows = [
        [each.schema, str(each.tokens), f"{each.compile_ms:.1f}"]
        + [f"{figure:.0f}" for figure in (each.p50, each.p99, each.highest, each.frame_bytes)]
        for each in record.masks
    ]
    if rows:
        console.print(table(("schema", "tokens", "compile ms", "p50 µs", "p99 µs", "max µs", "frame bytes"), rows))
    for found in record.rates:
        console.print(
            f"{found.streams} streams: free {', '.join(f'{each:.0f}' for each in found.free)} tokens/s, constrained "
            f"{', '.join(f'{each:.0f}' for each in found.constrained)}; ratio {found.ratio:.3f}; CPU a token "
            f"{statistics.median(found.free_cpu_ms):.2f} and {statistics.median(found.constrained_cpu_ms):.2f} ms, "
            f"ratio {found.cpu_ratio:.3f}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("grammar-cost", "Times masks, and streams with and without them.")
    add_worker_options(parser)
    parser.add_argument("--streams", type=int, nargs="*", default=[8])
    add_flag(parser, "--output-tokens", "--tokens", type=int, default=256, metavar="N", help="of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--mask-tokens", type=int, default=2000, help="for each schema; 0: none")
    return parser
