"""Vectors and scores for programs: results, and their requests."""

import array
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

Prompt = str | list[int]

_TEXTS: Final = 256
"""Texts of one request."""


class EmbeddingOutput(msgspec.Struct, frozen=True, kw_only=True):
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


class EmbeddingRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one text."""

    outputs: EmbeddingOutput
    request_id: str
    finished: bool = True


class ClassificationOutput(msgspec.Struct, frozen=True, kw_only=True):
    probs: list[float]
    label: str | None
    """Label of the likeliest class."""

    @property
    def num_classes(self) -> int:
        return len(self.probs)


class ClassificationRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    outputs: ClassificationOutput
    request_id: str
    finished: bool = True


class ScoringOutput(msgspec.Struct, frozen=True, kw_only=True):
    score: float


class ScoringRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    outputs: ScoringOutput
    request_id: str
    finished: bool = True


class PoolingOutput(msgspec.Struct, frozen=True, kw_only=True):
    data: Any
    """A list of numbers, one a token, or weights by the ids of tokens."""


class PoolingRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    outputs: PoolingOutput
    request_id: str
    finished: bool = True


def bodies(prompts: Sequence[Prompt], fields: dict[str, Any]) -> Iterator[bytes]:
    """Requests for all of them, in order; texts and token ids go apart."""
    start = 0
    while start < len(prompts):
        end = start + 1
        kind = isinstance(prompts[start], str)
        while end < min(len(prompts), start + _TEXTS) and isinstance(prompts[end], str) is kind:
            end += 1
        yield msgspec.json.encode({**fields, "input": prompts[start:end]})
        start = end


def vectors(body: dict[str, Any]) -> list[EmbeddingRequestOutput]:
    """From a response of ``/v1/embeddings`` in base64."""
    return [
        EmbeddingRequestOutput(
            outputs=EmbeddingOutput(embedding=_floats(each["embedding"])), request_id=_id(body, each)
        )
        for each in body["data"]
    ]


def classes(body: dict[str, Any]) -> list[ClassificationRequestOutput]:
    return [
        ClassificationRequestOutput(
            outputs=ClassificationOutput(probs=each["probs"], label=each["label"]), request_id=_id(body, each)
        )
        for each in body["data"]
    ]


def scores(body: dict[str, Any]) -> list[ScoringRequestOutput]:
    return [
        ScoringRequestOutput(outputs=ScoringOutput(score=each["score"]), request_id=_id(body, each))
        for each in body["data"]
    ]


def pooled(body: dict[str, Any]) -> list[PoolingRequestOutput]:
    return [
        PoolingRequestOutput(outputs=PoolingOutput(data=each["data"]), request_id=_id(body, each))
        for each in body["data"]
    ]


def _id(body: dict[str, Any], each: dict[str, Any]) -> str:
    """Of one text of a request."""
    return f"{body['id']}-{each['index']}"


def _floats(text: str) -> list[float]:
    return array.array("f", binascii.a2b_base64(text)).tolist()
