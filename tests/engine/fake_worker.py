"""A worker without a model: it keeps rows and KV as a real one does, and checks every plan it is sent.

The next token is a hash of all tokens so far, of the audio, the seed and the output index, so a row that was
given a wrong token, block, place or position yields other tokens than it does alone.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from stentor.engine.scheduler import Scheduler
from stentor.engine.scheduler.suspicion import DEATHS_TO_CONVICT
from stentor.protocols.actors import Append, ChoiceTokens, Finished, PromptDone, Resumed, Submit, TokensBatch
from stentor.protocols.audio import Audio, Heard, Streamed, StreamShape
from stentor.protocols.config import SchedulerConfig
from stentor.protocols.pooling import Pooled, Pooling, Reach
from stentor.protocols.sampling import SamplingParams
from stentor.protocols.steps import (
    Masks,
    NewRow,
    PromptLogprobs,
    RowHeard,
    RowPooled,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from stentor.tests.engine.scripted_grammar import VOCAB, ScriptedGrammar, permitted, rule_over


def _hash(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def next_token(
    tokens: Sequence[int],
    prompt_len: int,
    params: SamplingParams,
    seed: int,
    allowed: set[int] | None = None,
    pcm: bytes = b"",
) -> int:
    """The token drawn after ``tokens``; stops are masked below ``min_tokens``, unless ``allowed`` says what may be."""
    index = len(tokens) - prompt_len
    token = _hash(list(tokens), seed, index, pcm) % VOCAB
    if allowed is not None:
        return next(each % VOCAB for each in range(token, token + VOCAB) if each % VOCAB in allowed)
    if index < params.min_tokens:
        stops = set(params.eos_token_ids) | set(params.stop_token_ids)
        while token in stops:
            token = (token + 1) % VOCAB
    return token


def token_logprobs(tokens: Sequence[int], position: int) -> TokenLogprobs:
    """A value that depends on the token at ``position`` and all before it."""
    return TokenLogprobs(tokens[position], -float(_hash(list(tokens[: position + 1])) % 997), 1, [])


def heard_of(prompt: Sequence[int], pcm: bytes, audio: Audio | NewRow) -> Heard:
    """What a prompt brings, as the request or its row asks for it."""
    no_speech = None if audio.no_speech is None else _hash(list(prompt[: audio.no_speech[0] + 1]), pcm) % 997 / 997
    if audio.align is None:
        return Heard(no_speech)
    tokens = range(audio.align.start, len(prompt))
    times = [float(_hash(list(prompt[: place + 1]), pcm, audio.align.frames) % 997) for place in [*tokens, tokens.stop]]
    return Heard(no_speech, times, times[:-1])


def pooled_of(prompt: Sequence[int], pooling: Pooling) -> Pooled:
    """What is made of a prompt: bytes that depend on all of it."""
    return Pooled(1, 2, _hash(list(prompt), pooling).to_bytes(8, "little"))


@dataclass
class Alone:
    """What a choice yields when nothing else exists."""

    tokens: list[int]
    reason: str
    stop_token: int | None


def prefix_of(pcm: bytes, shape: StreamShape | None, position: int) -> bytes:
    """What has been heard at a position of a model that hears while it is spoken to; for all others everything."""
    return pcm if shape is None else pcm[: 2 * (shape.first + shape.step * position)]


def alone(
    submit: Submit,
    index: int,
    max_model_len: int,
    grammar: ScriptedGrammar | None = None,
    shape: StreamShape | None = None,
    streamed: Streamed | None = None,
) -> Alone:
    """Computed straight from the definition of the fake model; ``streamed`` is all that was."""
    params, tokens, prompt_len = submit.params, list(submit.prompt), len(submit.prompt)
    limit = min(prompt_len + params.max_tokens, max_model_len)
    pcm = b"" if submit.audio is None else submit.audio.pcm
    end, heard_all = limit, -1
    if shape is not None and streamed is not None:
        pcm = streamed.pcm
        heard_all = max(-(-len(pcm) // (2 * shape.step)), prompt_len) + 1
        end = min(limit, heard_all)
    while len(tokens) < end:
        count = len(tokens) - prompt_len
        outputs = tokens[prompt_len:]
        allowed = None if grammar is None else permitted(grammar, params, outputs)
        here = prefix_of(pcm, shape, len(tokens) - 1)
        token = next_token(tokens, prompt_len, params, submit.seeds[index], allowed, here)
        tokens.append(token)
        if count >= params.min_tokens:
            if token in params.eos_token_ids:
                return Alone(tokens[prompt_len:], "stop", None)
            if token in params.stop_token_ids:
                return Alone(tokens[prompt_len:], "stop", token)
        if grammar is not None and grammar.ends_with(params, outputs, token):
            return Alone(tokens[prompt_len:], "stop", None)
    if submit.pooling is not None:
        return Alone([], "stop", None)
    # where input and length end it at once, it is the input that does: nothing is left to be heard
    stops = end == heard_all and streamed is not None and streamed.ended
    return Alone(tokens[prompt_len:], "stop" if stops else "length", None)


@dataclass
class Row:
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    seed: int
    blocks: list[int]
    masked: bool = False
    place: int = -1
    heard: bytes = b""
    """Of what is streamed."""
    ended: bool = False
    asked: NewRow | None = None
    """The row as it entered, where it is to say what its prompt has heard."""
    pooling: Pooling | None = None
    """What is to be made of its prompt, until it has been made."""
    computed: int | None = None
    """Positions with KV; None until the row's first step says where it starts."""


class FakeWorker:
    """Applies plans in order; raises AssertionError on one that a real worker could not run rightly."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        encodings: int = 0,
        max_encodings: int = 1,
        stream: StreamShape | None = None,
        pools: Reach = "",
    ) -> None:
        self.stream = stream
        self.pools: Reach = pools
        self.encodings = encodings
        self.max_encodings = max_encodings
        self.encoded: dict[int, bytes] = {}
        """Audio by place."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.rows: dict[int, Row] = {}
        self.kv: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.heard: list[RowHeard] = []
        """Of the step that runs."""
        self.pooled: list[RowPooled] = []
        """The same."""
        self.last_step = -1
        self.computed_tokens = 0
        self.held: StepPlan | None = None
        """A step whose forward has run and whose masks have not come."""

    def run(self, plan: StepPlan) -> StepResult | None:
        """The result; None where the step waits for its masks."""
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
        sets = [{token for token in range(8 * len(bits)) if bits[token >> 3] >> (token & 7) & 1} for bits in masks.bits]
        assert all(sets), "a mask that allows nothing"
        allowed = {row.slot: set(row.ids) if row.bits < 0 else sets[row.bits] for row in masks.rows}
        return self._draw(plan, self._pieces, allowed)

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
            asks = new.no_speech is not None or new.align is not None
            self.rows[new.slot] = Row(
                list(new.tokens),
                new.prompt_len,
                new.params,
                new.seed,
                list(new.blocks),
                new.masked,
                new.encoding,
                asked=new if asks else None,
                pooling=new.pooling,
            )
        self._encode(plan)
        self._feed(plan)
        assert plan.rows, "an empty step"
        assert sum(step.count for step in plan.rows) <= self.max_num_batched_tokens, "the step is over its budget"
        assert len({step.slot for step in plan.rows}) == len(plan.rows), "a row appears twice"
        assert {new.slot for new in plan.new} <= {step.slot for step in plan.rows}, "a new row has no work"
        pieces: list[PromptLogprobs] = []
        self.heard, self.pooled = [], []
        for step in plan.rows:
            self.rows[step.slot].blocks.extend(step.new_blocks)
        self._check_writers(plan)
        assert set(plan.masked) <= {step.slot for step in plan.rows}, "a row is masked that is not in the step"
        for step in plan.rows:
            row = self.rows[step.slot]
            end = step.start + step.count
            assert step.count > 0
            assert end <= len(row.tokens), f"slot {step.slot} computes positions it has no tokens for"
            needed = -(-len(row.tokens) // self.block_size)
            assert len(row.blocks) == needed, f"slot {step.slot} has {len(row.blocks)} blocks for {needed}"
            assert step.start == row.computed or row.computed is None, f"slot {step.slot} skips or repeats positions"
            for position in range(step.start):
                assert self.kv.get(self._place(row, position)) == self._entry(row, position), (
                    f"slot {step.slot} reads KV at position {position} that is not its own"
                )
            for position in range(step.start, end):
                self.kv[self._place(row, position)] = self._entry(row, position)
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

    def _draw(self, plan: StepPlan, pieces: list[PromptLogprobs], allowed: dict[int, set[int]]) -> StepResult:
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        for step in plan.rows:
            row = self.rows[step.slot]
            if step.sample:
                permitted_now = allowed.get(step.slot)
                pcm = self._pcm(row, len(row.tokens) - 1)
                token = next_token(row.tokens, row.prompt_len, row.params, row.seed, permitted_now, pcm)
                row.tokens.append(token)
                tokens.append(row.tokens[-1])
                wanted = row.params.logprobs is not None
                logprobs.append(token_logprobs(row.tokens, len(row.tokens) - 1) if wanted else None)
        some = any(entry is not None for entry in logprobs)
        said = logprobs if some else None
        return StepResult(plan.epoch, plan.step, tokens, said, pieces, 0.0, self.heard, pooled=self.pooled)

    def _encode(self, plan: StepPlan) -> None:
        before = {slot: self.encoded.get(row.place) for slot, row in self.rows.items() if row.computed is not None}
        assert len(plan.encodings) <= self.max_encodings, "more windows than a step may encode"
        places = [each.place for each in plan.encodings]
        assert len(set(places)) == len(places), "a place is filled twice"
        for each in plan.encodings:
            assert 0 <= each.place < self.encodings
            assert each.pcm not in self.encoded.values() or self.encoded.get(each.place) == each.pcm, "encoded twice"
            self.encoded[each.place] = each.pcm
        for slot, pcm in before.items():
            assert self.encoded.get(self.rows[slot].place) == pcm, f"what slot {slot} hears was overwritten"
        for slot, row in self.rows.items():
            assert (row.place >= 0) == bool(self.encodings), f"slot {slot} has place {row.place}"
            assert row.place < 0 or row.place in self.encoded, f"slot {slot} hears what nobody has encoded"

    def _hear(self, step: RowStep, row: Row) -> None:
        asked, end = row.asked, step.start + step.count
        if asked is None or step.start >= row.prompt_len:
            return
        found = heard_of(row.tokens[: row.prompt_len], self._pcm(row), asked)
        if asked.align is not None:
            assert (step.start, step.count) == (0, len(row.tokens)), f"slot {step.slot} aligns and was cut into chunks"
            self.heard = [*self.heard, RowHeard(step.slot, found)]
        elif asked.no_speech is not None and step.start <= asked.no_speech[0] < end:
            self.heard = [*self.heard, RowHeard(step.slot, found)]

    def _pool(self, step: RowStep, row: Row) -> None:
        assert (row.pooling is None) == (not self.pools) or row.computed, f"slot {step.slot} is asked for nothing"
        if row.pooling is None:
            return
        end = step.start + step.count
        if self.pools == "all":
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
            row.heard += given.pcm
            row.ended = given.ended
        if self.stream is not None:
            for step in plan.rows:
                row = self.rows[step.slot]
                needed = 2 * (self.stream.first + self.stream.step * (step.start + step.count - 1))
                assert row.ended or len(row.heard) >= needed, f"slot {step.slot} runs before it can hear"

    def _pcm(self, row: Row, position: int = 0) -> bytes:
        if self.stream is not None:
            return prefix_of(row.heard, self.stream, position)
        return b"" if row.place < 0 else self.encoded[row.place]

    def _check_writers(self, plan: StepPlan) -> None:
        """A block that one row writes stands in the table of no other row."""
        holders: dict[int, set[int]] = {}
        for slot, row in self.rows.items():
            assert len(set(row.blocks)) == len(row.blocks), f"slot {slot} has a block twice"
            for block in row.blocks:
                assert 0 <= block < self.num_blocks
                holders.setdefault(block, set()).add(slot)
        for step in plan.rows:
            row = self.rows[step.slot]
            last = (step.start + step.count - 1) // self.block_size
            for block in row.blocks[step.start // self.block_size : last + 1]:
                assert holders[block] == {step.slot}, f"block {block} is written by slot {step.slot} and not its alone"

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        return row.blocks[position // self.block_size], position % self.block_size

    def _entry(self, row: Row, position: int) -> tuple[int, int, int]:
        return row.tokens[position], position, _hash(row.tokens[: position + 1], self._pcm(row, position))


@dataclass
class Client:
    """What one request was sent."""

    submit: Submit
    grammar: ScriptedGrammar | None = None
    streamed: Streamed | None = None
    """All that was streamed so far."""
    prompts: list[PromptDone] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)


class Engine:
    """Scheduler and fake worker in a loop with a manual clock, one step ahead.

    A plan is run at once, but its result is kept back until :meth:`deliver`: the scheduler makes
    the next plan without knowing it.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        max_mixed_prefill_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
        max_model_len: int = 64,
        prefix_cache: bool = True,
        aging_seconds: float = 10.0,
        encodings: int = 0,
        max_encodings: int = 1,
        max_mixed_encodings: int = 1,
        stream: StreamShape | None = None,
        pools: Reach = "",
    ) -> None:
        """With ``encodings`` the model hears, and every request needs audio; with ``stream`` one that is streamed."""
        self.stream = stream
        self.max_model_len = max_model_len
        self.sizes: dict[str, Any] = {
            "num_blocks": num_blocks,
            "block_size": block_size,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "encodings": encodings,
            "max_encodings": max_encodings,
            "stream": stream,
            "pools": pools,
        }
        config = SchedulerConfig(prefix_cache=prefix_cache, priority_aging_seconds=aging_seconds)
        self._new_scheduler = partial(
            Scheduler,
            **self.sizes,
            max_model_len=max_model_len,
            config=config,
            max_mixed_prefill_tokens=max_mixed_prefill_tokens,
            max_prefill_chunk=max_prefill_chunk,
            max_mixed_encodings=max_mixed_encodings,
        )
        self.scheduler = self._new_scheduler()
        self.worker = FakeWorker(**self.sizes)
        self.results: deque[StepResult] = deque()
        self.lost: list[StepResult] = []
        self.deaths: list[set[int]] = []
        """Requests in flight at each death of the worker."""
        self.failed: set[int] = set()
        """Requests that were blamed for one."""
        self.clients: dict[int, Client] = {}
        self.plans: list[StepPlan] = []
        self.crowded = False
        """Whether others wait for the device."""
        self.now = 0.0
        self._next_rid = 0

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        seeds: Sequence[int] = (1,),
        priority: int = 0,
        salt: str = "",
        max_tokens: int = 4,
        grammar: ScriptedGrammar | None = None,
        audio: Audio | None = None,
        streamed: Streamed | None = None,
        pooling: Pooling | None = None,
    ) -> int:
        rid = self._next_rid
        self._next_rid += 1
        params = params or SamplingParams(max_tokens=0 if pooling is not None else max_tokens)
        submit = Submit(rid, prompt, params, list(seeds), priority, salt, self.now, audio=audio)
        submit = msgspec.structs.replace(submit, streamed=streamed, pooling=pooling)
        self.clients[rid] = Client(submit, grammar, streamed)
        self._submit(submit)
        return rid

    def _submit(self, submit: Submit) -> None:
        grammar = self.clients[submit.rid].grammar
        rules = None
        if grammar is not None:
            outputs = [[] for _ in submit.seeds] if submit.resumed is None else submit.resumed.outputs
            rules = [rule_over(grammar, submit.params, each) for each in outputs]
        refused = self.scheduler.submit(submit, self.now, rules)
        if refused is not None:
            self.receive(refused)

    def append(self, rid: int, pcm: bytes, *, last: bool = False) -> None:
        client = self.clients[rid]
        if not client.finished:
            assert client.streamed is not None
            client.streamed = Streamed(client.streamed.pcm + pcm, last)
        batch = self.scheduler.append(Append(rid, pcm, last))
        if batch is not None:
            self.receive(batch)

    def kill_engine(self) -> None:
        """The scheduler is lost too; another gets what lives, as the client knows it."""
        self.results.clear()
        self.lost.clear()
        self.worker = FakeWorker(**self.sizes)
        self.scheduler = self._new_scheduler()
        for client in self.clients.values():
            choices = range(len(client.submit.seeds))
            if len(client.finished) < len(choices):
                outputs = [list(client.tokens.get(index, [])) for index in choices]
                resumed = Resumed(outputs, list(client.finished), bool(client.prompts))
                streamed = client.streamed
                self._submit(msgspec.structs.replace(client.submit, resumed=resumed, streamed=streamed))

    def abort(self, rid: int, index: int = -1) -> None:
        client = self.clients[rid]
        indices = range(len(client.submit.seeds)) if index == -1 else [index]
        client.aborted.update(i for i in indices if i not in client.finished)
        batch = self.scheduler.abort(rid, index)
        if batch is not None:
            self.receive(batch)

    def plan(self) -> bool:
        self.now += 0.01
        plan = self.scheduler.plan(self.now, crowded=self.crowded)
        if plan is None:
            return False
        self.plans.append(plan)
        if (result := self.worker.run(plan)) is not None:
            self.results.append(result)
        self._mask()
        return True

    def _mask(self) -> None:
        """As the loop does: as soon as they can be made."""
        if self.scheduler.wants_masks:
            masks, ended = self.scheduler.masks()
            assert not self.scheduler.wants_masks
            self.receive(ended)
            self.results.append(self.worker.mask(masks))

    def deliver(self) -> None:
        self.now += 0.01
        self.receive(self.scheduler.complete(self.results.popleft(), self.now))
        self._mask()

    def kill_worker(self) -> None:
        in_flight = {flown.rid for flown in self.scheduler._flown()}
        group = self.scheduler._suspicion.group
        assert group is None or in_flight <= group, "somebody ran beside those who are searched"
        self.deaths.append(in_flight)
        self.lost.extend(self.results)
        self.results.clear()
        self.worker = FakeWorker(**self.sizes)
        recovery = self.scheduler.recover(self.now)
        self.failed.update(end.rid for end in recovery.ended.finished)
        if recovery.explained:
            assert self.deaths.count(in_flight) >= DEATHS_TO_CONVICT, "failed without having died alone"
        assert recovery.explained == bool(recovery.ended.finished)
        self.receive(recovery.ended)

    def step(self) -> None:
        """One turn of the loop: plan ahead, then take the oldest result."""
        planned = self.plan()
        if len(self.results) > 1 or (self.results and not planned):
            self.deliver()
        self.scheduler.check_integrity()

    def drain(self, limit: int = 5000) -> None:
        """Run until nothing lives and nothing is in flight; a deadlock is an AssertionError."""
        for _ in range(limit):
            if not self.scheduler.has_work and not self.scheduler.in_flight:
                break
            assert self.plan() or self.results, f"deadlock: {self.scheduler.stats()}"
            if self.results and (len(self.results) > 1 or not self.scheduler.has_work or not self.plan()):
                self.deliver()
            self.scheduler.check_integrity()
        else:
            raise AssertionError(f"still running after {limit} turns: {self.scheduler.stats()}")
        self.check_empty()

    def receive(self, batch: TokensBatch) -> None:
        ended = {(each.rid, each.index) for client in self.clients.values() for each in client.finished.values()}
        for prompt in batch.prompts:
            client = self.clients[prompt.rid]
            assert not client.tokens, "PromptDone after the first token"
            client.prompts.append(prompt)
            assert len(client.prompts) == 1, "PromptDone twice"
        for gained in batch.tokens:
            self._check_grammar(gained)
            self._receive_tokens(gained, ended)
        for finished in batch.finished:
            client = self.clients[finished.rid]
            assert finished.index not in client.finished, f"choice {finished.rid}.{finished.index} finished twice"
            client.finished[finished.index] = finished

    def _check_grammar(self, gained: ChoiceTokens) -> None:
        client = self.clients[gained.rid]
        if client.grammar is not None:
            before = client.tokens.get(gained.index, [])
            (token,) = gained.tokens
            assert token in permitted(client.grammar, client.submit.params, before), "a token that is not allowed"

    def _receive_tokens(self, gained: ChoiceTokens, ended: set[tuple[int, int]]) -> None:
        client = self.clients[gained.rid]
        assert (gained.rid, gained.index) not in ended, "tokens after the end"
        assert client.prompts, "tokens before PromptDone"
        assert (gained.logprobs is not None) == (client.submit.params.logprobs is not None)
        client.tokens.setdefault(gained.index, []).extend(gained.tokens)
        client.logprobs.setdefault(gained.index, []).extend(gained.logprobs or [])

    def check_empty(self) -> None:
        """Nothing lives: every block is free, nothing waits."""
        stats = self.scheduler.stats()
        assert stats.free_blocks == self.sizes["num_blocks"], f"{stats.free_blocks} blocks free after all has ended"
        assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)

    def check_clients(self) -> None:
        """Every choice ended once, with the tokens that it gives alone."""
        for client in self.clients.values():
            self._check_client(client)

    def _check_client(self, client: Client) -> None:
        submit = client.submit
        assert set(client.finished) == set(range(len(submit.seeds))), f"request {submit.rid} lacks terminal messages"
        for index, finished in client.finished.items():
            got = client.tokens.get(index, [])
            expected = alone(submit, index, self.max_model_len, client.grammar, self.stream, client.streamed)
            whole = [*submit.prompt, *got]
            if submit.params.logprobs is not None:
                start = len(submit.prompt)
                assert client.logprobs.get(index, []) == [token_logprobs(whole, i) for i in range(start, len(whole))]
            if finished.reason == "error":
                assert finished.message
                assert got == expected.tokens[: len(got)] if submit.rid in self.failed else not got, finished
            elif finished.reason == "abort":
                assert index in client.aborted, f"choice {submit.rid}.{index} was aborted by nobody"
                assert got == expected.tokens[: len(got)]
            else:
                assert got == expected.tokens, f"choice {submit.rid}.{index} gave other tokens than alone"
                assert (finished.reason, finished.stop_token) == (expected.reason, expected.stop_token)
                (prompt,) = client.prompts
                if (pooling := submit.pooling) is not None:
                    assert prompt.pooled == pooled_of(submit.prompt, pooling)
                    assert pooling.last or prompt.cached_tokens == 0
                if (audio := submit.audio) is not None:
                    asks = audio.no_speech is not None or audio.align is not None
                    assert prompt.heard == (heard_of(submit.prompt, audio.pcm, audio) if asks else None)
                    assert audio.align is None or prompt.cached_tokens == 0
                if submit.params.prompt_logprobs is not None:
                    rest = [token_logprobs(submit.prompt, i) for i in range(1, len(submit.prompt))]
                    assert prompt.logprobs == [None, *rest]
                    assert prompt.cached_tokens == 0
                else:
                    assert prompt.logprobs is None
