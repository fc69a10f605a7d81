"""Scores of documents for a query, by the kind of the model."""

from collections.abc import Sequence
from typing import Any, Final

import anyio

from stentor.engine.model_config.encoders.pooling import QUERY
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.pooling import Pooled, Pooling

from .affix_tokens import AffixTokens
from .model import EmbeddingModel
from .pairs import PairRules, read_pairs
from .purposes import adapter_of, prompt_of
from .reading import LengthLimit, Prompt, cut, encode, read_texts
from .running import PoolingJob

_DOCUMENTS: Final = 64
"""Documents with token vectors in memory at a time; only a score of each is kept."""


async def scores_of(
    model: EmbeddingModel,
    job: PoolingJob,
    queries: Sequence[str],
    documents: Sequence[str],
    rules: PairRules,
    fields: tuple[str, str],
) -> list[float]:
    """One for each document, with the only query or that in its place; ``fields`` are those that have them.

    Raises BadRequest, and as :meth:`.running.PoolingJob.run`.
    """
    match model.compares:
        case "together":
            pairs = await read_pairs(model, queries, documents, rules, fields)
            found = await job.run(pairs, Pooling("classify", activate=rules.activate), fields[1])
            return [memoryview(each.data).cast("f")[0] for each in found]
        case "list":
            from .listwise import ranked  # late: a server starts without it

            return await ranked(model, job, queries, documents, rules, fields)
        case "vectors":
            first, second = await _by_purpose(model, queries, documents, rules, fields)
            config = model.config
            asking = Pooling("embed", adapter=adapter_of(config, "query"))
            answering = Pooling("embed", adapter=adapter_of(config, "document"))
            if asking == answering:
                vectors = await job.run([*first, *second], asking, fields[1])
            else:
                vectors = [*await job.run(first, asking, fields[0]), *await job.run(second, answering, fields[1])]
            return await anyio.to_thread.run_sync(cosines, vectors[: len(first)], vectors[len(first) :])
        case "weights":
            first, second = await _by_purpose(model, queries, documents, rules, fields)
            asking = Pooling("sparse", adapter=adapter_of(model.config, "query"))
            asked, told = await job.run(first, asking, fields[0]), await job.run(second, Pooling("sparse"), fields[1])
            return await anyio.to_thread.run_sync(products, asked, told, model.config.vocab_size)
        case "tokens":
            first = await marked(model, queries, rules, fields[0], is_query=True)
            second = await marked(model, documents, rules, fields[1], is_query=False)
            asked = await job.run(first, Pooling("token_embed"), fields[0])
            skipped = model.markers.skipped
            scores: list[float] = []
            for start in range(0, len(second), _DOCUMENTS):
                some = second[start : start + _DOCUMENTS]
                found = await job.run(some, Pooling("token_embed"), fields[1])
                queried = asked if len(asked) == 1 else asked[start : start + _DOCUMENTS]
                kept = [[place for place, token in enumerate(each.ids) if token not in skipped] for each in some]
                scores += await anyio.to_thread.run_sync(late_interaction, queried, found, kept)
            return scores
        case "":
            raise BadRequest(
                f"`{model.name}` does not score pairs: it is neither an embedder nor a reranker with one score.",
                "model",
                "model_not_supported",
            )


async def _by_purpose(
    model: EmbeddingModel,
    queries: Sequence[str],
    documents: Sequence[str],
    rules: PairRules,
    fields: tuple[str, str],
) -> tuple[list[Prompt], list[Prompt]]:
    sides = []
    for texts, purpose, most, field in (
        (queries, "query", rules.most_query, fields[0]),
        (documents, "document", rules.most_document, fields[1]),
    ):
        prompt = prompt_of(model.config, purpose)
        special = adapter_of(model.config, purpose) != QUERY
        room = LengthLimit(min(rules.room.most, most + special * model.ends.length), "right") if most else rules.room
        sides.append(await read_texts(model, texts, room, field, special=special, prompt=prompt))
    return sides[0], sides[1]


async def marked(
    model: EmbeddingModel, texts: Sequence[str], rules: PairRules, field: str, *, is_query: bool
) -> list[Prompt]:
    """Texts with the markers of late interaction; they are cut to the lengths that the model was trained with."""
    markers, ends = model.markers, model.ends
    if markers.picture:  # the texts around a picture include these
        ends = ends if markers.affixed else AffixTokens((), ())
        before, behind = markers.words if is_query else markers.around_document
        texts = [f"{before}{text}{behind}" for text in texts]
    marker = markers.query if is_query else markers.document
    length = markers.query_length if is_query else markers.document_length
    own = rules.most_query if is_query else rules.most_document
    special = ends.length + (marker is not None)
    prompts = []
    for place, ids in enumerate(await encode(model, texts, special=False)):
        inner = cut(ids, own) if own else ids
        if length:
            inner = cut(inner, max(1, length - special))
        marked = [*ends.before[:1], *(() if marker is None else (marker,)), *ends.before[1:], *inner, *ends.after]
        if is_query and markers.fill is not None:
            marked += [markers.fill] * (length - len(marked))
        where = f"{field}[{place}]" if len(texts) > 1 else field
        prompts.append(Prompt(rules.room.within(marked, ends, where)))
    return prompts


def matrix(pooled: Pooled) -> Any:
    """float32 [rows, columns]"""
    import numpy as np  # late: a server starts without it

    return np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns)


def cosines(first: Sequence[Pooled], second: Sequence[Pooled]) -> list[float]:
    """Cosine of each of ``second`` with the first of its index, or with the only one of ``first``."""
    import numpy as np

    left = np.concatenate([matrix(each) for each in first])
    right = np.concatenate([matrix(each) for each in second])
    products = (left * right).sum(axis=1)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosine: list[float] = (products / np.maximum(lengths, 1e-12)).tolist()
    return cosine


def products(first: Sequence[Pooled], second: Sequence[Pooled], vocabulary: int) -> list[float]:
    """Weights by token of each of ``second``, multiplied with those of the first of its index, or of the only one of
    ``first``, and summed. Ids of tokens are below ``vocabulary``."""
    import numpy as np

    scores = []
    known = np.zeros(vocabulary, "<f4")
    of = -1
    for place, document in enumerate(second):
        if of != (own := place if len(first) > 1 else 0):
            of = own
            known[:] = 0
            known[np.frombuffer(first[own].ids, "<u4")] = np.frombuffer(first[own].data, "<f4")
        scores.append(float(known[np.frombuffer(document.ids, "<u4")] @ np.frombuffer(document.data, "<f4")))
    return scores


def late_interaction(first: Sequence[Pooled], second: Sequence[Pooled], kept: Sequence[Sequence[int]]) -> list[float]:
    """For each query token, the similarity of the document's most similar token, summed (ColBERT, arXiv:2004.12832).

    ``kept`` are the rows of each document that count.
    """
    scores = []
    for place, document in enumerate(second):
        query = matrix(first[place if len(first) > 1 else 0])
        rows = matrix(document)[kept[place]]
        scores.append(float((query @ rows.T).max(axis=1).sum()) if len(rows) and len(query) else 0.0)
    return scores
