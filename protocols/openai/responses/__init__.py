"""``/v1/responses`` and ``/v1/conversations``: what they take and what they send."""
