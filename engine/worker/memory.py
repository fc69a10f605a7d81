"""The default size of the KV cache on a host, and the formatting of amounts of memory."""

from pathlib import Path

from ..sharing.cgroups import memory_groups

GIB = 1 << 30
_SHARE = 0.25
_CEILING = 4 * GIB
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def default_kv_bytes(weights: int, memory_share: float = 1.0) -> int:
    """Default bytes of the KV cache: a quarter of the host's free memory, at most :data:`_CEILING`.

    ``weights``: bytes of this model's weights, which are not loaded yet. ``memory_share``: this worker's part of the
    host.
    """
    return int(min(int(max(available_memory() - weights, 0) * _SHARE), _CEILING) * memory_share)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the host's, or its container's or systemd unit's if less."""
    available = next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    return max(0, min([available, *(each.limit - each.used + each.reclaimable for each in memory_groups(root))]))


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory of this machine, or of its container or systemd unit where that is less."""
    total = next(line for line in (root / "proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return min([int(total.split()[1]) * 1024, *(group.limit for group in memory_groups(root))])


def resident_bytes() -> int:
    """Proportional set size (PSS) of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def format_bytes(count: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
