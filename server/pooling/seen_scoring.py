"""Scores of a query and documents of which some hold more than text."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from stentor.protocols.common.errors import refused
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.pooling.contents import Content, plain_text

from ..media.collect import collect_media
from .model import EmbeddingModel
from .pairs import SEEN_PAIRS, PairRules, bounded_content, read_pair
from .purposes import adapter_of, prompt_of
from .reading import WITH_MEDIA, Prompt, read_content, side_by_side
from .running import PoolingJob
from .scoring import cosines, late_interaction, marked

T = TypeVar("T")
Named = tuple[Content, str]
"""Content, and its field."""


async def scores_of_seen(
    model: EmbeddingModel,
    job: PoolingJob,
    queries: Sequence[Content],
    documents: Sequence[Content],
    rules: PairRules,
    fields: tuple[str, str],
) -> list[float]:
    """A score for each document, whose media the model reads, with the only query or that in its place.

    Few documents, with their processed media, are in memory at a time. Raises as :func:`.scoring.scores_of`.
    """
    first, second = _named(fields[0], queries), _named(fields[1], documents)
    for content, where in (*first, *second):
        collect_media([{"role": "user", "content": content}], model.accepted, where)  # refuses unsupported media
    first = [(await bounded_content(model, each, rules.most_query), where) for each, where in first]
    second = [(await bounded_content(model, each, rules.most_document), where) for each, where in second]
    match model.compares:
        case "together" if model.pair_form in SEEN_PAIRS:

            async def read_both(place: int) -> Prompt:
                query, _ = first[place if len(first) > 1 else 0]
                return await read_pair(model, query, *second[place], rules)

            task = Pooling("classify", activate=rules.activate)
            found = await _pooled(job, range(len(second)), read_both, task, fields[1])
            return [memoryview(each.data).cast("f")[0] for each in found]
        case "vectors":
            sides = []
            for named, purpose, field in ((first, "query", fields[0]), (second, "document", fields[1])):
                task = Pooling("embed", adapter=adapter_of(model.config, purpose))
                sides.append(await _pooled(job, named, _reader(model, rules, purpose), task, field))
            return await anyio.to_thread.run_sync(cosines, sides[0], sides[1])
        case "tokens":
            asked = await _pooled(job, first, _late_reader(model, rules, is_query=True), _TOKENS, fields[0])
            scores: list[float] = []
            read = _late_reader(model, rules, is_query=False)
            for start in range(0, len(second), WITH_MEDIA):
                prompts = await side_by_side(read, second[start : start + WITH_MEDIA])
                found = await job.run(prompts, _TOKENS, fields[1])
                queried = asked if len(asked) == 1 else asked[start : start + WITH_MEDIA]
                kept = [range(each.rows) for each in found]
                scores += await anyio.to_thread.run_sync(late_interaction, queried, found, kept)
            return scores
        case _:
            raise refused(fields[1], "the model compares texts alone", "unsupported")


_TOKENS = Pooling("token_embed")


def _named(field: str, contents: Sequence[Content]) -> list[Named]:
    return [(each, f"{field}[{place}]" if len(contents) > 1 else field) for place, each in enumerate(contents)]


def _reader(model: EmbeddingModel, rules: PairRules, purpose: str) -> Callable[[Named], Awaitable[Prompt]]:
    """For an embedding model: texts are read in the same way as pictures, so that their vectors are comparable."""
    prompt = prompt_of(model.config, purpose)

    async def read(named: Named) -> Prompt:
        return await read_content(model, rules.reading, *named, prompt)

    return read


def _late_reader(model: EmbeddingModel, rules: PairRules, *, is_query: bool) -> Callable[[Named], Awaitable[Prompt]]:
    async def read(named: Named) -> Prompt:
        content, where = named
        if (text := plain_text(content)) is None:
            return await read_content(model, rules.reading, content, where)
        (prompt,) = await marked(model, [text], rules, where, is_query=is_query)
        return prompt

    return read


async def _pooled(
    job: PoolingJob, given: Sequence[T], read: Callable[[T], Awaitable[Prompt]], wanted: Pooling, field: str
) -> list[Pooled]:
    found: list[Pooled] = []
    for start in range(0, len(given), WITH_MEDIA):
        found += await job.run(await side_by_side(read, given[start : start + WITH_MEDIA]), wanted, field)
    return found
