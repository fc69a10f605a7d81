"""Ranks documents that are read together, in one prompt with the query (jina-reranker-v3, arXiv:2509.25085)."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio

from stentor.protocols.common.errors import wrong
from stentor.protocols.ipc.pooling import Pooled, Pooling

from .model import EmbeddingModel
from .pairs import PairRules
from .reading import Prompt, cut, encode
from .running import PoolingJob

_MARKS: Final = ("<|embed_token|>", "<|rerank_token|>")
"""Behind each document and behind the query; texts lose them, as in the makers' code."""
_EXPERT: Final = (
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. "
    "If not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking."
)
"""Of the model's training, as all that is around the texts."""
_MOST_QUERY: Final = 512
_MOST_DOCUMENT: Final = 2048
_BLOCK: Final = 125
"""Documents of one prompt; these three are bounds of the makers' code."""


async def ranked(
    model: EmbeddingModel,
    job: PoolingJob,
    queries: Sequence[str],
    documents: Sequence[str],
    rules: PairRules,
    fields: tuple[str, str],
) -> list[float]:
    """A score of each document, from -1 to 1, among all that have its query: the only one, or that in its place.

    Long queries and documents are truncated. Raises BadRequest, and as :meth:`.running.PoolingJob.run`.
    """
    asked = await _shortened(model, queries, min(rules.most_query or _MOST_QUERY, _MOST_QUERY), fields[0])
    told = await _shortened(model, documents, min(rules.most_document or _MOST_DOCUMENT, _MOST_DOCUMENT), fields[1])
    instruction = "" if rules.instruction is None else _unmarked(rules.instruction, "instruction")
    if len(asked) > 1:
        blocks = [(query, [document]) for query, document in zip(asked, told, strict=True)]
    else:
        blocks = [(asked[0], block) for block in _blocks(told, rules.room.most - 2 * asked[0][1])]
    prompts = []
    written = [_prompt(query[0], [text for text, _ in block], instruction) for query, block in blocks]
    for place, ids in enumerate(await encode(model, written, special=True)):
        if len(ids) > rules.room.most:
            where = f"{fields[1]}[{place}]" if len(asked) > 1 else fields[1]
            raise wrong(
                where,
                f"and the query have {len(ids)} tokens in one prompt; the model takes at most {rules.room.most}. "
                "Shorten them with `max_tokens_per_doc`",
                "context_length_exceeded",
            )
        prompts.append(Prompt(ids))
    found = await job.run(prompts, Pooling("token_embed"), fields[1])
    if len(asked) > 1:
        return [score for each in found for score in await anyio.to_thread.run_sync(list_scores, [each])]
    return await anyio.to_thread.run_sync(list_scores, found)


def list_scores(blocks: Sequence[Pooled]) -> list[float]:
    """Cosines of the documents with the query, whose vectors of several blocks are averaged by how well the best of
    each block fits. The rows of a block are its documents, then the query."""
    import numpy as np  # late: a server starts without it

    rows = [np.frombuffer(each.data, "<f4").reshape(each.rows, each.columns) for each in blocks]
    weights = [(1.0 + _cosines(each[:-1], each[-1]).max()) / 2.0 for each in rows]
    total = sum(weights)
    query = sum(weight * each[-1] for weight, each in zip(weights, rows, strict=True)) / total if total else rows[0][-1]
    scores: list[float] = _cosines(np.concatenate([each[:-1] for each in rows]), query).tolist()
    return scores


def _cosines(rows: Any, query: Any) -> Any:
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return rows @ query / np.maximum(lengths, 1e-12)


async def _shortened(model: EmbeddingModel, texts: Sequence[str], most: int, field: str) -> list[tuple[str, int]]:
    """Each text without marks, and its tokens."""
    found = []
    for place, (text, ids) in enumerate(zip(texts, await encode(model, texts, special=False), strict=True)):
        kept = text if len(ids) < most else await model.pool.decode(cut(ids, most), skip_special_tokens=False)
        where = f"{field}[{place}]" if len(texts) > 1 else field
        found.append((_unmarked(kept, where), min(len(ids), most)))
    return found


def _unmarked(text: str, field: str) -> str:
    for mark in _MARKS:
        text = text.replace(mark, "")
    if any(mark in text for mark in _MARKS):
        raise wrong(field, f"must not hold {' or '.join(_MARKS)}, which mark what is ranked")
    return text


def _blocks(documents: Sequence[tuple[str, int]], room: int) -> Iterator[list[tuple[str, int]]]:
    """Documents of one prompt each, with room for another of any length."""
    block: list[tuple[str, int]] = []
    left = room
    for document in documents:
        block.append(document)
        left -= document[1]
        if len(block) >= _BLOCK or left <= _MOST_DOCUMENT:
            yield block
            block, left = [], room
    if block:
        yield block


def _prompt(query: str, documents: Sequence[str], instruction: str) -> str:
    passages = "\n".join(
        f'<passage id="{number}">\n{text}{_MARKS[0]}\n</passage>' for number, text in enumerate(documents)
    )
    told = f"<instruct>\n{instruction}\n</instruct>\n" if instruction else ""
    asked = (
        f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. Rank the "
        f"passages based on their relevance to query: {query}\n{told}{passages}\n<query>\n{query}{_MARKS[1]}\n</query>"
    )
    return (
        f"<|im_start|>system\n{_EXPERT}<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    )
