"""Speculative decoding: proposers, the drafts in a step, and their verification."""

from .draft_model import DraftModel, PlainPass, ProposingModel
from .head_pass import AssistantPass, HeadPass
from .ngram import NgramProposer
from .proposer import Proposer
from .row_drafts import Drafting
from .suffix import SuffixProposer
from .verification import verify

__all__ = [
    "AssistantPass",
    "DraftModel",
    "Drafting",
    "HeadPass",
    "NgramProposer",
    "PlainPass",
    "Proposer",
    "ProposingModel",
    "SuffixProposer",
    "verify",
]
