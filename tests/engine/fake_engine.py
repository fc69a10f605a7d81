"""A real scheduler over :mod:`.fake_worker`, in a loop whose every turn, loss and arrival a test decides."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from stentor.engine.channel import MAX_FRAME
from stentor.engine.client.media import Media
from stentor.engine.core.crash_bisector import DEATHS_TO_CONVICT
from stentor.engine.core.grammar.constraint import TokenConstraint
from stentor.engine.core.request import NOTHING
from stentor.engine.core.scheduler import Scheduler
from stentor.engine.core.scheduler.refusals import spans_refusal_of
from stentor.engine.core.scheduler.step import MAX_PLAN_BYTES
from stentor.engine.core.sequence import SequenceState
from stentor.engine.worker.rows.rows import with_forks
from stentor.protocols.ipc.actors import Resource, Submit, TokensBatch
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, LoadAdapter
from stentor.protocols.ipc.cache_groups import CacheGroup, HostSizes, group_of
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.config import EngineConfig, SchedulerConfig, WorkerConfig
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult
from stentor.tests.engine.fake_client import Client
from stentor.tests.engine.fake_worker import FakeWorker, takes_no_time
from stentor.tests.engine.media import Audio, Heard, Shelf
from stentor.tests.engine.schedulers import ready_of
from stentor.tests.engine.scripted_grammar import ScriptedGrammar, constraint_over

ATTENDED = 3
"""Embeddings of a window of audio."""
AttentionScope = Literal["", "before", "all"]
"""What a model that pools lets each token see: those before it, or all; "" draws tokens."""


def windows_of_audio(count: int) -> CacheGroup:
    """An encoder cache with room for so many."""
    return CacheGroup("cross", ATTENDED, count * ATTENDED)


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
        max_admitted_tokens: int | None = None,
        max_model_len: int = 64,
        prefix_cache: bool = True,
        aging_seconds: float = 10.0,
        target_itl: float = 0.0,
        seconds_of: Callable[[StepPlan], float] = takes_no_time,
        encoder_slots: int = 0,
        encoder_capacity: int = 0,
        whole_spans: int = 0,
        whole_prompts: bool = False,
        sliced: bool = False,
        lasting: bool = False,
        max_encodings: int = 1,
        max_mixed_encodings: int = 1,
        stream: StreamShape | None = None,
        attention_scope: AttentionScope = "",
        max_plan_bytes: int = MAX_PLAN_BYTES,
        max_frame: int = MAX_FRAME,
        windows: tuple[int, ...] = (0,),
        slow_grammars: bool = False,
        max_drafts: int = 0,
        num_states: int = 0,
        media_room: int = 0,
        late_media: bool = False,
        max_loras: int = 0,
        max_cpu_loras: int = 0,
        slow_adapters: bool = False,
        host_blocks: int = 0,
        host_states: int = 0,
    ) -> None:
        """With ``encoder_slots`` the model hears, and every request needs audio; with ``stream`` one that is
        streamed. With ``encoder_capacity`` media stand in prompts, and with ``whole_spans`` each is computed in one
        step, or with ``whole_prompts`` each prompt, or with ``lasting`` later positions attend to them; with
        ``sliced`` they may be encoded in parts, and ``media_room`` is what the worker tells; with ``late_media``
        they are written when :meth:`write` says so. With ``slow_grammars`` a grammar is there when :meth:`compiled`
        says so, with ``slow_adapters`` an adapter when :meth:`read_adapter` does. ``seconds_of`` is how long the
        worker says that a step took."""
        self.slow_adapters = slow_adapters
        self.adapter_orders: list[AdapterRef] = []
        """Adapters that the worker was told to load and has not."""
        self.adapters: set[int] = set()
        """Those that it has."""
        self.adapter_slots: dict[int, int] = {}
        groups = [] if attention_scope == "all" else [CacheGroup("window" if w else "full", w) for w in windows]
        if num_states:
            groups.append(CacheGroup("state", capacity=num_states))
        if encoder_slots:
            groups.append(windows_of_audio(encoder_slots))
        elif encoder_capacity:
            groups.append(
                CacheGroup(
                    "cross",
                    capacity=encoder_capacity,
                    sliced=sliced,
                    whole=whole_spans,
                    whole_prompts=whole_prompts,
                    lasting=lasting,
                )
            )
        self.shelf = Shelf(late=late_media)
        self.max_plan_bytes, self.max_frame = max_plan_bytes, max_frame
        self.slow_grammars = slow_grammars
        self.stream = stream
        self.max_model_len = max_model_len
        self.sizes: dict[str, Any] = {
            "num_blocks": num_blocks,
            "block_size": block_size,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_encodings": max_encodings,
            "stream": stream,
            "groups": tuple(groups),
            "max_drafts": max_drafts,
            "host": HostSizes(host_blocks, 1000, host_states, 100),
        }
        self._ready = partial(
            ready_of,
            max_model_len=max_model_len,
            max_mixed_prefill_tokens=max_mixed_prefill_tokens,
            max_prefill_chunk=max_prefill_chunk,
            max_admitted_tokens=max_admitted_tokens or 0,
            max_mixed_encodings=max_mixed_encodings,
        )
        self.is_pooling = bool(attention_scope)
        self._config = EngineConfig(
            WorkerConfig(
                "none",
                is_pooling=self.is_pooling,
                enable_lora=max_loras > 0,
                max_loras=max_loras,
                max_cpu_loras=max_cpu_loras,
            ),
            SchedulerConfig(prefix_cache, priority_aging_seconds=aging_seconds, target_itl=target_itl),
        )
        self.scheduler = self._new_scheduler()
        self.media_room, self.seconds_of = media_room, seconds_of
        self.worker = self._new_worker()
        self.results: deque[StepResult] = deque()
        self.lost: list[StepResult] = []
        self.deaths: list[set[int]] = []
        """Requests in flight at each death of the worker."""
        self.failed: set[int] = set()
        """Requests that were blamed for one, or for which something could not be loaded."""
        self.compiling: list[Submit] = []
        """Whose grammars are not there yet."""
        self.loads: list[tuple[int, int]] = []
        """Request and epoch of what is being loaded, also what a dead worker was loading."""
        self.wanted: list[int] = []
        """Requests whose media are to be written."""
        self.clients: dict[int, Client] = {}
        self.plans: list[StepPlan] = []
        """Plans as the worker receives them, with forks among the rows that enter."""
        self.sent: list[StepPlan] = []
        """The same plans before that, as they are sent."""
        self.crowded = False
        """Whether others wait for the device."""
        self.now = 0.0
        self._next_rid = 0

    @property
    def cross(self) -> CacheGroup | None:
        """Of its encoder cache."""
        return group_of(self.sizes["groups"], "cross")

    def _new_scheduler(self) -> Scheduler:
        bounds = {"max_plan_bytes": self.max_plan_bytes, "max_frame": self.max_frame}
        return Scheduler(self._ready(**self.sizes), self._config, **bounds)

    def _new_worker(self) -> FakeWorker:
        worker = FakeWorker(**self.sizes, is_pooling=self.is_pooling, read=self.shelf.reader.read, media=self._media)
        worker.media_room, worker.seconds_of = self.media_room, self.seconds_of
        return worker

    def _media(self, name: str) -> list[Media]:
        """What stands in the prompt of a request."""
        return self.clients[int(name)].media if name else []

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
        streamed: Heard | None = None,
        media: list[Media] | None = None,
        pooling: Pooling | None = None,
        loading: bool = False,
        adapter: int = -1,
    ) -> int:
        rid = self._next_rid
        self._next_rid += 1
        params = params or SamplingParams(max_tokens=0 if pooling is not None else max_tokens)
        name = str(rid) if media else ""
        named = None if adapter < 0 else AdapterRef(adapter, f"adapter-{adapter}", "")
        submit = Submit(
            rid, prompt, params, list(seeds), priority, salt, self.now, name=name, pooling=pooling, adapter=named
        )
        submit = self.shelf.bring(submit, self.cross, audio, streamed, media)
        self.clients[rid] = Client(submit, grammar, audio, streamed, media or [])
        if loading:
            self.loads.append((rid, self.scheduler.epoch))
        self._submit(submit, loading=loading)
        return rid

    def _submit(self, submit: Submit, *, loading: bool = False) -> None:
        awaits: frozenset[Resource] = frozenset(["transfer"]) if loading else NOTHING
        if self.clients[submit.rid].grammar is not None:
            awaits |= {"grammar"}
        refused = self.scheduler.submit(submit, awaits=awaits)
        self.wanted += self.scheduler.prerequisites.take_media_wanted()
        if refused is not None:
            self.receive(refused)
        elif "grammar" in awaits:
            self.compiling.append(submit)
            if not self.slow_grammars:
                self.compiled()

    def compiled(self, which: int = 0) -> None:
        submit = self.compiling.pop(which)
        grammar = self.clients[submit.rid].grammar
        assert grammar is not None
        outputs = [[] for _ in submit.seeds] if submit.resumed is None else submit.resumed.outputs
        constraints: list[TokenConstraint | None] = [constraint_over(grammar, submit.params, each) for each in outputs]
        if (ended := self.scheduler.prerequisites.constrain(submit.rid, constraints)) is not None:
            self.receive(ended)

    def append(self, rid: int, pcm: bytes, *, last: bool = False) -> None:
        client = self.clients[rid]
        if not client.finished:
            assert client.streamed is not None
            client.streamed = Heard(client.streamed.pcm + pcm, last)
        batch = self.scheduler.append(self.shelf.append(rid, pcm, last=last, live=not client.finished))
        if batch is not None:
            self.receive(batch)

    def kill_engine(self) -> None:
        """The scheduler is lost too, and what was being loaded; another gets what lives, as the client knows it."""
        self.loads.clear()
        self.wanted.clear()
        self.compiling.clear()
        self.results.clear()
        self.lost.clear()
        self._forget_adapters()
        self.worker = self._new_worker()
        self.scheduler = self._new_scheduler()
        self.shelf.store.lost()
        self.shelf.store.sweep(lambda rid: rid in self.clients and self.clients[rid].again() is not None)
        for client in self.clients.values():
            if (again := client.again()) is not None:
                self._submit(self.shelf.again(again))

    def load(self, rid: int) -> None:
        self.loads.append((rid, self.scheduler.epoch))
        self.scheduler.prerequisites.load(rid)

    def loaded(self, which: int = 0, error: str | None = None) -> None:
        rid, epoch = self.loads.pop(which)
        if (batch := self.scheduler.prerequisites.loaded(rid, epoch, error)) is not None:
            self.failed.add(rid)
            self.receive(batch)

    def write(self, which: int = 0, error: str = "") -> None:
        """The media of a request that wants them are there, or cannot be."""
        rid = self.wanted.pop(which)
        self.shelf.write(rid)
        if (batch := self.scheduler.prerequisites.media_written(rid, error)) is not None:
            self.failed.add(rid)
            self.receive(batch)

    def abort(self, rid: int, index: int = -1) -> None:
        client = self.clients[rid]
        indices = range(len(client.submit.seeds)) if index == -1 else [index]
        client.aborted.update(i for i in indices if i not in client.finished)
        batch = self.scheduler.abort(rid, index)
        if batch is not None:
            self.receive(batch)

    def take_adapter_orders(self) -> None:
        for order in self.scheduler.prerequisites.take_adapter_orders()[0]:
            if isinstance(order, LoadAdapter):
                self.adapter_orders.append(order.adapter)
            else:
                self.adapters.remove(order.number)
        while self.adapter_orders and not self.slow_adapters:
            self.read_adapter()

    def read_adapter(self, error: str = "") -> None:
        number = self.adapter_orders.pop(0).number
        if not error:
            self.adapters.add(number)
        batch, _ = self.scheduler.prerequisites.adapter_loaded(AdapterLoaded(number, error))
        self.failed.update(end.rid for end in batch.finished)
        self.receive(batch)

    def _check_adapters(self, plan: StepPlan) -> None:
        """Each row has the slot in which its request's adapter is, of those that the worker has."""
        self.adapter_slots |= dict(plan.adapters)
        assert {number for _, number in plan.adapters} <= self.adapters, "an adapter is put in a slot and is not there"
        rows = {sequence.slot: sequence.request.adapter for sequence in self.scheduler._rows.running}
        for new in plan.new:
            adapter = rows[new.slot]
            found = None if new.adapter < 0 else self.adapter_slots[new.adapter]
            assert found == (None if adapter is None else adapter.number), "a row has another adapter than its request"

    def plan(self) -> bool:
        self.now += 0.01
        self.take_adapter_orders()
        plan = self.scheduler.plan(self.now, crowded=self.crowded)
        self.wanted += self.scheduler.prerequisites.take_media_wanted()
        if plan is None:
            return False
        self.plans.append(with_forks(plan))
        self.sent.append(plan)
        self._check_bytes(plan)
        self._check_order(self.plans[-1])
        self._check_adapters(self.plans[-1])
        if (result := self.worker.run(plan)) is not None:
            self.results.append(result)
        self._mask()
        return True

    def _check_bytes(self, plan: StepPlan) -> None:
        """What enters is within the bound, or is one row that fits into a frame."""
        brought = len(encoder.encode((plan.new, plan.forks, plan.encode)))
        bound = self.max_plan_bytes if len(plan.new) + len(plan.forks) > 1 else self.max_frame
        assert brought <= bound + 16, f"{brought} bytes in one plan"
        heard = len(encoder.encode(plan.inputs))
        assert heard <= self.max_plan_bytes + 1024 * len(plan.rows) + 16, f"{heard} bytes are heard in one step"

    def _check_order(self, plan: StepPlan) -> None:
        """A request that entered needs a resource for which no more important request waits."""
        scheduler = self.scheduler
        entered = {new.slot for new in plan.new}
        for late in [sequence for sequence in scheduler._rows.running if sequence.slot in entered]:
            for request in scheduler._output.requests.values():
                if scheduler._recovery.group is not None and request.rid not in scheduler._recovery.group:
                    continue
                for early in request.sequences:
                    if early.state is SequenceState.WAITING and early.order < late.order:
                        assert request.needs - late.request.needs, f"{late.name} has overtaken {early.name}"

    def _mask(self) -> None:
        """Makes masks as soon as they can be made, as the loop does."""
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
        in_flight = {each.rid for each in self.scheduler._recovery.in_flight(self.scheduler._in_flight)}
        # the search may have gone on while the last steps of this group are in flight
        group = self.scheduler._recovery.group
        assert group is None or in_flight <= group, "somebody ran beside those who are searched"
        self.deaths.append(in_flight)
        self.lost.extend(self.results)
        self.results.clear()
        self._forget_adapters()
        self.worker = self._new_worker()
        recovery = self.scheduler.recover()
        self.failed.update(end.rid for end in recovery.ended.finished)
        if recovery.explained:
            assert self.deaths.count(in_flight) >= DEATHS_TO_CONVICT, "failed without having died alone"
        assert recovery.explained == bool(recovery.ended.finished)
        self.receive(recovery.ended)

    def _forget_adapters(self) -> None:
        self.adapter_orders.clear()
        self.adapters.clear()
        self.adapter_slots.clear()

    def restart_with(self, cross: CacheGroup) -> None:
        """The worker dies, and the next one has such an encoder cache, in which not all requests may fit."""
        self.sizes["groups"] = (*(group for group in self.sizes["groups"] if group.kind != "cross"), cross)
        self.failed |= {rid for rid, client in self.clients.items() if spans_refusal_of(client.submit.inputs, cross)}
        self.kill_worker()
        self.receive(self.scheduler.resize(self._ready(**self.sizes)))

    def step(self) -> None:
        """One turn of the loop: plan ahead, then take the oldest result."""
        planned = self.plan()
        if len(self.results) > 1 or (self.results and not planned):
            self.deliver()
        self.scheduler.check_integrity()

    def drain(self, limit: int = 5000) -> None:
        """Run until nothing lives and nothing is in flight, with all loaded; a deadlock is an AssertionError."""
        while self.compiling:
            self.compiled()
        while self.loads:
            self.loaded()
        for _ in range(limit):
            while self.wanted:
                self.write()
            if not self.scheduler.has_work and not self.scheduler.in_flight:
                break
            assert self.plan() or self.results or self.wanted, f"deadlock: {self.scheduler.stats()}"
            if self.results and (len(self.results) > 1 or not self.scheduler.has_work or not self.plan()):
                self.deliver()
            self.scheduler.check_integrity()
        else:
            raise AssertionError(f"still running after {limit} turns: {self.scheduler.stats()}")
        self.check_empty()

    def receive(self, batch: TokensBatch) -> None:
        for part in batch.parts:
            self.clients[part.rid].take_part(part)
        for prompt in batch.prompts:
            self.clients[prompt.rid].take_prompt(prompt)
        for gained in batch.tokens:
            self.clients[gained.rid].take_tokens(gained)
        for end in batch.finished:
            self.clients[end.rid].take_end(end)
        self.shelf.store.released(self.scheduler.take_released())

    def check_empty(self) -> None:
        """Nothing lives: every block is free, nothing waits."""
        stats = self.scheduler.stats()
        assert stats.free_blocks == self.sizes["num_blocks"], f"{stats.free_blocks} blocks free after all has ended"
        assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
        self.shelf.store.released(self.scheduler.take_released())
        self.shelf.store.arena.check_integrity()
        assert not self.shelf.store.arena.used, "media are kept of requests that have ended"

    def check_clients(self) -> None:
        """Every sequence ended once, with the tokens that it gives alone."""
        for rid, client in self.clients.items():
            client.check(self.max_model_len, self.stream, blamed=rid in self.failed)
