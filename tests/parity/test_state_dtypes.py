"""States in 16 bits (``--mamba-cache-dtype``, ``--mamba-ssm-cache-dtype``) stay near transformers in float32."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.worker.rows.states import StateDTypes
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.config import StateDType, WorkerConfig
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import model_config
from stentor.tests.parity import hybrids, tiny
from stentor.tests.parity.cuts import LENGTH, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder

MEAN: dict[StateDType, float] = {"float16": 2e-3, "bfloat16": 1.6e-2}
MOST: dict[StateDType, float] = {"float16": 3e-2, "bfloat16": 0.35}
"""Of the error of a logit, in standard deviations of all: states are rounded after each of 75 tokens."""


@pytest.fixture(scope="module", params=hybrids.EACH_KIND)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.make(request.param, folder), folder


@pytest.mark.parametrize("kept", ["float16", "bfloat16"])
def test_logits_stay_near_those_of_float32(pair: tuple[Any, Path], kept: StateDType) -> None:
    model, folder = pair
    ours, prompt = PagedDecoder(folder, states=kept), prompt_of(1)
    ours.add(0, prompt)
    logits = torch.cat([ours.run((0, 0, 50))[0], ours.run((0, 50, LENGTH - 50))[0]])
    expected = expected_logits(model, prompt)
    error = (logits - expected).abs() / expected.std()
    assert error.mean() < MEAN[kept]
    by_token = error.amax(1).sort().values
    # tokens that see the other of two entries with scores that are as near
    chooses = {"deepseek_v4": 1, "glm5_next": 2}.get(model.config.model_type, 0)
    assert by_token[-1 - chooses] < MOST[kept]


@pytest.mark.parametrize(
    ("shared", "own", "inputs", "recurrent"),
    [
        ("auto", "auto", torch.bfloat16, torch.float32),
        ("float16", "auto", torch.float16, torch.float16),
        ("auto", "float16", torch.bfloat16, torch.float16),
        ("float32", "bfloat16", torch.float32, torch.bfloat16),
    ],
)
def test_the_dtype_of_recurrences_is_that_of_all_states_unless_it_is_named(
    shared: StateDType, own: StateDType, inputs: torch.dtype, recurrent: torch.dtype
) -> None:
    config = WorkerConfig("", mamba_cache_dtype=shared, mamba_ssm_cache_dtype=own)
    assert StateDTypes.of(config, torch.bfloat16) == StateDTypes(inputs, recurrent)


def test_a_worker_has_room_for_more_states_where_they_are_smaller(tmp_path: Path) -> None:
    tiny.make("granite4-hybrid", tmp_path)

    def reported(**changes: object) -> tuple[int, int]:
        ready = set_up(model_config(tmp_path, kv_cache_memory=1 << 20, **changes), lambda *_: None).ready
        states = group_of(ready.groups, "state")
        assert states is not None
        return states.capacity, next(line.bytes for line in ready.memory if line.what == "recurrent states")

    (count, taken), (more, as_much) = reported(), reported(mamba_ssm_cache_dtype="float16")
    assert more > count
    assert as_much / more < taken / count


def test_what_a_state_takes_in_float16_is_told_where_a_recurrence_keeps_one(tmp_path: Path) -> None:
    for name in ("granite4-hybrid", "lfm2"):
        tiny.make(name, tmp_path / name)
    recurrent = re.search(
        r"recurrent state +(\d+) KiB .*; (\d+) KiB with", describe_model(tmp_path / "granite4-hybrid", ())
    )
    assert recurrent is not None
    # 8 heads of 16 by 16 of two layers, and 192 channels of 3 inputs each in bfloat16
    assert [int(size) for size in recurrent.groups()] == [
        round(2 * (2048 * size + 192 * 3 * 2) / 1024) for size in (4, 2)
    ]
    assert "--mamba-ssm-cache-dtype" not in describe_model(tmp_path / "lfm2", ())
