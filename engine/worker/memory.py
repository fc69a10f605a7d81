"""How much memory the KV cache gets on a host, and how an amount of memory is written."""

from pathlib import Path

GIB = 1 << 30
_SHARE = 0.25
_CEILING = 4 * GIB
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def default_kv_bytes(weights: int, memory_share: float = 1.0) -> int:
    """Bytes for KV where the operator named none: a quarter of the host's free memory.

    ``weights`` is what the model's own tensors, which are not there yet, will take of it, and ``memory_share`` the part
    of this worker among those of the host.
    """
    return int(min(int(max(available_memory() - weights, 0) * _SHARE), _CEILING) * memory_share)


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still take: the host's, or the container's where it is less."""
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    limit, used, stat = cgroup / "memory.max", cgroup / "memory.current", cgroup / "memory.stat"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        # file pages that nobody maps count as used, but are given back when memory is asked for
        cached = _field(stat.read_text(), "inactive_file") if stat.exists() else 0
        available = min(available, int(text) - int(used.read_text()) + cached)
    return max(available, 0)


def _field(text: str, name: str) -> int:
    """A number of a file of ``name number`` lines; 0 where it is not there."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


def resident_bytes() -> int:
    """Memory of this process that no other shares, plus its share of the rest (PSS)."""
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
