import torch


def usable(l: torch.Tensor) -> bool:
    return False


from .reference import *
