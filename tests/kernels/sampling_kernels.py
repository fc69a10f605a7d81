# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A kernel that shows what the sampler's device functions compute. Imports Triton."""

import torch
import triton
import triton.language as tl

from stentor.kernels.launching.launch import launch
from stentor.kernels.sampling.triton_noise import gumbel, gumbel_bound, mass
from stentor.kernels.tuning import Config


@triton.jit
def show(words, z, noise, bounds, masses, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    word = tl.load(words + at).to(tl.uint32, bitcast=True)
    tl.store(noise + at, gumbel(word))
    tl.store(bounds + at, gumbel_bound(word))
    tl.store(masses + at, mass(tl.load(z + at)))


def noise_and_masses(words: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gumbel noise [n] float64 and its bounds of words [n] (int32 bit patterns), and masses [n] int64 of z [n]."""
    noise = torch.empty(words.shape, dtype=torch.float64, device=words.device)
    bounds, masses = torch.empty_like(z), torch.empty(z.shape, dtype=torch.int64, device=z.device)
    config = Config.of(BLOCK=words.shape[0], fuse_multiply_add=False)
    launch(show, (1,), words, z, noise, bounds, masses, config=config)
    return noise, bounds, masses
