"""A worker without a model: it keeps rows and KV as a real one does, and checks every plan it is sent.

What it draws is defined in :mod:`.fake_model`. Of the drafts that a row may have it accepts some, by a hash of the row
and its length: the tokens are those that the model defines, and only how many come in a step differs.
"""

from collections.abc import Callable, Sequence

import msgspec

from stentor.engine.client.media import Media
from stentor.engine.worker.rows.rows import with_forks
from stentor.protocols.ipc.cache_groups import FULL, NO_HOST, CacheGroup, HostSizes, group_of, windows_of
from stentor.protocols.ipc.inputs import ArenaRef, StreamShape
from stentor.protocols.ipc.steps import (
    Masks,
    PromptLogprobs,
    RowAlignment,
    RowDrafts,
    RowPooled,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from stentor.tests.engine.fake_model import (
    alignment_of,
    hashed,
    media_bytes,
    next_token,
    pooled_of,
    prefix_of,
    token_logprobs,
)
from stentor.tests.engine.fake_rows import FakeStates, Row


def takes_no_time(plan: StepPlan) -> float:
    return 0.0


def _nothing(ref: ArenaRef) -> memoryview:
    raise AssertionError(f"{ref} is read, and no request brings anything")


def _none(name: str) -> list[Media]:
    return []


class FakeWorker:
    """Applies plans in order; raises AssertionError on one that a real worker could not run rightly."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        groups: Sequence[CacheGroup] = (FULL,),
        is_pooling: bool = False,
        max_encodings: int = 1,
        stream: StreamShape | None = None,
        max_drafts: int = 0,
        host: HostSizes = NO_HOST,
        read: Callable[[ArenaRef], memoryview] = _nothing,
        media: Callable[[str], list[Media]] = _none,
    ) -> None:
        """``read`` reads the arena, and ``media`` are those in the prompt of a request of this name."""
        self.read, self.media = read, media
        self.max_drafts = max_drafts
        self.stream = stream
        self.windows = windows_of(groups)
        """Of each group of layers, the tokens that are seen; 0: all."""
        self.is_pooling = is_pooling
        self.sees_all = is_pooling and not any(group.is_paged for group in groups)
        self.cross = group_of(groups, "cross")
        self.max_encodings = max_encodings
        states = group_of(groups, "state")
        self.states = FakeStates(0 if states is None else states.capacity, host.states)
        self.encoded: dict[int, bytes] = {}
        """Media by encoder slot."""
        self.begun: dict[int, tuple[bytes, int]] = {}
        """Media that have been encoded in part, with the number of slices."""
        self.media_room = 0
        """The room in the encoder cache that results report."""
        self.seconds_of: Callable[[StepPlan], float] = takes_no_time
        self.completed: list[int] = []
        """Slots that slices of the step have completed."""
        self.num_blocks, self.host = num_blocks, host
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.rows: dict[int, Row] = {}
        self.kv: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self.heard: list[RowAlignment] = []
        """Of the step that runs."""
        self.pooled: list[RowPooled] = []
        """The same."""
        self.last_step = -1
        self.computed_tokens = 0
        self.accepted_tokens = 0
        """Drafts that rows have gained."""
        self.held: StepPlan | None = None
        """A step whose forward has run and whose masks have not come."""

    def run(self, plan: StepPlan) -> StepResult | None:
        """The result; None where the step waits for its masks."""
        plan = with_forks(plan)
        assert self.held is None, "a step came before the masks of the one before"
        pieces = self._forward(plan)
        if plan.masked:
            self.held, self._pieces = plan, pieces
            return None
        return self._draw(plan, pieces, {})

    def mask(self, masks: Masks) -> StepResult:
        plan, self.held = self.held, None
        assert plan is not None, "masks came that nobody waits for"
        assert (masks.epoch, masks.step) == (plan.epoch, plan.step), "masks of another step"
        asked = set(plan.masked)
        assert {row.slot for row in masks.rows} <= asked, "masks of rows that are not masked"
        slots = [row.slot for row in masks.rows]
        together = [slot for slot, before in zip(slots, [-1, *slots], strict=False) if slot != before]
        assert len(together) == len(set(slots)), "the masks of a row do not stand together"
        sets = [{token for token in range(8 * len(bits)) if bits[token >> 3] >> (token & 7) & 1} for bits in masks.bits]
        assert all(sets), "a mask that allows nothing"
        allowed: dict[int, list[set[int] | None]] = {slot: [] for slot in slots}
        for row in masks.rows:
            allowed[row.slot].append(sets[row.bits] if row.bits >= 0 else set(row.ids) or None)
        return self._draw(plan, self._pieces, {slot: allowed.get(slot, [None]) for slot in plan.masked})

    def _forward(self, plan: StepPlan) -> list[PromptLogprobs]:
        assert plan.step > self.last_step, "steps must be sent in order"
        self.last_step = plan.step
        assert len(set(plan.freed)) == len(plan.freed), "a slot is freed twice"
        for slot in plan.freed:
            assert slot in self.rows, f"slot {slot} is freed but empty"
            del self.rows[slot]
        for new in plan.new:
            assert 0 <= new.slot < self.max_num_seqs
            assert new.slot not in self.rows, f"slot {new.slot} is taken"
            assert 0 < new.prompt_len <= len(new.tokens)
            assert not new.masked or not new.params.min_tokens, "the engine sees to min_tokens where there are masks"
            self.rows[new.slot] = Row(
                list(new.tokens),
                new.prompt_len,
                new.params,
                new.seed,
                self._by_group(new.blocks),
                new.masked,
                new.spans,
                self.media(new.request) if self.cross is not None and not self.cross.window else [],
                probe=new.probe,
                pooling=new.pooling,
                state=new.state,
            )
        plan = msgspec.structs.replace(plan, rows=[self._from_its_end(step) for step in plan.rows])
        self._copy(plan)
        self.states.copy(plan.state_copies)
        self._encode(plan)
        self._feed(plan)
        assert plan.rows or plan.encode, "an empty step"
        work = sum(step.count + step.num_drafts for step in plan.rows)
        assert work <= self.max_num_batched_tokens, "the step is over its budget"
        assert len({step.slot for step in plan.rows}) == len(plan.rows), "a row appears twice"
        awaiting = {slot for slot, row in self.rows.items() if any(span.encoder_slot >= 0 for span in row.spans)}
        worked = {step.slot for step in plan.rows}
        assert {new.slot for new in plan.new} <= worked | awaiting, "a new row has no work"
        pieces: list[PromptLogprobs] = []
        self.heard, self.pooled = [], []
        for step in plan.rows:
            for table, gained in zip(self.rows[step.slot].tables, self._by_group(step.new_blocks), strict=True):
                table.extend(gained)
        self._check_writers(plan)
        self.states.advance([(step, self.rows[step.slot]) for step in plan.rows])
        assert set(plan.masked) <= {step.slot for step in plan.rows}, "a row is masked that is not in the step"
        for step in plan.rows:
            row = self.rows[step.slot]
            end = step.start + step.count
            assert step.count > 0
            assert end <= len(row.tokens), f"slot {step.slot} computes positions it has no tokens for"
            needed = -(-(end + step.num_drafts) // self.block_size)
            # drafts that were not accepted leave a row with blocks that it comes to later
            spared = -(-2 * self.max_drafts // self.block_size)
            (length,) = {len(table) for table in row.tables}
            assert needed <= length <= needed + spared, f"slot {step.slot} has {length} blocks for {needed}"
            assert step.start == row.computed or row.computed is None, f"slot {step.slot} skips or repeats positions"
            for group, window in enumerate(self.windows):
                for position in range(max(0, step.start - window + 1) if window else 0, step.start):
                    assert self.kv.get(self._place(row, group, position)) == (group, *self._entry(row, position)), (
                        f"slot {step.slot} reads KV of group {group} at position {position} that is not its own"
                    )
                for position in range(step.start, end):
                    self.kv[self._place(row, group, position)] = (group, *self._entry(row, position))
                for position in range(end, end + step.num_drafts):
                    self.kv[self._place(row, group, position)] = (group, -1, position, 0)
            self._look(step, row)
            self._hear(step, row)
            self._pool(step, row)
            row.computed = end
            self.computed_tokens += step.count
            if row.params.prompt_logprobs is not None and step.start < row.prompt_len:
                positions = range(step.start + 1, min(end + 1, row.prompt_len))
                if positions:
                    piece = [token_logprobs(row.tokens, position) for position in positions]
                    pieces.append(PromptLogprobs(step.slot, positions.start, piece))
            masked = step.slot in plan.masked
            assert not masked or (step.sample and row.masked), f"slot {step.slot} is masked and should not be"
            assert not step.sample or end == len(row.tokens), f"slot {step.slot} draws a token before its last position"
        return pieces

    def _copy(self, plan: StepPlan) -> None:
        """Rows that enter, and nobody else, go on within copies of blocks; what they do not need goes to the host."""
        targets = [target for _, target in plan.copies if target >= 0]
        assert len(set(targets)) == len(targets), "two blocks are copied to one place"
        entering = {block for new in plan.new for table in self.rows[new.slot].tables for block in table}
        assert set(targets) <= entering, "a copy goes to no row that enters"
        for source, target in plan.copies:
            assert -self.host.blocks <= source < self.num_blocks
            assert -self.host.blocks <= target < self.num_blocks
            assert source >= 0 or target >= 0, "a copy within host memory"
            assert source >= 0 or (source, 0) in self.kv, (
                f"place {source} of the host is read and has never been written"
            )
            for offset in range(self.block_size):
                self.kv.pop((target, offset), None)
                if (entry := self.kv.get((source, offset))) is not None:
                    self.kv[target, offset] = entry

    def _from_its_end(self, step: RowStep) -> RowStep:
        """The step where the row really is: further on than planned, if the engine did not know what it had gained."""
        row = self.rows[step.slot]
        if row.computed is None or step.start == row.computed:
            return step
        assert step.sample, f"slot {step.slot} skips or repeats positions"
        assert step.count == 1, f"slot {step.slot} skips or repeats positions"
        assert step.start == row.computed - row.accepted, f"slot {step.slot} starts at none of its lengths"
        return msgspec.structs.replace(step, start=row.computed)

    def _draw(
        self, plan: StepPlan, pieces: list[PromptLogprobs], allowed: dict[int, list[set[int] | None]]
    ) -> StepResult:
        """``allowed``: of each masked row, what it may draw at each position."""
        tokens: list[int] = []
        counts: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        drafts: list[RowDrafts] = []
        drafted: list[int] = []
        for step in plan.rows:
            row = self.rows[step.slot]
            if not step.sample:
                continue
            drawn = self._draw_row(step, row, allowed.get(step.slot))
            tokens.extend(drawn)
            counts.append(len(drawn))
            drafted.append(step.num_drafts)
            first = len(row.tokens) - len(drawn)
            wanted = row.params.logprobs is not None
            logprobs += [token_logprobs(row.tokens, at) if wanted else None for at in range(first, len(row.tokens))]
            row.drafts = self._propose(row) if row.masked else []
            if row.drafts:
                drafts.append(RowDrafts(step.slot, row.drafts))
        return StepResult(
            plan.epoch,
            plan.step,
            tokens,
            logprobs if any(entry is not None for entry in logprobs) else None,
            pieces,
            self.seconds_of(plan),
            self.heard,
            self.pooled,
            counts if any(count > 1 for count in counts) else None,
            drafts,
            drafted=drafted if any(count > 1 for count in counts) else None,
            encoded=self.completed,
            media_room=self.media_room,
        )

    def _draw_row(self, step: RowStep, row: Row, masks: list[set[int] | None] | None) -> list[int]:
        """The tokens that one row gains, with the KV of those that were drafts."""
        assert row.computed is not None
        most = step.num_drafts
        if masks is not None:
            assert len(masks) <= 1 + min(most, len(row.drafts)), f"slot {step.slot} has a mask for no draft"
            most = len(masks) - 1
        # behind masks a draft is mostly refused by itself
        accepted = most if masks is not None else hashed("accept", row.tokens, row.seed) % (most + 1)
        drawn: list[int] = []
        while True:
            allowed = None if masks is None else masks[len(drawn)]
            pcm = self._pcm(row, len(row.tokens) - 1)
            token = next_token(row.tokens, row.prompt_len, row.params, row.seed, allowed, pcm)
            row.tokens.append(token)
            drawn.append(token)
            if len(drawn) > accepted or (masks is not None and token != row.drafts[len(drawn) - 1]):
                break
            for group in range(len(self.windows)):
                entry = (group, *self._entry(row, row.computed))
                self.kv[self._place(row, group, row.computed)] = entry
            row.computed += 1
        row.accepted = len(drawn) - 1
        self.states.draw(row)
        self.accepted_tokens += row.accepted
        limit = row.prompt_len + row.params.max_tokens
        assert len(row.tokens) <= limit, f"slot {step.slot} draws more tokens than it may have"
        return drawn

    def _propose(self, row: Row) -> list[int]:
        """Up to ``max_drafts`` tokens, of which a mask may allow some."""
        drafts: list[int] = []
        while len(drafts) < hashed("propose", row.tokens, row.seed) % (self.max_drafts + 1):
            tokens = row.tokens + drafts
            drafts.append(next_token(tokens, row.prompt_len, row.params, row.seed))
        return drafts

    def _encodes_a_prompt(self, plan: StepPlan) -> bool:
        """Whether all that the step encodes is in one prompt, which it computes as a whole."""
        if self.cross is None or not self.cross.whole_prompts:
            return False
        slots = {job.encoder_slot for job in plan.encode}
        return any(slots <= {span.encoder_slot for span in new.spans} for new in plan.new)

    def _encode(self, plan: StepPlan) -> None:
        before = {slot: self._unread(row) for slot, row in self.rows.items() if row.computed is not None}
        assert len(plan.encode) <= self.max_encodings or self._encodes_a_prompt(plan), (
            "more media than a step may encode"
        )
        self.completed = []
        for slot in plan.forgotten:
            self.encoded.pop(slot, None)
            self.begun.pop(slot, None)
        slots = [job.encoder_slot for job in plan.encode]
        assert len(set(slots)) == len(slots), "a slot is filled twice"
        for job in plan.encode:
            assert self.cross is not None
            assert 0 <= job.encoder_slot < self.cross.capacity // max(1, self.cross.window)
            data = bytes(self.read(job.data))
            assert data not in self.encoded.values() or self.encoded.get(job.encoder_slot) == data, "encoded twice"
            if job.sliced and self.encoded.get(job.encoder_slot) == data:
                continue
            before_it, slices = self.begun.pop(job.encoder_slot, (data, 0))
            assert before_it == data, "slices of two media are one"
            if job.sliced and slices < 1 + len(data) % 3:
                self.begun[job.encoder_slot] = data, slices + 1
                continue
            if job.sliced:
                self.completed.append(job.encoder_slot)
            self.encoded[job.encoder_slot] = data
        for slot, media in before.items():
            now = self._unread(self.rows[slot])
            # what is to be encoded in a later step has no contents yet
            assert all(old is None or old == new for old, new in zip(media, now, strict=True)), (
                f"what slot {slot} hears was overwritten"
            )

    def _unread(self, row: Row) -> list[bytes | None]:
        computed = row.computed or 0
        # the media of a span are let go of once all of it is computed
        return [
            self.encoded.get(span.encoder_slot)
            for span in row.spans
            if span.start < 0 or span.start < computed < self._read_until(row, span.start, span.length)
        ]

    def _read_until(self, row: Row, start: int, length: int) -> int:
        """The position behind the last one that reads a medium."""
        end = start + length
        if self.cross is None or not self.cross.lasting:
            return end
        starts = {one.start for one in row.media}
        while end in starts:
            end += 1
        return min((each for each in starts if each > end), default=1 << 60)

    def _look(self, step: RowStep, row: Row) -> None:
        """Media that the step's positions read lie in their slots, and are whole where they are to be."""
        if self.cross is not None and self.cross.whole:
            end = step.start + step.count
            uncut = [
                (one.start + first, one.start + last)
                for one in row.media
                if not one.causal
                for first, last in one.runs or ((0, one.length),)
            ]
            for first, last in [(0, row.prompt_len)] if self.cross.whole_prompts else uncut:
                assert not first < end < last, f"slot {step.slot} computes a part of what is whole"
                assert not first < step.start < last, f"slot {step.slot} begins within what is whole"
        for span in row.spans:
            read_until = self._read_until(row, span.start, span.length)
            if span.start < step.start + step.count and (span.start < 0 or read_until > step.start):
                found = self.encoded.get(span.encoder_slot)
                assert found is not None, f"slot {step.slot} reads media that nobody has encoded"
                expected = next((one.data for one in row.media if one.start == span.start), found)
                assert found == expected, f"slot {step.slot} reads media of others"
        for one in row.media:
            end = self._read_until(row, one.start, one.length)
            if max(one.start, step.start) < min(end, step.start + step.count):
                assert any(span.start == one.start for span in row.spans), f"slot {step.slot} lacks media that it reads"

    def _hear(self, step: RowStep, row: Row) -> None:
        asked, end = row.probe, step.start + step.count
        if asked is None or step.start >= row.prompt_len:
            return
        found = alignment_of(row.tokens[: row.prompt_len], self._pcm(row), asked)
        if asked.align is not None:
            assert (step.start, step.count) == (0, len(row.tokens)), f"slot {step.slot} aligns and was cut into chunks"
            self.heard = [*self.heard, RowAlignment(step.slot, found)]
        elif asked.no_speech is not None and step.start <= asked.no_speech[0] < end:
            self.heard = [*self.heard, RowAlignment(step.slot, found)]

    def _pool(self, step: RowStep, row: Row) -> None:
        assert (row.pooling is None) == (not self.is_pooling) or row.computed, f"slot {step.slot} is asked for nothing"
        if row.pooling is None:
            return
        end = step.start + step.count
        if self.sees_all:
            assert (step.start, end) == (0, row.prompt_len), f"slot {step.slot} was cut into chunks"
        if not row.pooling.last:
            assert row.computed is not None or step.start == 0, f"slot {step.slot} skips what it is to look at"
        if end == row.prompt_len:
            made = pooled_of(row.tokens[: row.prompt_len], row.pooling)
            self.pooled = [*self.pooled, RowPooled(step.slot, made)]
            row.pooling = None

    def _feed(self, plan: StepPlan) -> None:
        slots = [given.slot for given in plan.inputs]
        assert len(set(slots)) == len(slots), "a row is given input twice in a step"
        assert set(slots) <= {step.slot for step in plan.rows}, "input comes for a row that does not run"
        for given in plan.inputs:
            row = self.rows[given.slot]
            assert not row.ended, f"slot {given.slot} is given input after its end"
            row.heard += b"".join(map(self.read, given.pieces))
            row.ended = given.ended
        if self.stream is not None:
            for step in plan.rows:
                row = self.rows[step.slot]
                needed = 2 * (self.stream.first + self.stream.step * (step.start + step.count + step.num_drafts - 1))
                assert row.ended or len(row.heard) >= needed, f"slot {step.slot} runs before it can hear"

    def _pcm(self, row: Row, position: int = 0) -> bytes:
        if self.stream is not None:
            return prefix_of(row.heard, self.stream, position)
        if row.media or not row.spans:
            return media_bytes(row.media, position)
        return self.encoded[row.spans[0].encoder_slot]

    def _check_writers(self, plan: StepPlan) -> None:
        """A block that one row writes stands in the table of no other row."""
        starts = {step.slot: step.start for step in plan.rows}
        holders: dict[int, set[tuple[int, int]]] = {}
        for slot, row in self.rows.items():
            for group, (window, table) in enumerate(zip(self.windows, row.tables, strict=True)):
                # who is not in the step sees no less than from where it has computed, or begins behind what it holds
                known = len(table) * self.block_size if row.computed is None else row.computed
                start = starts.get(slot, known)
                seen = table[max(0, start - window + 1) // self.block_size if window else 0 :]
                assert len(set(seen)) == len(seen), f"slot {slot} has a block twice"
                for block in seen:
                    assert 0 <= block < self.num_blocks
                    holders.setdefault(block, set()).add((slot, group))
        for step in plan.rows:
            row = self.rows[step.slot]
            last = (step.start + step.count + step.num_drafts - 1) // self.block_size
            for group, table in enumerate(row.tables):
                for block in table[step.start // self.block_size : last + 1]:
                    assert holders[block] == {(step.slot, group)}, (
                        f"block {block} is written by slot {step.slot} and not its alone"
                    )

    def _by_group(self, blocks: list[int]) -> list[list[int]]:
        """Tables as they travel, those of all groups one after another."""
        each, odd = divmod(len(blocks), len(self.windows))
        assert not odd, f"{len(blocks)} blocks for {len(self.windows)} groups"
        return [blocks[group * each : (group + 1) * each] for group in range(len(self.windows))]

    def _place(self, row: Row, group: int, position: int) -> tuple[int, int]:
        return row.tables[group][position // self.block_size], position % self.block_size

    def _entry(self, row: Row, position: int) -> tuple[int, int, int]:
        return row.tokens[position], position, hashed(row.tokens[: position + 1], self._pcm(row, position))
