"""Some of the schemas and texts of ``make schemas`` through the real server, and how its answers are judged."""

import asyncio
import json
from typing import Any

import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.extraction import COUNT, holds, is_degenerate, measure, tasks
from stentor.tests.e2e.schema_proof import ENDED_SHARE, prove
from stentor.tests.server.grammar.schemas import all_schemas, faults_of


@pytest.mark.proof  # random walks through grammars: server/grammar/test_schemas.py
def test_what_ends_by_itself_validates(server: ServerProcess) -> None:
    schemas = all_schemas()[3::22]
    proof = asyncio.run(prove(f"http://127.0.0.1:{server.port}/v1", NAME, schemas, seed=7))
    assert proof.schemas == len(schemas) >= 10
    assert proof.invalid == []
    assert proof.ended_share >= ENDED_SHARE


def test_some_texts_are_answered_and_judged(server: ServerProcess) -> None:
    counts = asyncio.run(measure(f"http://127.0.0.1:{server.port}/v1", NAME, 4))
    assert counts.answers == 4
    assert counts.ended_share >= counts.valid_share >= counts.sensible_share >= counts.found_share
    assert counts.valid_share == counts.ended_share > 0
    assert counts.tokens > 0


def test_every_task_can_be_answered_as_it_expects() -> None:
    found = tasks()
    assert len(found) == COUNT
    assert found == tasks()
    for task in found[:10]:
        value = dict.fromkeys(task.schema["properties"], "said") | task.expected
        assert holds(value, task.expected)
        assert not is_degenerate(value)
        if value.keys() == task.expected.keys():
            assert faults_of(task.schema, json.dumps(value)) == [], task


@pytest.mark.parametrize(
    ("value", "degenerate"),
    [
        ({"a": "The lamp is red.", "b": [1, True, None]}, False),
        ({"a": ""}, True),
        ({"a": {"b": [" \n"]}}, True),
        ({"a": "a lamp is a joke, " * 4}, True),
        ({"a": "Fair Fair Fair Fair"}, True),
        ({"a": "no, no, no"}, False),
        ({"a": " ".join(map(str, range(200)))}, True),
    ],
)
def test_a_text_that_is_empty_or_repeats_itself_is_degenerate(value: Any, degenerate: bool) -> None:
    assert is_degenerate(value) == degenerate


def test_expected_values_are_looked_for_in_their_places() -> None:
    assert holds({"a": "Anna and Boris", "b": [{"c": 1}, {"c": 2}]}, {"a": "anna", "b": [{"c": 2}]})
    for other in ({}, {"a": 1}, {"a": "Boris"}, {"b": "Anna"}):
        assert not holds(other, {"a": "Anna"})
    assert not holds({"a": True}, {"a": 1})
