"""Work of the store under which engines were given up.

It is continued after other work and one piece at a time, so that only what ends an engine reaches MOST_LOSSES. The turn
is an ``anyio.Lock`` that background responses and lines of batches share.
"""

from typing import Final

MOST_LOSSES: Final = 3
"""Engines that may be given up under the same work in a row; then it fails."""
NOT_TRIED_AGAIN: Final = "Each engine that ran this was given up, as if it ended them; it is not tried again."
