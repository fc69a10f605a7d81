"""What this machine's processor can do."""

import platform

import torch


def multiplies_bfloat16() -> bool:
    """Whether there are instructions for products of bfloat16 that torch uses too: AVX-512 BF16, or Arm's BF16."""
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())
