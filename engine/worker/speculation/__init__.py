"""Speculative decoding: proposers, the drafts in a step, and their verification."""

from .draft_model import DraftModel, PlainPass, ProposingModel
from .head_pass import AnyHeadPass, head_pass_of
from .ngram import NgramProposer
from .proposer import Proposer
from .row_drafts import Drafting
from .suffix import SuffixProposer
from .verification import verify

__all__ = [
    "AnyHeadPass",
    "DraftModel",
    "Drafting",
    "NgramProposer",
    "PlainPass",
    "Proposer",
    "ProposingModel",
    "SuffixProposer",
    "head_pass_of",
    "verify",
]
