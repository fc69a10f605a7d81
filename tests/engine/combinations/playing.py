"""Plays a combination on the real engine, beside one that has one request at a time and nothing turned on."""

import traceback
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from stentor.engine.core.grammar.constraint import ParameterSets, TokenConstraint, is_constrained
from stentor.engine.core.grammar.thinking import ThinkingBudget
from stentor.protocols.ipc.actors import Finished, PromptDone, Submit
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.config import SpeculativeConfig, WorkerConfig
from stentor.tests.engine.combinations.cases import LONGEST, NUM_ADAPTERS, Ask, Case, Kind, Setting
from stentor.tests.engine.combinations.checkpoints import SOURCES, Brought, brought
from stentor.tests.engine.combinations.ranked import set_up_ranks
from stentor.tests.engine.local import LocalEngine, Outcome, model_config
from stentor.tests.engine.scripted_grammar import WideMatcher
from stentor.tests.engine.worker.test_speculation import Oracle
from stentor.tests.parity.tiny_adapters import ALL, save_adapter

SIZES: Final[dict[str, Any]] = {"max_model_len": LONGEST, "kv_cache_memory": 2 << 20, "batch_invariant": True}
_KEPT_ENGINES: Final = 24
_MOST_TURNS: Final = 20_000


class Models:
    """Tiny checkpoints, and engines over them, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: OrderedDict[bytes, LocalEngine] = OrderedDict()
        self._alone: dict[bytes, tuple[Outcome, PromptDone | None]] = {}

    def folder_of(self, name: str) -> Path:
        folder = self._folder / name
        if not (folder / "made").exists():
            folder.mkdir(parents=True, exist_ok=True)
            model = SOURCES[name].make(folder)
            for number in range(1, NUM_ADAPTERS + 1):
                targets = ALL if number == 1 else ("q_proj", "down_proj")
                try:
                    save_adapter(model, folder / f"adapter-{number}", number, targets=targets)
                except (AssertionError, AttributeError):  # its modules have other names
                    break
            (folder / "made").touch()
        return folder

    def adapter(self, name: str, number: int) -> AdapterRef | None:
        path = self.folder_of(name) / f"adapter-{number}"
        return AdapterRef(number, str(number), str(path)) if number and path.exists() else None

    def near(self, name: str) -> Path:
        """The same model with some noise, so that it is right about as often as not."""
        folder = self.folder_of(name) / SOURCES[name].folder
        near = folder / "near"
        if not near.exists():
            near.mkdir()
            for described in ("config.json", "hf_quant_config.json"):
                if (folder / described).exists():
                    (near / described).write_bytes((folder / described).read_bytes())
            generator = torch.Generator().manual_seed(3)
            for file in folder.glob("*.safetensors"):
                noisy = {
                    name: weight + 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
                    if weight.dim() > 1 and weight.dtype == torch.float32
                    else weight
                    for name, weight in load_file(file).items()
                }
                save_file(noisy, near / file.name, {"format": "pt"})
            index = folder / "model.safetensors.index.json"
            if index.exists():
                (near / index.name).write_bytes(index.read_bytes())
        return near

    def config(self, setting: Setting) -> WorkerConfig:
        source, root = SOURCES[setting.model], self.folder_of(setting.model)
        folder = root / source.folder
        speculative = None
        if setting.drafts in ("itself", "near"):
            draft = folder if setting.drafts == "itself" else self.near(setting.model)
            speculative = SpeculativeConfig("draft_model", setting.depth, model=str(draft))
        elif setting.drafts == "head":
            assert source.head is not None
            head = "" if source.head == "mtp" else str(root / "head")
            speculative = SpeculativeConfig(source.head, setting.depth, model=head)
        elif setting.drafts == "suffix":
            speculative = SpeculativeConfig("suffix", setting.depth)
        elif setting.drafts:
            speculative = SpeculativeConfig("ngram", setting.depth, prompt_lookup_min=1)
        fields = {
            **SIZES,
            "max_model_len": min(LONGEST, source.longest),
            **setting.numerics,
            **setting.worker,
            "speculative": speculative,
        }
        return model_config(folder, **fields)

    def engine(self, config: WorkerConfig) -> LocalEngine:
        """Raises what a worker raises that refuses to start so."""
        key = msgspec.json.encode(config)
        engine = self._engines.pop(key, None) or LocalEngine(
            config, set_up_ranks(config) if config.group_size > 1 else None
        )
        self._engines[key] = engine
        if len(self._engines) > _KEPT_ENGINES:
            self._engines.popitem(last=False)
        return engine

    def alone(self, setting: Setting, ask: Ask, seed: int) -> tuple[Outcome, PromptDone | None]:
        """What one sequence gets of an engine with nothing else to do."""
        plain: dict[str, Any] = {"threads": 1}
        adapter = self.adapter(setting.model, ask.adapter)
        if adapter is not None and setting.worker.get("enable_lora"):
            plain |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": 4}
        if ask.params.routed_experts is not None:
            plain["return_routed_experts"] = True
        config = self.config(Setting(model=setting.model, numerics=setting.numerics, worker=plain))
        params = replace(ask.params, num_drafts=None)
        key = msgspec.json.encode((config, ask.prompt, ask.media, params, seed, ask.grammar, ask.thinking, ask.adapter))
        if key not in self._alone:
            engine = self.engine(config)
            reorder(engine, reordered=False)
            engine.restart(engine.ready.num_blocks, prefix_cache=False)
            given = brought(setting.model, ask.prompt, ask.media)
            rid = engine.submit(
                given.tokens,
                params,
                [seed],
                audio=given.audio,
                media=given.media,
                adapter=adapter,
                constraints=constraints_of(setting, replace(ask, seeds=[seed])),
            )
            engine.run()
            self._alone[key] = engine.outcomes[rid, 0], engine.prompts.get(rid)
        return self._alone[key]


def constraints_of(
    setting: Setting, ask: Ask, outputs: Sequence[Sequence[int]] | None = None
) -> list[TokenConstraint | None] | None:
    """What its sequences follow, after these tokens; None if they follow nothing."""
    grammar = str(ask.grammar) if ask.grammar else ""
    submit = Submit(0, ask.prompt, ask.params, ask.seeds, 0, "", 0.0, grammar=grammar, thinking=ask.thinking)
    if not is_constrained(submit):
        return None
    vocab = SOURCES[setting.model].vocab
    sets = ParameterSets(ask.params, vocab, [2])
    found: list[TokenConstraint | None] = []
    for index in range(len(ask.seeds)):
        budget = None if ask.thinking is None else ThinkingBudget(ask.thinking)
        constraint = TokenConstraint(sets, WideMatcher(vocab, ask.grammar) if ask.grammar else None, budget)
        for token in [] if outputs is None else outputs[index]:
            constraint.accept(token)
        found.append(constraint)
    return found


def computes_of(engine: LocalEngine) -> list[Any]:
    """What computes its steps, by rank."""
    runner: Any = engine.runner
    found: list[Any] = getattr(runner, "computes", None) or [runner.compute]
    return found


def reorder(engine: LocalEngine, *, reordered: bool) -> None:
    """See :attr:`.cases.Setting.reordered`."""
    for compute in computes_of(engine):
        compute._pass._expands = reordered


@dataclass
class Report:
    """What came of a case."""

    refused: str = ""
    """Why the worker does not start so; nothing ran."""
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def play(case: Case, models: Models) -> Report:
    """Runs a case, and compares each sequence with what it gets alone."""
    setting = case.setting
    try:
        engine = models.engine(models.config(setting))
    except Exception as error:  # judged by the caller
        return Report(refused=f"{type(error).__name__}: {error}")
    run = _CaseRun(case, models, engine)
    try:
        run.play()
    except Exception as error:  # no request may do that
        run.forget()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Report(problems=[f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"])
    return Report(problems=run.problems(), counts=run.counts())


class _CaseRun:
    """A case as it is played: its requests, events and what became of them."""

    def __init__(self, case: Case, models: Models, engine: LocalEngine) -> None:
        self.case, self.models, self.engine = case, models, engine
        setting = case.setting
        self.alone = {
            (number, index): models.alone(setting, ask, seed)
            for number, ask in enumerate(case.asks)
            for index, seed in enumerate(ask.seeds)
        }
        self.given = [brought(setting.model, ask.prompt, ask.media) for ask in case.asks]
        reorder(engine, reordered=setting.reordered)
        engine.restart(self._blocks(), prefix_cache=setting.prefix_cache, limits=setting.limits, aging=setting.aging)
        self.rids: dict[int, int] = {}
        self.aborted: set[tuple[int, int]] = set()
        self.paused_until = -1
        if setting.drafts in ("ngram", "oracle"):
            self._propose()

    def _blocks(self) -> int:
        setting, ready = self.case.setting, self.engine.ready
        if setting.spare < 0:
            return ready.num_blocks
        size = ready.limits.block_size
        groups = max(1, sum(group.is_paged for group in ready.groups))
        lengths = [
            len(given.tokens) + ask.params.max_tokens for given, ask in zip(self.given, self.case.asks, strict=True)
        ]
        longest = min(ready.max_model_len, max(lengths))
        least = groups * (-(-longest // size))
        return max(1, min(ready.num_blocks, round(least * (1 + setting.spare))))

    def _propose(self) -> None:
        """Each rank proposes the same."""
        for compute in computes_of(self.engine):
            drafting = compute._drafting
            own = drafting._own_proposer = getattr(drafting, "_own_proposer", drafting._proposer)
            drafting._proposer = own
            if self.case.setting.drafts == "oracle":
                texts = [
                    self.given[number].tokens + self.alone[number, index][0].tokens
                    for number, _, index in self._sequences()
                ]
                drafting._proposer = Oracle(texts, self.case.setting.wrong)

    def _sequences(self) -> list[tuple[int, Ask, int]]:
        return [(number, ask, index) for number, ask in enumerate(self.case.asks) for index in range(len(ask.seeds))]

    def play(self) -> None:
        engine, case = self.engine, self.case
        last = max([ask.at for ask in case.asks] + [event.at for event in case.events])
        for turn in range(_MOST_TURNS):
            for number, ask in enumerate(case.asks):
                if ask.at == turn:
                    self._submit(number, ask)
            for event in case.events:
                if event.at == turn:
                    self._happen(event.kind, turn)
            for number, ask in enumerate(case.asks):
                if ask.aborted_at == turn:
                    self._abort(number, ask)
            ahead = 0 if turn < self.paused_until else case.setting.ahead
            went_on = engine.turn(ahead=ahead)
            engine.scheduler.check_integrity()
            if not went_on and turn >= last and ahead:
                break
        else:
            raise AssertionError(f"still running after {_MOST_TURNS} turns")
        stats = engine.scheduler.stats()
        assert stats.free_blocks == engine.scheduler._kv_cache.pool.num_blocks, "blocks are kept of what has ended"
        assert not stats.running, "rows are kept of what has ended"
        assert not stats.waiting, "something waits that nothing is planned for"

    def forget(self) -> None:
        """What is left is no start of a next run."""
        models = self.models
        for key in [key for key, each in models._engines.items() if each is self.engine]:
            del models._engines[key]

    def _submit(self, number: int, ask: Ask) -> None:
        given: Brought = self.given[number]
        self.rids[number] = self.engine.submit(
            given.tokens,
            ask.params,
            ask.seeds,
            ask.salt,
            audio=given.audio,
            media=given.media,
            adapter=self.models.adapter(self.case.setting.model, ask.adapter),
            constraints=constraints_of(self.case.setting, ask),
            priority=ask.priority,
        )

    def _abort(self, number: int, ask: Ask) -> None:
        rid = self.rids.get(number)
        if rid is None:
            return
        indices = range(len(ask.seeds)) if ask.aborted_index < 0 else [min(ask.aborted_index, len(ask.seeds) - 1)]
        self.aborted.update((number, index) for index in indices)
        self.engine.abort(rid, -1 if ask.aborted_index < 0 else indices[0])

    def _happen(self, kind: Kind, turn: int) -> None:
        engine, case = self.engine, self.case
        match kind:
            case "worker_dies":
                engine.lose_worker()
            case "sleep":
                while engine.scheduler.in_flight:
                    engine.turn(ahead=0)
                engine.lose_worker()
            case "engine_dies":
                asks = {rid: case.asks[number] for number, rid in self.rids.items()}
                engine.lose_engine(lambda rid, outputs: constraints_of(case.setting, asks[rid], outputs))
            case "reset_prefix_cache":
                engine.scheduler.reset_prefix_cache()
            case "recompute":
                engine.scheduler.reset_prefix_cache()
                engine.scheduler.recompute()
            case "pause":
                self.paused_until = turn + 5

    def problems(self) -> list[str]:
        found = []
        for number, ask, index in self._sequences():
            why = self._differs(number, ask, index)
            if why:
                found.append(f"request {number}.{index}: {why}")
        return found

    def _differs(self, number: int, ask: Ask, index: int) -> str:
        ours = self.engine.outcomes[self.rids[number], index]
        theirs, prompt = self.alone[number, index]
        end, expected = ours.finished, theirs.finished
        assert expected is not None
        if end is None:
            return "it has no end"
        length = len(ours.tokens)
        if end.reason == "abort" or _is_blamed(end):
            if end.reason == "abort" and (number, index) not in self.aborted:
                return "it was aborted by nobody"
            told: tuple[Any, Any] = theirs.tokens[:length], theirs.logprobs[:length]
            return "" if (ours.tokens, ours.logprobs) == told else f"{ours.tokens} is no beginning of {theirs.tokens}"
        if ours.tokens != theirs.tokens:
            same = next(
                (at for at, (one, other) in enumerate(zip(ours.tokens, theirs.tokens, strict=False)) if one != other),
                min(length, len(theirs.tokens)),
            )
            return f"from token {same} on {ours.tokens[same:]}, alone {theirs.tokens[same:]} ({end})"
        if (end.reason, end.stop_token, end.fault) != (expected.reason, expected.stop_token, expected.fault):
            return f"it ended by {end}, alone by {expected}"
        if ours.logprobs != theirs.logprobs:
            at = next(
                at for at, pair in enumerate(zip(ours.logprobs, theirs.logprobs, strict=False)) if pair[0] != pair[1]
            )
            return f"log-probabilities of token {at} are {ours.logprobs[at]}, alone {theirs.logprobs[at]}"
        if ours.experts != theirs.experts:
            return f"experts: {len(ours.experts)} bytes, alone {len(theirs.experts)}"
        done = self.engine.prompts.get(self.rids[number])
        if (done is None) != (prompt is None):
            return f"its prompt: {done}, alone {prompt}"
        if done is not None and prompt is not None and done.logprobs != prompt.logprobs:
            return f"log-probabilities of its prompt are {done.logprobs}, alone {prompt.logprobs}"
        return ""

    def counts(self) -> dict[str, int]:
        stats = self.engine.scheduler.stats()
        outcomes = self.engine.outcomes.values()
        return {
            "sequences": len(outcomes),
            "tokens": sum(len(each.tokens) for each in outcomes),
            "preemptions": stats.preemptions,
            "hits": stats.prefix_hits,
            "host hits": stats.host_hits,
            "drafted": stats.num_draft_tokens,
            "accepted": sum(stats.accepted_by_position),
            "aborted": sum(each.finished is not None and each.finished.reason == "abort" for each in outcomes),
            "errors": sum(each.finished is not None and each.finished.reason == "error" for each in outcomes),
            "events": len(self.case.events),
        }


def _is_blamed(end: Finished) -> bool:
    """Whether it was taken for what kills workers."""
    return end.reason == "error" and not end.fault and "ended the worker process" in (end.message or "")
