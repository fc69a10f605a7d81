"""Two hundred short texts, each with a schema and the values that the text holds for it: is an answer sensible?

An answer counts as *ended* with ``finish_reason`` ``stop`` within the tokens it has, as *valid* if it then validates,
as *sensible* if besides no required text in it is empty or repeats itself, and as *found* if besides all values that
the prompt holds are in their places. Requests are as the ``openai`` package's ``parse`` makes them: the schema is not
in the prompt.
"""

import asyncio
import json
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import openai

from stentor.tests.server.grammar.schemas import faults_of

COUNT: Final = 200
MAX_TOKENS: Final = 128
LONGEST: Final = 300
"""Characters of a text that may be an answer to these prompts."""
_REPEATED: Final = re.compile(r"(.{2,40}?)\1{3,}|(\b\w+\b)(\W+\2\b){3,}", re.DOTALL)
"""The same four times in a row."""

TEXT: Final = {"type": "string"}
INTEGER: Final = {"type": "integer"}


class Task(NamedTuple):
    prompt: str
    schema: dict[str, Any]
    expected: dict[str, Any]


class Counts(msgspec.Struct, frozen=True):
    """Shares are of all answers."""

    answers: int
    ended_share: float
    valid_share: float
    sensible_share: float
    found_share: float
    tokens: int
    seconds: float


class _Judged(NamedTuple):
    ended: bool
    valid: bool
    sensible: bool
    found: bool
    tokens: int


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_NAMES: Final = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas")
_CITIES: Final = ("Paris", "London", "Tokyo", "Berlin", "Madrid", "Rome", "Vienna", "Oslo", "Lisbon", "Dublin")
_THINGS: Final = ("lamp", "table", "chair", "pencil", "bottle", "camera", "jacket", "guitar", "mirror", "basket")
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_COLORS: Final = ("red", "green", "blue", "black", "white")


def tasks(count: int = COUNT) -> list[Task]:
    """The same ones each time."""
    kinds = _kinds(random.Random(20261101))
    return [next(kinds) for _ in range(count)]


def _kinds(choose: random.Random) -> Iterator[Task]:
    while True:
        name, other = choose.sample(_NAMES, 2)
        city, thing = choose.choice(_CITIES), choose.choice(_THINGS)
        day, color, number = choose.choice(_DAYS), choose.choice(_COLORS), choose.randint(2, 60)
        yield Task(
            f"Extract the person: {name} is {number} years old and lives in {city}.",
            _record(name=TEXT, age=INTEGER, city=TEXT),
            {"name": name, "age": number, "city": city},
        )
        yield Task(
            f"Extract the event information. {name} and {other} are going to a science fair on {day}.",
            _record(name=TEXT, day=TEXT, participants={"type": "array", "items": TEXT, "maxItems": 4}),
            {"day": day, "participants": [name, other]},
        )
        yield Task(
            f"We sell a {color} {thing} for {number} dollars. Describe the product as JSON.",
            _record(product=TEXT, color={"enum": list(_COLORS)}, price=INTEGER),
            {"product": thing, "color": color, "price": number},
        )
        yield Task(
            f"What is the weather like in {city}? Call the weather service in JSON, with the unit celsius.",
            _record(location=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
            {"location": city, "unit": "celsius"},
        )
        yield Task(
            f"Read the order: {name} orders {number} of our {thing}s, to be sent to {city}.",
            _record(customer=TEXT, item=_record(name=TEXT, quantity=INTEGER), address=_record(city=TEXT)),
            {"customer": name, "item": {"name": thing, "quantity": number}, "address": {"city": city}},
        )
        yield Task(
            f'Is this review positive or negative? "{name} loves the {thing}, it is great." Give a short reason.',
            _record(sentiment={"enum": ["positive", "negative"]}, reason=TEXT),
            {"sentiment": "positive"},
        )
        yield Task(
            f"Make a joke about a {thing}: a setup and a punchline.",
            _record(setup=TEXT, punchline=TEXT),
            {"setup": thing},
        )
        yield Task(
            f"List the two people in this text with their jobs: {name} is a doctor. {other} is a teacher.",
            _record(people={"type": "array", "items": _record(name=TEXT, job=TEXT), "minItems": 2, "maxItems": 2}),
            {"people": [{"name": name, "job": "doctor"}, {"name": other, "job": "teacher"}]},
        )
        yield Task(
            f"Write down the meeting as JSON: {name} meets {other} in {city} on {day} at {number % 12 + 1} o'clock.",
            _record(who=TEXT, with_whom=TEXT, where=TEXT, day=TEXT, hour=INTEGER),
            {"who": name, "with_whom": other, "where": city, "day": day, "hour": number % 12 + 1},
        )
        yield Task(
            f"Fill in the form. Name: {name}. Age: {number}. Favourite color: {color}. Has a pet: yes.",
            _record(name=TEXT, age=INTEGER, favourite_color=TEXT, has_pet={"type": "boolean"}),
            {"name": name, "age": number, "favourite_color": color, "has_pet": True},
        )


def is_degenerate(value: Any) -> bool:
    """Whether a text in it is empty, or far too long, or says the same again and again."""
    if isinstance(value, dict | list):
        return any(map(is_degenerate, value.values() if isinstance(value, dict) else value))
    if not isinstance(value, str):
        return False
    return not value.strip() or len(value) > LONGEST or _REPEATED.search(value) is not None


def holds(value: Any, expected: Any) -> bool:
    """Whether expected values are in their places; a text may say more."""
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(holds(value.get(name), inner) for name, inner in expected.items())
    if isinstance(expected, list):
        listed = value if isinstance(value, list) else []
        return all(any(holds(each, one) for each in listed) for one in expected)
    if isinstance(expected, str):
        return isinstance(value, str) and expected.lower() in value.lower()
    return type(value) is type(expected) and bool(value == expected)


async def measure(url: str, model: str, count: int = COUNT, streams: int = 8) -> Counts:
    """Answers of the server at ``url``, greedy."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    turns = asyncio.Semaphore(streams)
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", timeout=600.0, max_retries=0) as client:

        async def one(task: Task) -> _Judged:
            async with turns:
                return await _ask(client, model, task)

        judged = await asyncio.gather(*map(one, tasks(count)))

    def share(held: Iterable[bool]) -> float:
        return round(sum(held) / len(judged), 4)

    return Counts(
        answers=len(judged),
        ended_share=share(each.ended for each in judged),
        valid_share=share(each.valid for each in judged),
        sensible_share=share(each.sensible for each in judged),
        found_share=share(each.found for each in judged),
        tokens=sum(each.tokens for each in judged),
        seconds=round(loop.time() - began, 1),
    )


async def _ask(client: openai.AsyncOpenAI, model: str, task: Task) -> _Judged:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": task.prompt}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": task.schema, "strict": True},
        },
        temperature=0.0,
        max_tokens=MAX_TOKENS,
    )
    choice = answer.choices[0]
    text = choice.message.content or ""
    ended = choice.finish_reason == "stop"
    valid = ended and not faults_of(task.schema, text)
    value = json.loads(text) if valid else None
    sensible = valid and not is_degenerate(value)
    tokens = 0 if answer.usage is None else answer.usage.completion_tokens
    return _Judged(ended, valid, sensible, sensible and holds(value, task.expected), tokens)
