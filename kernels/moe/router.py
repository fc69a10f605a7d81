"""The parameters of a router and its result."""

import ctypes
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from torch import Tensor

Score = Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]
"""The score of an expert, from its logit. ``softmax`` is over all experts. ``sqrtsoftplus`` is √log(1 + eˣ) of each
(DeepSeek-V4). ``sparsemixer`` is, for each choice, over
the remaining experts with a logit near the chosen one's (Phi-3.5-MoE, arXiv:2409.12136)."""
GroupScore = Literal["max", "top2"]
"""The score of a group: that of its best expert (DeepSeek-V2, arXiv:2405.04434), or the sum of its two best
(DeepSeek-V3, arXiv:2412.19437)."""


@dataclass(frozen=True)
class Router:
    """How many experts a token takes, which, and how their outputs are weighted.

    Raises:
        ValueError: values that fit no number of experts.
    """

    top_k: int
    score: Score = "softmax"
    renormalize: bool = True
    """The chosen scores are divided by their sum."""
    scale: float = 1.0
    """Multiplies the scores after that."""
    groups: int = 1
    """The number of groups, equal in size and contiguous; experts are chosen from the best :attr:`top_groups` of
    them."""
    top_groups: int = 1
    group_score: GroupScore = "top2"
    corrects_logits: bool = False
    """A bias is added to logits, not to scores."""
    nearness: float = 0.0
    """For ``sparsemixer``: a logit is near a choice if it is below it by at most this factor times the larger of the
    choice and the logit's own magnitude."""
    softcap: float = 0.0
    """c > 0 scores c·tanh(x/c) in place of a logit x (Grok 1)."""

    def __post_init__(self) -> None:
        if self.score not in get_args(Score):
            raise ValueError(f"router: score must be one of {', '.join(get_args(Score))}, not {self.score!r}")
        if self.group_score not in get_args(GroupScore):
            raise ValueError(
                f"router: group_score must be one of {', '.join(get_args(GroupScore))}, not {self.group_score!r}"
            )
        if self.top_k < 1 or not 1 <= self.top_groups <= self.groups:
            raise ValueError(f"router: {self.top_k} experts of {self.top_groups} of {self.groups} groups")
        if self.corrects_logits and self.groups > 1:
            raise ValueError("router: groups are compared by scores, not by corrected logits")
        if self.score == "sparsemixer" and (self.renormalize or self.groups > 1):
            raise ValueError("router: sparsemixer neither divides by sums nor looks at groups")
        if self.softcap < 0 or (self.softcap and (self.score == "sparsemixer" or self.corrects_logits)):
            raise ValueError("router: a softcap is not below 0, and not of logits that are compared or corrected")

    def check(self, experts: int, bias: Tensor | None) -> None:
        """Raises ValueError unless it can choose among this many experts, with a ``bias`` for each or None."""
        if bias is not None and self.score == "sparsemixer":
            raise ValueError("router: sparsemixer takes no bias")
        if experts % self.groups or self.top_k > experts // self.groups * self.top_groups:
            raise ValueError(
                f"router: {self.top_k} experts cannot be chosen out of {self.top_groups} of {self.groups} groups of "
                f"{experts} experts"
            )


class Routing(NamedTuple):
    """The experts of each token, the best first, and the weights of their outputs."""

    experts: Tensor
    """int32 [tokens, top_k]"""
    weights: Tensor
    """float32 [tokens, top_k]"""


class RouterStruct(ctypes.Structure):
    """``Router`` of router.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("experts", "top_k", "score", "renormalize", "groups", "top_groups", "by_two", "by_logits")
        ),
        ("scale", ctypes.c_double),
        ("nearness", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("bias", ctypes.c_void_p),
    )


def router_struct(router: Router, experts: int, bias: Tensor | None) -> RouterStruct:
    """Returns the struct that the kernels take, for this many experts and a contiguous float32 bias for each or None.

    It does not keep the tensor alive.
    """
    return RouterStruct(
        experts,
        router.top_k,
        get_args(Score).index(router.score),
        router.renormalize,
        router.groups,
        router.top_groups,
        router.group_score == "top2",
        router.corrects_logits,
        router.scale,
        router.nearness,
        router.softcap,
        None if bias is None else bias.data_ptr(),
    )
