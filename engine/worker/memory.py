"""The default size of the KV cache on a host, and the formatting of amounts of memory."""

from pathlib import Path

GIB = 1 << 30
_SHARE = 0.25
_CEILING = 4 * GIB
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CGROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Versions 2 and 1: files of the limit, of what is used and of its parts, and the part that is unmapped file pages."""


def default_kv_bytes(weights: int, memory_share: float = 1.0) -> int:
    """Default bytes of the KV cache: a quarter of the host's free memory, at most :data:`_CEILING`.

    ``weights``: bytes of this model's weights, which are not loaded yet. ``memory_share``: this worker's part of the
    host.
    """
    return int(min(int(max(available_memory() - weights, 0) * _SHARE), _CEILING) * memory_share)


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still take: the host's, or the container's (cgroup v2 or v1) if less."""
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    for *files, pages in _CGROUPS:
        limit, used, stat = (cgroup / file for file in files)
        if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
            # unmapped file pages count as used, but are freed on demand
            cached = _field(stat.read_text(), pages) if stat.exists() else 0
            available = min(available, int(text) - int(used.read_text()) + cached)
    return max(available, 0)


def _field(text: str, name: str) -> int:
    """A field of a file of ``name number`` lines; 0 if missing."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


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
