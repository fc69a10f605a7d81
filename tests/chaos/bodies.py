"""Requests of every kind whose tokens can be compared: half greedy, half drawn with a seed.

Most are completions; some follow a grammar, and some are conversations that must call a tool.
"""

import random
from typing import Any, Final

MODEL: Final = "chaos"
_TEXTS: Final = (
    "The sea",
    "Once upon a time there lived a king who",
    "def main(arguments):",
    "In the beginning was",
    "Dear Sir or Madam, I write to you about",
    "One, two, three, four,",
)
_SHAPES: Final[tuple[dict[str, Any], ...]] = (
    {
        "json": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "tags": {"type": "array", "items": {"enum": ["a", "bc", "def"]}, "minItems": 2, "maxItems": 4},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
            },
            "required": ["name", "tags", "age"],
            "additionalProperties": False,
        }
    },
    {"regex": "(yes|no|perhaps)( and (yes|no|perhaps)){8}!"},
    {"choice": ["a rather long answer, word by word", "another one, which is as long as that"]},
)
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Says how it will be.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"enum": [1, 2, 3]}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "traffic")
]
_STOPS: Final = ([" the", "."], ["\n"])


def make_bodies(seed: int, count: int, least: int, most: int) -> list[dict[str, Any]]:
    """``least`` and ``most``: output tokens. The same seed makes the same bodies."""
    draw = random.Random(seed)
    return [_body(draw, number, draw.randint(least, most)) for number in range(count)]


def runs_to_its_length(body: dict[str, Any]) -> bool:
    """Whether every choice must have exactly ``max_tokens`` tokens."""
    return bool(body["ignore_eos"]) and "stop" not in body and not is_constrained(body)


def is_constrained(body: dict[str, Any]) -> bool:
    """Whether what ends before its length has a form that can be checked."""
    return "structured_outputs" in body or "tools" in body


def _body(draw: random.Random, number: int, tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": _prompt(draw),
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "temperature": 0,
    }
    if number % 2:
        body |= _sampling(draw)
    if number % 8 in (3, 6):
        body["n"] = 2
    if number % 16 == 5:
        body["stop"] = draw.choice(_STOPS)
    if number % 16 == 10:
        body["logprobs"] = 2
    if number % 8 == 7:
        body |= {"structured_outputs": _SHAPES[number // 8 % len(_SHAPES)], "n": 1 + number // 8 % 2}
    if number % 16 in (1, 14):
        del body["prompt"]
        question = [{"role": "user", "content": f"How will it be in {draw.choice(('Oslo', 'Rome', 'Lima'))}?"}]
        body |= {"messages": question, "tools": _TOOLS, "tool_choice": "required", "ignore_eos": False}
    if number % 16 == 12:
        body |= {"ignore_eos": False, "min_tokens": tokens // 2}
    return body


def _prompt(draw: random.Random) -> str | list[int]:
    if draw.random() < 0.3:
        return draw.choice(_TEXTS)
    return [draw.randrange(100, 40_000) for _ in range(draw.choice((1, 7, 16, 17, 33, 60)))]


def _sampling(draw: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": round(draw.uniform(0.5, 1.3), 2), "seed": draw.getrandbits(40)}
    extra: dict[str, Any] = {
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.02,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logit_bias": {"260": -5, "18": 1.5},
    }
    return fields | {name: extra[name] for name in draw.sample(sorted(extra), draw.randrange(3))}
