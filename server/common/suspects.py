"""Stored work that may have crashed an engine: background responses and lines of batches.

It is continued after other work and one piece at a time, under an ``anyio.Lock`` that both kinds share, so that only
work that crashes engines itself reaches MOST_LOSSES.
"""

from typing import Final

MOST_LOSSES: Final = 3
"""Engines that may be given up under the same work in a row; then it fails."""
NOT_TRIED_AGAIN: Final = "Each engine that ran this was given up, as if it ended them; it is not tried again."
