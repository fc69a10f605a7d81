"""A model's forward pass on a CPU with one native call per step: all threads run one program of instructions."""

from ..linear_packed import ActivationFormat, activation_format_of
from .forward import Forward, Step, choose
from .instruction import NONE, CachedHeads, Rotation, Scores
from .program import Program
from .trace import Traced, TracedTokens

__all__ = [
    "NONE",
    "ActivationFormat",
    "CachedHeads",
    "Forward",
    "Program",
    "Rotation",
    "Scores",
    "Step",
    "Traced",
    "TracedTokens",
    "activation_format_of",
    "choose",
]
