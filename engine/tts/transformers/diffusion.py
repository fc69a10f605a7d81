"""The solver of VibeVoice's diffusion: DPM-Solver++ of the second order (Lu et al., 2022, arXiv:2211.01095).

Its model predicts velocities over a cosine schedule. Samples are those of diffusers' ``DPMSolverMultistepScheduler``.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ..backend import CannotSpeak

_STEPS: Final = 1000
"""Of training."""
_LARGEST_BETA: Final = 0.999
KNOWN: Final[Mapping[str, object]] = {
    "algorithm_type": "dpmsolver++",
    "beta_schedule": "squaredcos_cap_v2",
    "euler_at_final": False,
    "final_sigmas_type": "zero",
    "lower_order_final": True,
    "num_train_timesteps": _STEPS,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": False,
    "solver_order": 2,
    "solver_type": "midpoint",
    "thresholding": False,
    "timestep_spacing": "linspace",
    "use_karras_sigmas": False,
}
"""Fields of diffusers' configuration, with the values that this solver has."""
_UNUSED: Final = frozenset({"beta_start", "beta_end", "_class_name", "_diffusers_version"})
"""Fields that a cosine schedule does not have, and names."""


class Stepped(NamedTuple):
    """As diffusers answers."""

    prev_sample: Any


class DpmSolver:
    """Integrates one sample after the other."""

    def __init__(self) -> None:
        def left(part: float) -> float:
            """Of the signal's power, at a part of the time."""
            return math.cos((part + 0.008) / 1.008 * math.pi / 2) ** 2

        betas = [min(1 - left((step + 1) / _STEPS) / left(step / _STEPS), _LARGEST_BETA) for step in range(_STEPS)]
        kept = torch.cumprod(1.0 - torch.tensor(betas, dtype=torch.float32), dim=0)
        self._all_sigmas = (((1 - kept) / kept) ** 0.5).numpy()
        self.timesteps: Any = torch.empty(0, dtype=torch.int64)
        self._sigmas: Any = torch.empty(0)
        self._at = 0
        self._before: Any = None
        """The clean sample that the step before predicted."""

    def set_timesteps(self, num_inference_steps: int) -> None:
        """Begin a sample."""
        steps = np.linspace(0, _STEPS - 1, num_inference_steps + 1).round()[::-1][:-1].copy().astype(np.int64)
        sigmas = np.interp(steps, np.arange(_STEPS), self._all_sigmas)
        self.timesteps = torch.from_numpy(steps)
        self._sigmas = torch.from_numpy(np.concatenate([sigmas, [0.0]]).astype(np.float32))
        self._at = 0
        self._before = None

    def step(self, model_output: Any, timestep: Any, sample: Any) -> Stepped:
        """The sample at the next time. Steps come in their order, so ``timestep`` tells nothing."""
        here, there = _signal(self._sigmas[self._at]), _signal(self._sigmas[self._at + 1])
        clean = here.alpha * sample - here.sigma * model_output
        width = there.log_ratio - here.log_ratio
        scale = there.alpha * (torch.exp(-width) - 1.0)
        moved = (there.sigma / here.sigma) * sample - scale * clean
        last = self._at == len(self.timesteps) - 1
        if self._before is not None and not last:
            ratio = (here.log_ratio - _signal(self._sigmas[self._at - 1]).log_ratio) / width
            moved = moved - 0.5 * scale * ((1.0 / ratio) * (clean - self._before))
        self._before = clean
        self._at += 1
        return Stepped(moved)


class _Signal(NamedTuple):
    alpha: Any
    sigma: Any
    log_ratio: Any


def _signal(sigma: Any) -> _Signal:
    alpha = 1 / ((sigma**2 + 1) ** 0.5)
    return _Signal(alpha, sigma * alpha, torch.log(alpha) - torch.log(sigma * alpha))


def check_solver(name: str, config: Mapping[str, object]) -> None:
    """Raises :class:`CannotSpeak` if a generation config asks for another solver."""
    if name != "DPMSolverMultistepScheduler":
        raise CannotSpeak(
            f"noise_scheduler_class of generation_config.json is {name}: expected DPMSolverMultistepScheduler"
        )
    for field, value in config.items():
        if field not in _UNUSED and (field not in KNOWN or KNOWN[field] != value):
            raise CannotSpeak(
                f"noise_scheduler_config of generation_config.json has {field} = {value!r}: expected "
                f"{KNOWN.get(field, 'no such field')!r}"
            )
