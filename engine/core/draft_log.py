"""Logs the acceptance of draft tokens now and then."""

import logging
from typing import Final

from stentor.protocols.ipc.actors import Stats

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0
"""Shortest time between two lines."""


class DraftLog:
    """Logs the drafts verified since the last line, at most once in ten seconds.

    Besides the accepted drafts a verified row gains one token; the line gives both as tokens a step.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._verified = self._drafts = self._right = 0
        """Counts up to the last line."""

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
