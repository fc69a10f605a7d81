"""From typed deltas to bytes, one file a protocol. No I/O here."""
