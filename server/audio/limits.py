"""What decoding one sound, and all of them, may take."""

import msgspec


class AudioLimits(msgspec.Struct, frozen=True):
    max_bytes: int = 64 << 20
    """Of a sound as it comes in."""
    max_seconds: float = 4 * 3600.0
    """Of a sound once decoded: 32 000 bytes each."""
    max_held_seconds: float = 12 * 3600.0
    """Of all decoded sounds that requests hold, beyond which another is refused: 1.4 GB."""
    timeout: float = 120.0
    """Seconds that one sound may take to decode, once it has its turn."""
    processes: int = 3
    """That decode at the same time, each started when first needed. A large sound leaves one of them to others."""
    max_waiting: int = 256
    """Sounds that wait for a process."""
