"""What draft tokens have brought lately, as a log line now and then."""

import logging
from typing import Final

from stentor.protocols.ipc.actors import Stats

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0
"""Between two lines, at least."""


class DraftLog:
    """A line about every verification of drafts since the line before, at most one in ten seconds.

    A row that is verified gains a token of its own besides the drafts that were right: together they are its tokens a
    step.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._verified = self._drafts = self._right = 0
        """What lines have told."""

    def note(self, stats: Stats, now: float) -> None:
        verified = stats.num_drafts - self._verified
        if not verified or now - self._since < _SECONDS:
            return
        drafts, right = stats.num_draft_tokens - self._drafts, stats.num_accepted_tokens - self._right
        logger.info(
            "speculation: %.2f tokens a step of sequences with drafts; %d of %d drafts were right",
            1 + right / verified,
            right,
            drafts,
        )
        self._since = now
        self._verified, self._drafts = stats.num_drafts, stats.num_draft_tokens
        self._right = stats.num_accepted_tokens
