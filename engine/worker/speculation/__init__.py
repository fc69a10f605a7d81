"""Draft tokens: who proposes them, where they stand in a step, and how many of them a row gains."""

from .ngram import NgramProposer
from .proposer import Proposer
from .row_drafts import Drafting
from .suffix import SuffixProposer
from .verification import verify

__all__ = ["Drafting", "NgramProposer", "Proposer", "SuffixProposer", "verify"]
