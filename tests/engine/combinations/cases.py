"""What is combined: a model, how it is served, requests, and what happens among them."""

import random
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.actors import Thinking
from stentor.protocols.ipc.sampling import NoRepeat, SamplingParams
from stentor.tests.engine.combinations.checkpoints import NUM_MEDIA, SOURCES

LONGEST: Final = 96
"""Of a sequence."""
NUM_ADAPTERS: Final = 2
Drafts = Literal["", "ngram", "suffix", "oracle", "itself", "near", "head"]
"""``oracle`` proposes what the plain engine drew, some of it wrong; ``near`` is the model itself with noise; ``head``
is its checkpoint's."""
Kind = Literal["worker_dies", "engine_dies", "sleep", "reset_prefix_cache", "recompute", "pause"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is served."""

    model: str
    """Of :data:`.checkpoints.SOURCES`."""
    numerics: dict[str, Any] = {}
    """Fields of the worker's configuration that change results. The plain engine has them too."""
    worker: dict[str, Any] = {}
    """Fields that must change nothing."""
    drafts: Drafts = ""
    depth: int = 3
    """Drafts of a row, at most."""
    wrong: float = 0.2
    """How much of what ``oracle`` proposes."""
    prefix_cache: bool = True
    spare: float = 1.0
    """Blocks of the pool beyond those of the longest sequence, as a part of these; negative: all that there are."""
    limits: dict[str, int] = {}
    """Of a step."""
    aging: float = 10.0
    ahead: int = 2
    """Steps in flight, at most."""
    reordered: bool = False
    """Whether a pass runs prompts that are long behind other rows, as where their products expand coded weights."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    prompt: list[int]
    media: list[int] = []
    """Numbers of the pictures among its first tokens, or of the text that an encoder gets."""
    params: SamplingParams
    seeds: list[int]
    at: int = 0
    """The turn before which it comes."""
    priority: int = 0
    salt: str = ""
    adapter: int = 0
    """Its number; 0: none."""
    grammar: int = 0
    """The seed of one; 0: none."""
    thinking: Thinking | None = None
    aborted_at: int = -1
    """The turn; -1: it is not."""
    aborted_index: int = -1


class Event(msgspec.Struct, frozen=True):
    at: int
    """The turn."""
    kind: Kind


class Case(msgspec.Struct, frozen=True, kw_only=True):
    setting: Setting
    asks: list[Ask]
    events: list[Event] = []


def draw_setting(rng: random.Random, models: Sequence[str], split: float = 0.0) -> Setting:
    """One of very many, each with some of what can be turned on. ``split``: how often several workers have a model."""
    model = rng.choice(list(models))
    source = SOURCES[model]
    worker: dict[str, Any] = {
        "block_size": rng.choice([16, 16, 32, 48]),
        "max_num_seqs": rng.choice([1, 2, 3, 5, 8, 16, 16]),
        "threads": rng.choice([1, 1, 2]),
    }
    if rng.random() < 0.3:
        worker["kv_offloading_size"] = rng.choice([256 << 10, 1 << 20])
    answers = source.beside == "text"
    if rng.random() < 0.25 and not answers:
        worker |= {"enable_lora": True, "max_loras": rng.choice([1, 2]), "max_lora_rank": 4}
    drafts: Drafts = rng.choice(["", "", "ngram", "suffix", "oracle", "oracle", "itself", "near"])
    if source.head is not None and rng.random() < 0.7:
        drafts = "head"
    if answers:
        drafts = ""
    if not drafts and not answers and rng.random() < 0.3:
        worker["return_routed_experts"] = True
    numerics: dict[str, Any] = {}
    if rng.random() < 0.25:
        numerics["kv_cache_dtype"] = rng.choice(["int8", "fp8", "bfloat16", "float16"])
    if rng.random() < 0.15:
        numerics["mamba_cache_dtype"] = rng.choice(["bfloat16", "float16"])
    if rng.random() < split:
        worker["pipeline_parallel_size"] = 2
    elif rng.random() < split:
        numerics["tensor_parallel_size"] = 2
    limits = {
        "max_num_batched_tokens": rng.choice([1, 3, 8, 17, 32, 64, 256]),
        "max_mixed_prefill_tokens": rng.choice([1, 5, 16, 256]),
        "max_prefill_chunk": rng.choice([1, 4, 7, 16, 32, 256]),
        "max_admitted_tokens": rng.choice([0, 0, 1, 8]),
    }
    for name in ("max_num_batched_tokens", "max_prefill_chunk"):
        limits[name] = max(limits[name], source.least_step)
    return Setting(
        model=model,
        numerics=numerics,
        worker=worker,
        drafts=drafts,
        depth=rng.choice([1, 2, 3, 5, 8]),
        wrong=rng.choice([0.0, 0.1, 0.3, 0.6]),
        prefix_cache=rng.random() < 0.8,
        spare=rng.choice([0.0, 0.0, 0.3, 0.3, 1.0, -1.0]),
        limits=limits,
        aging=rng.choice([0.0, 0.01, 10.0]),
        ahead=rng.choice([1, 2, 2, 2]),
        reordered=rng.random() < 0.3,
    )


def draw_asks(rng: random.Random, setting: Setting, most: int = 16) -> list[Ask]:
    """Whose prompts begin alike, so that they meet in the prefix cache."""
    words = SOURCES[setting.model].words
    stems = [_tokens(rng, LONGEST, words) for _ in range(rng.choice([1, 2, 3]))]
    stems.append(_tokens(rng, 3, words) * (LONGEST // 3))
    last = rng.choice([1, 1, 10, 40])
    return [_draw_ask(rng, setting, stems, rng.randrange(last)) for _ in range(rng.randint(1, most))]


def draw_events(rng: random.Random) -> list[Event]:
    kinds: list[Kind] = ["worker_dies", "engine_dies", "sleep", "reset_prefix_cache", "recompute", "pause"]
    if rng.random() < 0.4:
        return []
    return [Event(rng.randrange(1, 60), rng.choice(kinds)) for _ in range(rng.randint(1, 4))]


def draw(seed: int, models: Sequence[str]) -> Case:
    rng = random.Random(seed)
    setting = draw_setting(rng, models)
    return Case(setting=setting, asks=draw_asks(rng, setting), events=draw_events(rng))


def _tokens(rng: random.Random, count: int, words: int) -> list[int]:
    return [rng.randrange(3, words) for _ in range(count)]


def _draw_ask(rng: random.Random, setting: Setting, stems: Sequence[list[int]], at: int) -> Ask:
    source = SOURCES[setting.model]
    length = rng.choice([0, 1, 4, 15, 16, 17, 31, 32, 33, 48])
    prompt = rng.choice(list(stems))[:length] + _tokens(rng, rng.choice([0, 0, 1, 3, 12]), source.words)
    prompt = prompt or _tokens(rng, 1, source.words)
    media: list[int] = []
    if source.beside:
        media = [rng.randrange(NUM_MEDIA) for _ in range(1 if source.beside == "text" else rng.choice([0, 1, 1, 2]))]
    params = draw_params(rng, setting)
    thinking = None
    if rng.random() < 0.12:
        begin, end = rng.sample(range(5, 30), 2), rng.sample(range(5, 30), rng.choice([1, 2, 3]))
        thinking = Thinking(rng.choice([0, 1, 3, 9]), begin[: rng.choice([0, 1, 1, 2])], end, rng.random() < 0.6)
    count = rng.choice([1, 1, 1, 1, 2, 3, 4])
    return Ask(
        prompt=prompt,
        media=media,
        params=params,
        seeds=[rng.getrandbits(64) for _ in range(count)],
        at=at,
        priority=rng.choice([0, 0, 0, -3, 7]),
        salt=rng.choice(["", "", "", "other"]),
        adapter=rng.choice([0, 1, 2]) if setting.worker.get("enable_lora") else 0,
        grammar=rng.randrange(1, 100) if rng.random() < 0.15 else 0,
        thinking=thinking,
        aborted_at=at + rng.randrange(40) if rng.random() < 0.1 else -1,
        aborted_index=rng.choice([-1, *range(count)]),
    )


def draw_params(rng: random.Random, setting: Setting) -> SamplingParams:
    def some(value: Any, otherwise: Any, chance: float = 0.12) -> Any:
        return value if rng.random() < chance else otherwise

    vocab = SOURCES[setting.model].vocab
    few = tuple(rng.sample(range(5, vocab), rng.choice([2, 3, 8, 40])))
    narrow = few if rng.random() < 0.3 else None
    words = narrow or tuple(range(5, 30))
    logprobs = some(rng.choice([0, 1, 5, 20]), None, 0.35)
    named = tuple(rng.sample(range(vocab), 3)) if logprobs and rng.random() < 0.2 else ()
    return SamplingParams(
        max_tokens=rng.choice([1, 2, 5, 12, 24, 48]),
        min_tokens=some(rng.choice([1, 4, 11]), 0),
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 1.7]),
        top_k=some(rng.choice([1, 2, 40]), 0),
        top_p=some(rng.choice([0.3, 0.9]), 1.0),
        min_p=some(0.05, 0.0),
        repetition_penalty=some(rng.choice([0.8, 1.3]), 1.0),
        presence_penalty=some(rng.choice([-0.5, 0.6]), 0.0),
        frequency_penalty=some(rng.choice([-0.3, 0.4]), 0.0),
        eos_token_ids=some(words[:2] if rng.random() < 0.5 else tuple(range(30, 60)), (), 0.3),
        stop_token_ids=some(words[2:3] if rng.random() < 0.5 else tuple(range(60, 80)), (), 0.3),
        logit_bias=some(((7, 4.0), (9, -3.0)), ()),
        allowed_token_ids=narrow,
        banned_token_ids=some(words[1:2], ()) if narrow is None or len(narrow) > 3 else (),
        banned_sequences=some(((words[0], words[1]), (words[1], words[0], words[0])), ()),
        logprobs=len(named) if named else logprobs,
        logprob_token_ids=named,
        prompt_logprobs=some(rng.choice([0, 2]), None, 0.15),
        routed_experts=rng.choice([None, 0, 0, 1]) if setting.worker.get("return_routed_experts") else None,
        num_drafts=some(rng.choice([0, 1]), None),
        processed_logprobs=some(True, False),
        logits=some(True, False, 0.05),
        no_repeat=NoRepeat(2, 20, words[:1]) if rng.random() < 0.08 else None,
    )


# ---- smaller ones


def smaller(case: Case) -> list[Case]:
    """Cases with one thing less, those that lack most first."""
    found: list[Case] = []
    asks, events, setting = case.asks, case.events, case.setting
    half = len(asks) // 2
    if half:
        found += [replace(case, asks=asks[:half]), replace(case, asks=asks[half:])]
    if len(asks) > 1:
        found += [replace(case, asks=asks[:index] + asks[index + 1 :]) for index in range(len(asks))]
    found += [replace(case, events=events[:index] + events[index + 1 :]) for index in range(len(events))]
    found += [replace(case, setting=each, asks=_fitting(asks, each)) for each in _simpler_settings(setting)]
    least = int(SOURCES[setting.model].beside == "text")
    for index, ask in enumerate(asks):
        found += [replace(case, asks=[*asks[:index], each, *asks[index + 1 :]]) for each in _simpler_asks(ask, least)]
    found += [
        replace(case, events=[*events[:index], Event(event.at // 2, event.kind), *events[index + 1 :]])
        for index, event in enumerate(events)
        if event.at > 1
    ]
    return found


def _fitting(asks: Sequence[Ask], setting: Setting) -> list[Ask]:
    """The requests without what the worker would not be started for."""
    found = list(asks)
    if not setting.worker.get("enable_lora"):
        found = [replace(ask, adapter=0) for ask in found]
    if not setting.worker.get("return_routed_experts"):
        found = [replace(ask, params=replace(ask.params, routed_experts=None)) for ask in found]
    return found


def _simpler_settings(setting: Setting) -> list[Setting]:
    found = [
        replace(setting, **{name: {key: value for key, value in getattr(setting, name).items() if key != dropped}})
        for name in ("numerics", "worker", "limits")
        for dropped in getattr(setting, name)
    ]
    simplest = replace(Setting(model=setting.model), prefix_cache=False, spare=-1.0)
    for name in ("drafts", "depth", "wrong", "prefix_cache", "spare", "aging", "ahead", "reordered"):
        if getattr(setting, name) != getattr(simplest, name):
            found.append(replace(setting, **{name: getattr(simplest, name)}))
    return found


def _simpler_asks(ask: Ask, least_media: int) -> list[Ask]:
    found = [replace(ask, **{name: value}) for name, value in _NEUTRAL.items() if getattr(ask, name) != value]
    if len(ask.seeds) > 1:
        found += [replace(ask, seeds=ask.seeds[:1]), replace(ask, seeds=ask.seeds[1:])]
    if len(ask.media) > least_media:
        found += [replace(ask, media=ask.media[1:]), replace(ask, media=ask.media[:-1])]
    if any(ask.media):
        found.append(replace(ask, media=[0] * len(ask.media)))
    if ask.at:
        found.append(replace(ask, at=ask.at // 2))
    if len(ask.prompt) > 1:
        half = len(ask.prompt) // 2
        found += [replace(ask, prompt=ask.prompt[:half]), replace(ask, prompt=ask.prompt[:-1])]
    plain = SamplingParams(max_tokens=ask.params.max_tokens)
    for field in msgspec.structs.fields(SamplingParams):
        neutral = getattr(plain, field.name)
        if field.name != "temperature" and getattr(ask.params, field.name) != neutral:
            found.append(replace(ask, params=replace(ask.params, **{field.name: neutral})))
    if ask.params.temperature:
        found.append(replace(ask, params=replace(ask.params, temperature=0.0)))
    for fewer in {ask.params.max_tokens // 2, ask.params.max_tokens - 1} - {0}:
        found.append(replace(ask, params=replace(ask.params, max_tokens=fewer)))
    return found


_NEUTRAL: Final[dict[str, Any]] = {
    **{"at": 0, "priority": 0, "salt": "", "adapter": 0, "grammar": 0},
    **{"thinking": None, "aborted_at": -1},
}
