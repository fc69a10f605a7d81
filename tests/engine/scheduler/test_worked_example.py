"""The tables of "Blocks, step by step" in docs/design/kv-cache.md are what the scheduler does."""

from pathlib import Path

import stentor
from stentor.engine.core.scheduler.kv_cache_manager import KVCacheManager
from stentor.engine.core.scheduler.prefill import find_prefix
from stentor.engine.core.sequence import Sequence
from stentor.tests.engine.fake_engine import Engine

_PAGE = Path(stentor.__file__).parent / "docs/design/kv-cache.md"
_SECTION = "## Blocks, step by step"
Cells = list[str]


def _tables() -> list[list[Cells]]:
    """The rows of the section's tables, without heads."""
    section = _PAGE.read_text().partition(f"{_SECTION}\n")[2].partition("\n## ")[0]
    found = []
    for block in section.split("\n\n"):
        lines = [line.strip("| ").split("|") for line in block.splitlines() if line.startswith("|")]
        if lines:
            found.append([[cell.strip() for cell in line] for line in lines[2:]])
    return found


def _numbers(blocks: list[int]) -> str:
    return " ".join(map(str, blocks))


def _admission(sequence: Sequence | None, kv_cache: KVCacheManager) -> Cells:
    """What ``_find_room`` adds up for the first sequence of the queue: needed, revived, tail."""
    if sequence is None:
        return ["", "", ""]
    prefix = find_prefix(sequence, kv_cache)
    needed = kv_cache.needed_behind(prefix.tables, sequence.length)
    return [str(needed), str(kv_cache.revived(prefix.tables)), _numbers([*prefix.tail]) or "-"]


def test_three_requests_share_eight_blocks_as_the_page_says() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=1, max_prefill_chunk=8)
    kv_cache = engine.scheduler._kv_cache
    first = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    names = {0: "A", 1: "B", 2: "C"}
    found: list[Cells] = []
    before: Sequence | None = None
    for step in range(1, 11):
        if step == 1:
            engine.submit(first, max_tokens=2, seeds=[1, 2])
        if step == 2:
            engine.submit(list(range(20, 46)), max_tokens=1, priority=-5)
        if step == 3:
            engine.submit([*first[:7], 0, 0, 0], max_tokens=1)
        admission = _admission(kv_cache.queue.peek(), kv_cache)
        engine.plan()
        (row,) = kv_cache.rows.running
        name = names[row.request.rid] + (f".{row.index}" if len(row.request.sequences) > 1 else "")
        pinned = [block for request in kv_cache.pinned.values() for block in request.held_tables[0]]
        state = [_numbers(row.tables[0]), str(row.promised), str(kv_cache.pool.free_count), _numbers(pinned) or "-"]
        found.append([str(step), *(["", "", ""] if row is before else admission), name, *state])
        before = row
        engine.deliver()
    assert found == _tables()[1]
    engine.drain()
    engine.check_clients()


def test_a_row_with_a_window_leaves_blocks_behind_as_the_page_says() -> None:
    engine = Engine(num_blocks=8, block_size=4, max_num_seqs=1, max_prefill_chunk=4, windows=(6,))
    kv_cache = engine.scheduler._kv_cache
    engine.submit(list(range(1, 31)), max_tokens=1)
    found: list[Cells] = []
    for step in range(1, 9):
        engine.plan()
        (row,) = kv_cache.rows.running
        state = [str(row.kept[0]), str(row.promised), str(kv_cache.pool.free_count)]
        found.append([str(step), _numbers(row.tables[0]), *state])
        engine.deliver()
    assert found == _tables()[2]
    engine.drain()
    engine.check_clients()
