"""What comes with the offer of a call (``POST /v1/realtime/calls``)."""

from typing import Any

import msgspec


class CallForm(msgspec.Struct):
    """Beside ``sdp``."""

    session: dict[str, Any] | None = None
    """As for a client secret, in JSON."""
