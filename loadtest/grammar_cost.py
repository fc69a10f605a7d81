"""What grammars cost: the time of a mask, on a model's vocabulary.

    stentor bench grammar-cost --model FOLDER

A mask is everything that the engine does for one token of one choice beyond what it does without a grammar: feed the
token, compute what may follow, put it into a message and encode that. It is timed along random texts of each schema,
drawn evenly from what is allowed: stranger texts than a model's, and so dearer. What grammars do to a server's rate,
``stentor bench serve`` measures with and without ``--extra-body '{"response_format": …}'``.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint
from stentor.engine.core.grammar.matcher import Compiler
from stentor.engine.core.grammar.token_sets import MaskWriter, ids_in
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.sampling import SamplingParams

from .record import Record, quantile
from .tool import ToolError, at_least, make_parser, run_tool, table

WHITESPACE: Final = {"whitespace_flexible": False, "whitespace_pattern": r"\n?(?:\x20{0,32}|\t{0,8})"}
"""The server's default."""
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


def source_of(schema: dict[str, Any]) -> str:
    return f"start: %json {json.dumps({**schema, 'x-guidance': WHITESPACE})}"


def read_vocabulary(folder: Path) -> TokenBytes:
    """Of a tokenizer of the byte-level kind. Raises ToolError without ``tokenizer.json``."""
    if not (folder / "tokenizer.json").is_file():
        raise ToolError(f"--model: {folder} has no tokenizer.json; give the folder of a model in Hugging Face's layout")
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # late: it takes seconds

    tokenizer = Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes())
    added = {id: token.content.encode() for id, token in tokenizer.get_added_tokens_decoder().items()}
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    alphabet = {character: value for value, character in bytes_to_unicode().items()}
    tokens = []
    for id in range(size):
        text = tokenizer.id_to_token(id) or ""
        tokens.append(added.get(id) or bytes(alphabet[character] for character in text if character in alphabet))
    config = json.loads((folder / "config.json").read_text())
    eos = config.get("eos_token_id") or 0
    return TokenBytes(tokens, sorted(added), eos if isinstance(eos, list) else [eos])


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


class GrammarCost(Record, frozen=True, kw_only=True, tag="grammar cost"):
    model: str
    masks: list[MaskCost]


def main(argv: list[str]) -> int:
    parser = make_parser("grammar-cost", __doc__)
    parser.add_argument("--model", required=True, help="a folder with tokenizer.json, or what names one")
    parser.add_argument("--mask-tokens", type=at_least(1), default=2000, metavar="N", help="of each schema (2000)")
    return run_tool(parser, argv, _measure, _show, CheckpointError, OSError)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> GrammarCost:
    vocabulary = read_vocabulary(resolve_model(arguments.model))
    compiler = Compiler(vocabulary)
    masks = [mask_cost(name, compiler, vocabulary, arguments.mask_tokens) for name in SCHEMAS]
    return GrammarCost(model=arguments.model, masks=masks, **about)


def _show(console: Console, record: GrammarCost) -> None:
    rows = [
        [each.schema, str(each.tokens), f"{each.compile_ms:.1f}"]
        + [f"{figure:.0f}" for figure in (each.p50, each.p99, each.highest, each.frame_bytes)]
        for each in record.masks
    ]
    console.print(table(("schema", "tokens", "compile ms", "p50 µs", "p99 µs", "max µs", "frame bytes"), rows))
