"""Staging: sections where graphs look for them, two buffers in turn, and what does not fit."""

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from stentor.engine.worker.device.pinned import PinnedPool, StepMemory
from stentor.engine.worker.device.staging import SECTIONS, Inputs, Numbers, Shape, Staging, staged_bytes, view_inputs
from stentor.tests.engine.worker.fake_device import FakeDevice, OrderError

SHAPE = Shape(
    rows=3,
    tokens=7,
    draws=2,
    updates=4,
    logprob_rows=1,
    targets=5,
    entering=2,
    sampling_data=6,
    state_rows=3,
    adapter_slots=4,
)


def _memory() -> StepMemory:
    return PinnedPool(FakeDevice()).step()


def _lengths(shape: Shape) -> dict[str, int]:
    empty = view_inputs(torch.zeros(staged_bytes(shape), dtype=torch.uint8), shape)
    return {name: len(getattr(empty, name)) for name in SECTIONS}


def _sections(shape: Shape, offset: int = 0) -> dict[str, Numbers]:
    empty = view_inputs(torch.zeros(staged_bytes(shape), dtype=torch.uint8), shape)
    sections: dict[str, Numbers] = {}
    for number, name in enumerate(SECTIONS):
        tensor: torch.Tensor = getattr(empty, name)
        sections[name] = (np.arange(len(tensor)) + 1000 * number + offset).astype(tensor.numpy().dtype)
    return sections


def _assert_holds(inputs: Inputs, sections: dict[str, Any]) -> None:
    for name in SECTIONS:
        assert getattr(inputs, name).tolist() == sections[name].tolist(), name


def test_every_section_arrives_as_it_was_sent() -> None:
    staging = Staging(FakeDevice(), staged_bytes(SHAPE))
    sections = _sections(SHAPE)
    inputs = staging.send(SHAPE, sections, _memory())
    _assert_holds(inputs, sections)
    assert _lengths(SHAPE) == {
        **dict.fromkeys(("tokens", "positions", "kv_slots"), 7),
        **dict.fromkeys(("row_slots", "seq_lens", "state_reads", "state_writes"), 3),
        **dict.fromkeys(("logits_indices", "draw_slots"), 2),
        **dict.fromkeys(("update_at", "update_to"), 4),
        "adapter_tokens": 2 * 7 + 4 + 1,
        "adapter_draws": 2 * 2 + 4 + 1,
        "query_start": 4,
        "logprob_rows": 1,
        "targets": 5,
        "sampling_slots": 2,
        "sampling_params": 32,
        "sampling_data": 6,
    }


def test_what_only_some_steps_bring_moves_nothing_that_a_graph_reads() -> None:
    buffer = torch.zeros(1 << 14, dtype=torch.uint8)
    shape = Shape(rows=4, tokens=4, draws=4)
    plain = view_inputs(buffer, shape)
    more = view_inputs(buffer, replace(shape, updates=4, logprob_rows=3, targets=9, entering=1, sampling_data=8))
    for name in SECTIONS[: SECTIONS.index("update_at")]:
        assert getattr(plain, name).data_ptr() == getattr(more, name).data_ptr(), name


def test_every_section_begins_where_vectors_may_be_loaded() -> None:
    buffer = torch.zeros(1 << 14, dtype=torch.uint8)
    inputs = view_inputs(buffer, SHAPE)
    for name in SECTIONS:
        assert (getattr(inputs, name).data_ptr() - buffer.data_ptr()) % 16 == 0, name


def test_a_step_is_not_packed_over_one_that_may_still_be_copied() -> None:
    device = FakeDevice()
    staging = Staging(device, staged_bytes(SHAPE))
    for number in range(6):
        staging.send(SHAPE, _sections(SHAPE, number), _memory())
        # the copy before last has been waited for, the last has not
        assert device.done == max(0, number - 1)
    device.settle()


def test_packing_without_waiting_would_be_caught() -> None:
    device = FakeDevice()
    staging = Staging(device, staged_bytes(SHAPE))
    staging.send(SHAPE, _sections(SHAPE), _memory())
    staging._sent = [None, None]
    staging._turn = 0
    staging.send(SHAPE, _sections(SHAPE, 5), _memory())
    with pytest.raises(OrderError):
        device.settle()


def test_a_step_that_does_not_fit_has_buffers_of_its_own() -> None:
    device = FakeDevice()
    small = Shape(rows=1, tokens=1, draws=1)
    staging = Staging(device, staged_bytes(small))
    fixed = staging.fixed_inputs(small)
    staging.send(small, _sections(small), _memory())
    assert not staging.fits(SHAPE)
    sections = _sections(SHAPE)
    pool = PinnedPool(device)
    memory = pool.step()
    inputs = staging.send(SHAPE, sections, memory)
    device.settle()
    _assert_holds(inputs, sections)
    _assert_holds(fixed, _sections(small))
    memory.release()
    made = device.pinned_made
    staging.send(SHAPE, sections, pool.step())
    assert device.pinned_made == made, "the host's buffer is used again"


def test_the_fixed_inputs_are_the_same_tensors_each_time() -> None:
    staging = Staging(FakeDevice(), 1 << 14)
    fixed = staging.fixed_inputs(SHAPE)
    inputs = staging.send(SHAPE, _sections(SHAPE), _memory())
    assert inputs is fixed is staging.fixed_inputs(SHAPE)
    _assert_holds(fixed, _sections(SHAPE))
