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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from stentor.engine.client.client import EngineClient
from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.grammar.matcher import Compiler
from stentor.engine.core.grammar.token_sets import MaskWriter, ids_in
from stentor.engine.core.grammar.vocabulary import TokenBytes, pieces_of
from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams

from .offline import Engine, offline, running_engine
from .processes import cpu_seconds, tree
from .record import Record, quantile
from .tool import add_flag, make_parser, run_tool, table
from .worker_options import add_worker_options, describe, worker_config

WHITESPACE: Final = {"whitespace_flexible": False, "whitespace_pattern": r"\n?(?:\x20{0,32}|\t{0,8})"}
"""As the server has it by default."""
_TEXT: Final = {"type": "string", "maxLength": 40}


def _object(required: Sequence[str] | None = None, **properties: Any) -> dict[str, Any]:
    """All properties are required where ``required`` names none."""
    names = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_NODES: Final = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "person": _object(name=_TEXT, age={"type": "integer", "minimum": 0, "maximum": 150}, mail=_TEXT),
    "enums": _object(None, **{f"field_{n}": {"enum": [f"value {n} {m}" for m in range(20)]} for n in range(12)}),
    "nested": {
        "$defs": {"node": _object(label=_TEXT, weight={"type": "number"}, children=_NODES)},
        "$ref": "#/$defs/node",
    },
    "choice": {
        "anyOf": [
            _object(["kind", f"only_{n}"], kind={"const": f"kind{n}"}, **{f"only_{n}": _TEXT}, note=_TEXT)
            for n in range(30)
        ]
    },
    "pattern": _object(
        id={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}(/[a-z]+){0,3}$"},
        when={"type": "string", "format": "date-time"},
        mail={"type": "string", "format": "email"},
    ),
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
    """Tokens a second, and milliseconds of CPU of engine and worker a token, of each round."""

    streams: int
    free: Sequence[float]
    constrained: Sequence[float]
    ratio: float
    free_cpu_ms: Sequence[float]
    constrained_cpu_ms: Sequence[float]
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


async def rate_cost(arguments: argparse.Namespace, config: WorkerConfig, vocabulary: TokenBytes) -> list[RateCost]:
    """At each number of streams, in turns without a grammar and with one that ends by its length alone."""
    special, eos = frozenset(vocabulary.special), frozenset(vocabulary.eos)

    def prepare(client: EngineClient) -> None:
        client.set_vocabulary(lambda: pieces_of(vocabulary.tokens, special, eos))

    async def rate(engine: Engine, streams: int, grammar: str) -> tuple[float, float]:
        """Tokens a second after all prompts, and milliseconds of CPU a token."""
        pids = tree(engine.client.pid or 0)
        before = sum(map(cpu_seconds, pids))
        lengths = [(32, arguments.output_tokens)] * streams
        answers = await engine.run(lengths, temperature=arguments.temperature, grammar=grammar)
        tokens = sum(answer.tokens for answer in answers)
        cpu = (sum(map(cpu_seconds, pids)) - before) / tokens
        arrivals = sorted(moment for answer in answers for moment in answer.arrivals)
        return (tokens - streams) / (arrivals[-1] - arrivals[streams]), cpu * 1e3

    found = []
    async with running_engine(config, prepare) as engine:
        for streams in arguments.streams:
            rounds = [
                (await rate(engine, streams, ""), await rate(engine, streams, source_of(_ENDLESS)))
                for _ in range(1 + arguments.rounds)
            ][1:]  # the first one warms up
            free, free_cpu = zip(*(one for one, _ in rounds), strict=True)
            constrained, constrained_cpu = zip(*(one for _, one in rounds), strict=True)
            ratios = (_ratio(constrained, free), _ratio(free_cpu, constrained_cpu))
            found.append(RateCost(streams, free, constrained, ratios[0], free_cpu, constrained_cpu, ratios[1]))
    return found


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


class GrammarCost(Record, frozen=True, kw_only=True):
    """What ``stentor bench grammar-cost`` saves."""

    kind: Literal["grammar cost"] = "grammar cost"
    worker: dict[str, Any]
    masks: list[MaskCost]
    rates: list[RateCost]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, offline(_measure), _show, CheckpointError)


async def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> GrammarCost:
    config = worker_config(arguments)
    vocabulary = read_vocabulary(Path(config.model))
    compiler = Compiler(vocabulary)
    count = arguments.mask_tokens
    masks = [mask_cost(name, compiler, vocabulary, count) for name in SCHEMAS] if count else []
    rates = await rate_cost(arguments, config, vocabulary) if arguments.streams else []
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
