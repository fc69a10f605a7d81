"""A step as it is sent to the device: the numbers of its rows, and the changes of its plan.

:class:`..compute.async_compute.AsyncCompute` stages each step, and :class:`..device.staging.Staging` copies it to the
device at once.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from stentor.kernels.low_rank.rows import group_rows

from ..device.staging import Numbers, Shape
from ..rows.states import RowStates
from ..sampling.device_sampler import NewSamplingParams
from ..sampling.logprobs import Alternatives
from .adapter_rows import AdapterRowsOf
from .prepare_inputs import StepNumbers

_NO_SLOTS: Final = np.zeros(0, dtype=np.int64)
_NO_GROUPS: Final = np.zeros(0, dtype=np.int32)


class StagedStep(msgspec.Struct, frozen=True):
    numbers: StepNumbers
    """The rows' numbers, which the host needs to read the results."""
    shape: Shape
    """The length of each section."""
    sections: dict[str, Numbers]
    """All arrays that are copied, by name."""


def changes(
    update_at: Numbers, update_to: Numbers, entered: NewSamplingParams, targets: list[int]
) -> dict[str, Numbers]:
    """The sections of a plan's changes: block table entries, sampling parameters of new rows, prompt tokens."""
    return {
        "update_at": update_at,
        "update_to": update_to,
        "targets": np.array(targets, dtype=np.int64),
        "sampling_slots": entered.slots,
        "sampling_params": entered.params,
        "sampling_data": entered.data,
    }


def no_changes() -> dict[str, Numbers]:
    return changes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), NewSamplingParams.none(), [])


def stage(
    numbers: StepNumbers,
    changed: Mapping[str, Numbers],
    asked: Sequence[Alternatives | None],
    states: RowStates | None = None,
    adapters: AdapterRowsOf | None = None,
) -> StagedStep:
    """Stage a step.

    ``asked``: for each row that samples, the alternatives to its log-probability; None: no log-probability.
    ``states``, ``adapters``: of the rows, if they have any.
    """
    rows = numbers.sections["row_slots"]
    reads, writes = (_NO_SLOTS, _NO_SLOTS) if states is None else states.slots(rows)
    logprob_rows = [place for place, each in zip(numbers.places, asked, strict=True) if each is not None]
    sections: dict[str, Numbers] = {
        **numbers.sections,
        **changed,
        "state_reads": reads,
        "state_writes": writes,
        **_grouped(numbers, adapters),
        "logprob_rows": np.array(logprob_rows, dtype=np.int64),
    }
    shape = msgspec.structs.replace(
        numbers.shape,
        state_rows=len(writes),
        adapter_slots=0 if adapters is None else adapters.store.tables,
        updates=len(changed["update_at"]),
        logprob_rows=len(logprob_rows),
        targets=len(changed["targets"]),
        entering=len(changed["sampling_slots"]),
        sampling_data=len(changed["sampling_data"]),
    )
    return StagedStep(numbers, shape, sections)


def _grouped(numbers: StepNumbers, adapters: AdapterRowsOf | None) -> dict[str, Numbers]:
    """Tokens and draws, grouped by adapter slot."""
    if adapters is None:
        return dict.fromkeys(("adapter_tokens", "adapter_draws"), _NO_GROUPS)
    own, count = numbers.sections, adapters.store.tables
    of_rows = np.array(adapters.slots(own["row_slots"].tolist()), dtype=np.int64)
    of_draws = np.array(adapters.slots(own["draw_slots"].tolist()), dtype=np.int64)
    return {
        "adapter_tokens": group_rows(np.repeat(of_rows, np.diff(own["query_start"])), count),
        "adapter_draws": group_rows(of_draws, count),
    }
