"""The scheduler and a real runner in one process, one step ahead as in production."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stentor.engine.channel.pieces import PromptParts
from stentor.engine.client.media import Media
from stentor.engine.client.stream import RoutedExperts
from stentor.engine.core.grammar.constraint import TokenConstraint
from stentor.engine.core.request import NOTHING
from stentor.engine.core.scheduler import MAX_IN_FLIGHT, Scheduler
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.families.setup_parts import Setup
from stentor.engine.worker.rows.rows import with_forks
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.actors import Finished, PromptDone, PromptPart, Resource, Resumed, Submit, TokensBatch
from stentor.protocols.ipc.adapters import AdapterRef, DropAdapter
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.config import EngineConfig, SchedulerConfig, WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan, StepResult, TokenLogprobs
from stentor.tests.engine.media import Audio, Heard, Shelf


def weights_bytes(spec: ModelSpec, context: LayerContext) -> int:
    """What the model's tensors would take."""
    return Decoder(spec, replace(context, shapes_only=True), max_model_len=1).weights.total_bytes


@dataclass
class Outcome:
    """What one sequence got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    experts: bytes = b""
    """Of what came before its last token, where they were asked for."""
    finished: Finished | None = None


NO_LIMITS: Mapping[str, int] = {}


def never() -> bool:
    return False


class LocalEngine:
    """Submit, then :meth:`run` until every sequence has ended."""

    def __init__(self, config: WorkerConfig, setup: Setup | None = None) -> None:
        """``setup`` has been done already, as on a device; None does it."""
        setup = setup or set_up(config, lambda phase, done, total: None)
        self.config = config
        self.ready = setup.ready
        self.runner = setup.runner
        self.adapters = setup.adapters
        self.steps = 0
        self.deaths = 0
        self.restart(setup.ready.num_blocks)

    def restart(
        self,
        num_blocks: int,
        *,
        prefix_cache: bool = True,
        max_num_batched_tokens: int = 0,
        limits: Mapping[str, int] = NO_LIMITS,
        aging: float = 10.0,
    ) -> None:
        """A fresh scheduler over the same model, with fewer blocks or a smaller budget if asked; ``limits`` of a step
        are set beside it."""
        self.shelf = Shelf()
        if self.runner.extras is not None:
            self.runner.extras.media = self.shelf.reader.read
        self._forget()
        budget = max_num_batched_tokens or self.ready.limits.max_num_batched_tokens
        step = msgspec.structs.replace(
            self.ready.limits,
            max_num_batched_tokens=budget,
            max_mixed_prefill_tokens=budget,
            max_prefill_chunk=budget,
            max_admitted_tokens=0,
        )
        ready = msgspec.structs.replace(
            self.ready, num_blocks=num_blocks, limits=msgspec.structs.replace(step, **limits)
        )
        scheduling = SchedulerConfig(prefix_cache=prefix_cache, target_itl=0.0, priority_aging_seconds=aging)
        self._scheduled = ready, EngineConfig(self.config, scheduling)
        self.scheduler = Scheduler(*self._scheduled)
        self._submits: dict[int, Submit] = {}
        """As the engine had them."""
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.prompts: dict[int, PromptDone] = {}
        self._parts: dict[int, PromptParts] = {}
        self.parts: dict[int, list[PromptPart]] = {}
        """As they came."""
        self._experts: dict[int, RoutedExperts] = {}
        self._pending: deque[StepPlan] = deque()
        """Those that are ahead."""
        self._clock = 0.0
        self._next_rid = 0

    def _forget(self) -> None:
        """The worker loses its rows, its adapters, and what it has encoded."""
        if self.adapters is not None:
            for number in self.adapters.numbers:
                self.adapters.drop(number)
        self.runner.release(list(range(self.ready.limits.max_num_seqs)))
        cross = group_of(self.ready.groups, "cross")
        if self.runner.extras is not None and cross is not None:
            self.runner.extras.enter(StepPlan(0, 0, [], [], [], forgotten=list(range(cross.capacity))))

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        seeds: list[int] | None = None,
        salt: str = "",
        audio: Audio | None = None,
        streamed: Heard | None = None,
        media: list[Media] | None = None,
        pooling: Pooling | None = None,
        adapter: AdapterRef | None = None,
        constraints: list[TokenConstraint | None] | None = None,
        resumed: Resumed | None = None,
        priority: int = 0,
    ) -> int:
        """``constraints``: what each sequence follows."""
        rid, self._next_rid = self._next_rid, self._next_rid + 1
        seeds = seeds or [0]
        for index in range(len(seeds)):
            self.outcomes[rid, index] = Outcome()
        request = Submit(
            rid, prompt, params, seeds, priority, salt, self._clock, resumed, pooling=pooling, adapter=adapter
        )
        if params.routed_experts is not None:
            self._experts[rid] = RoutedExperts(params.routed_experts, len(prompt))
        request = self.shelf.bring(request, group_of(self.ready.groups, "cross"), audio, streamed, media)
        self._submits[rid] = request
        self._enter(request, constraints)
        return rid

    def _enter(self, request: Submit, constraints: list[TokenConstraint | None] | None) -> None:
        awaits: frozenset[Resource] = NOTHING if constraints is None else frozenset(["grammar"])
        refused = self.scheduler.submit(request, awaits=awaits)
        self._write_media()
        self._clock += 1e-3
        if refused is not None:
            self._take(refused)
        elif constraints is not None:
            ended = self.scheduler.prerequisites.constrain(request.rid, constraints)
            if ended is not None:
                self._take(ended)

    def abort(self, rid: int, index: int = -1) -> None:
        ended = self.scheduler.abort(rid, index)
        if ended is not None:
            self._take(ended)

    def append(self, rid: int, pcm: bytes, *, last: bool = False) -> None:
        ended = self.scheduler.append(self.shelf.append(rid, pcm, last=last))
        if ended is not None:
            self._take(ended)

    def run(self, *, check: bool = False, dies: Callable[[], bool] = never) -> None:
        """Before a step of which ``dies`` is true, the worker loses all that it has and the scheduler recovers."""
        while self.turn(dies):
            if check:
                self.scheduler.check_integrity()

    def lose_worker(self) -> None:
        """It loses all that it has, and the scheduler recovers."""
        self._pending.clear()
        self._forget()
        self.deaths += 1
        self._take(self.scheduler.recover().ended)

    def lose_engine(self, constraints: Callable[[int, list[list[int]]], list[TokenConstraint | None] | None]) -> None:
        """The scheduler and the worker are lost, and others get what lives, as its client knows it. ``constraints``:
        what the sequences of a request follow after these outputs."""
        self._pending.clear()
        self._forget()
        self.scheduler = Scheduler(*self._scheduled)
        self.shelf.store.lost()
        for rid, submit in self._submits.items():
            outcomes = [self.outcomes[rid, index] for index in range(len(submit.seeds))]
            ended = [index for index, each in enumerate(outcomes) if each.finished is not None]
            if len(ended) == len(outcomes):
                continue
            outputs = [list(each.tokens) for each in outcomes]
            again = msgspec.structs.replace(submit, resumed=Resumed(outputs, ended, rid in self.prompts))
            self._enter(self.shelf.again(again), constraints(rid, outputs))

    def turn(self, dies: Callable[[], bool] = never, *, ahead: int = MAX_IN_FLIGHT) -> bool:
        """Plans ahead and completes a step; false where there is nothing to do. ``ahead``: steps in flight, at most;
        with 0 none is planned."""
        self._clock += 1e-3
        if dies():
            self.lose_worker()
        self._load_adapters()
        while self.scheduler.in_flight < ahead and (plan := self.scheduler.plan(self._clock)) is not None:
            self._pending.append(with_forks(plan))
        if self._write_media():
            return True
        if not self._pending:
            waits = self.ready.stream is not None or not ahead  # for input
            assert waits or not self.scheduler.has_work, "requests live and nothing can be planned"
            return False
        self.steps += 1
        self._take(self.scheduler.complete(self._computed(self._pending.popleft()), self._clock))
        return True

    def _write_media(self) -> bool:
        """Whether some were wanted."""
        wanted = self.scheduler.prerequisites.take_media_wanted()
        for rid in wanted:
            self.shelf.write(rid)
            self.scheduler.prerequisites.media_written(rid)
        return bool(wanted)

    def _load_adapters(self) -> None:
        """An answer may be followed by the next order: an adapter that cannot be read leaves its place to another."""
        while orders := self.scheduler.prerequisites.take_adapter_orders()[0]:
            assert self.adapters is not None
            for order in orders:
                if isinstance(order, DropAdapter):
                    self.adapters.drop(order.number)
                    continue
                self.adapters.load(order.adapter)
                for loaded in self.adapters.take(None):
                    self._take(self.scheduler.prerequisites.adapter_loaded(loaded)[0])

    def _computed(self, plan: StepPlan) -> StepResult:
        """The oldest step in flight, with its masks where it has masked rows. It is told to have taken no time, so
        that the number of drafts does not depend on the machine."""
        forwarded = self.runner.forward(plan)
        masks = None
        if self.scheduler.wants_masks:
            masks, ended = self.scheduler.masks()
            self._take(ended)
        result = self.runner.finish(self.runner.draw(forwarded, masks))
        return msgspec.structs.replace(result, seconds=0.0)

    def generate(
        self, prompt: list[int], params: SamplingParams, seed: int = 0, audio: Audio | None = None
    ) -> list[int]:
        """One request alone."""
        rid = self.submit(prompt, params, [seed], audio=audio)
        self.run()
        return self.outcomes[rid, 0].tokens

    def _take(self, batch: TokensBatch) -> None:
        self.shelf.store.released(self.scheduler.take_released())
        for part in batch.parts:
            self.parts.setdefault(part.rid, []).append(part)
            self._parts.setdefault(part.rid, PromptParts()).add(part)
        for routed in batch.experts:
            self._experts[routed.rid].add(routed)
        for prompt in batch.prompts:
            self.prompts[prompt.rid] = self._parts.pop(prompt.rid, PromptParts()).joined(prompt)
        for gained in batch.tokens:
            outcome = self.outcomes[gained.rid, gained.index]
            assert outcome.finished is None, "tokens after the end"
            outcome.tokens += gained.tokens
            outcome.logprobs += gained.logprobs or []
        for end in batch.finished:
            outcome = self.outcomes[end.rid, end.index]
            assert outcome.finished is None, "two terminal messages"
            if end.rid in self._experts and end.reason not in ("error", "abort"):
                outcome.experts = self._experts[end.rid].of(end.index, len(outcome.tokens))
            outcome.finished = end


def model_config(model: Path, **changes: object) -> WorkerConfig:
    """A float32 CPU worker with a small cache."""
    fields: dict[str, object] = {
        "model": str(model),
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
        "block_size": 16,
        "kv_cache_memory": 32 << 20,
        **changes,
    }
    return WorkerConfig(**fields)  # type: ignore[arg-type]
