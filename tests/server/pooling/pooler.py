"""A tokenizer as BERT's, an engine that makes numbers of tokens, and models and servers of the two."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec.structs import replace
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from stentor.engine.channel.arena import Arena
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.media import Media, MediaStore
from stentor.engine.client.request import EngineRequest
from stentor.engine.model_config.encoders.hf import encoder_config_from_hf
from stentor.engine.model_config.encoders.pooling import PoolingConfig, ScoreHead
from stentor.engine.model_config.encoders.sentence import Normalized, SentenceModules
from stentor.protocols.ipc.actors import EngineEvent, EngineReady, Finished, PromptDone, Stats
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.server.app.state import ServerState
from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel
from stentor.server.pooling.affix_tokens import affix_tokens_of, pair_affix_tokens_of
from stentor.server.pooling.model import EmbeddingModel
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.fakes import FakeEngine, fake_state

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", ".", "query", "title")
CLS, SEP = 1, 2
A = WORDS.index("a")
DIMENSIONS = 8
LENGTH = 16
NAME = "vectors"


def backend(*, roberta: bool = False) -> Backend:
    made = Backend(models.WordLevel({word: id for id, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if roberta else "[CLS] $A [SEP] $B:1 [SEP]:1"
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, [("[CLS]", CLS), ("[SEP]", SEP)])
    made.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    return made


def vector_of(ids: Sequence[int], pooling: Pooling) -> list[float]:
    """Eight numbers that depend on all of it, not of length 1."""
    digest = hashlib.sha256(repr((list(ids), pooling.task, pooling.skip, pooling.second)).encode()).digest()
    return [byte / 64 - 1.9 for byte in digest[: pooling.dimensions or DIMENSIONS]]


def pooled_of(ids: Sequence[int], pooling: Pooling, labels: int) -> Pooled:
    rows: list[list[float]] = []
    match pooling.task:
        case "embed":
            begins = [pooling.skip, *pooling.parts]
            rows = [vector_of(ids[begin:end], pooling) for begin, end in zip(begins, pooling.parts, strict=False)]
            rows = rows or [vector_of(ids, pooling)]
        case "token_embed":
            rows = [vector_of([id], pooling) for id in ids]
        case "classify":
            rows = [[(sum(ids) % (7 + label)) / (7 + label) for label in range(labels)]]
        case "token_classify":
            rows = [[id / 64 for _ in range(labels)] for id in ids]
        case "sparse":
            found = sorted(set(ids))
            weights = np.array([id / 2 for id in found], "<f4").tobytes()
            return Pooled(1, len(found), weights, np.array(found, "<u4").tobytes())
    return Pooled(len(rows), len(rows[0]), np.array(rows, "<f4").tobytes())


class PoolStream:
    """One prompt: its numbers and its end come at once, when its turn has come."""

    def __init__(self, engine: "FakePooler", rid: int, prompt: list[int], pooling: Pooling) -> None:
        self.prompt = prompt
        self.pooling = pooling
        self.aborted = False
        self.read = False
        self._engine = engine
        self._rid = rid

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        if self.read:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        await self._engine.gate.wait()
        self.read = True
        if self._engine.failing is not None and self._rid >= self._engine.failing:
            return [Finished(self._rid, 0, "error", None, "0xdeadbeef in /srv/secret/worker.py")]
        pooled = pooled_of(self.prompt, self.pooling, self._engine.labels)
        return [PromptDone(self._rid, 0, 0.5, 0.25, None, None, pooled), Finished(self._rid, 0, "stop", None, None)]

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def abort(self, index: int = -1) -> None:
        self.aborted = True
        self.read = True


class FakePooler:
    """Takes the place of the engine client; streams wait while :attr:`gate` is closed."""

    def __init__(self, *, max_model_len: int = 512, labels: int = 1) -> None:
        self.ready: EngineReady | None = EngineReady(64, 16, max_model_len, [], [])
        self.failure: str | None = None
        self.stalled: str | None = None
        self.engine_restarts = 0
        self.stats = Stats(1, 2, 0.5, 3, 40, 30, 5, 32)
        self.labels = labels
        self.failing: int | None = None
        """The number of the first request that the engine cannot finish."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.streams: list[PoolStream] = []
        self.priorities: list[int] = []
        self.salts: list[str] = []
        self.adapters: list[AdapterRef | None] = []
        self.media: list[list[Media]] = []
        """Of each prompt."""
        self.store = MediaStore(Arena())

    def submit(self, request: EngineRequest) -> PoolStream:
        if self.failure is not None or self.ready is None:
            raise EngineUnavailable(self.failure or "starting")
        pooling = request.pooling
        assert pooling is not None
        assert (request.params.max_tokens, len(request.seeds)) == (0, 1)
        assert 0 <= pooling.skip < len(request.prompt)
        self.priorities.append(request.priority)
        self.salts.append(request.salt)
        self.adapters.append(request.adapter)
        self.media.append(list(request.media))
        if request.media:
            self.store.place(len(self.streams), request.media, 0)
            self.store.released([len(self.streams)])
        self.streams.append(PoolStream(self, len(self.streams), request.prompt, pooling))
        return self.streams[-1]

    @property
    def live(self) -> int:
        return sum(not stream.read for stream in self.streams)

    @property
    def prompts(self) -> list[list[int]]:
        return [stream.prompt for stream in self.streams]


BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": len(WORDS),
    "hidden_size": DIMENSIONS,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 16,
    "max_position_embeddings": LENGTH,
    "hidden_act": "gelu",
}


def config(**fields: Any) -> PoolingConfig:
    made = PoolingConfig(encoder_config_from_hf(BERT), SentenceModules(("mean",), after=(Normalized(),)), DIMENSIONS)
    return replace(made, **fields)


class Adapted(PoolingConfig, frozen=True):
    """With adapters, whatever its backbone."""

    adapters = ("retrieval.query", "code")


def scores(*labels: str) -> ScoreHead:
    return ScoreHead("cls", "classifier", labels, "sigmoid" if len(labels) == 1 else "softmax")


def model_of(
    engine: FakePooler, config: PoolingConfig, *, roberta: bool = False, template: str | None = None, **fields: Any
) -> EmbeddingModel:
    tokenizer = Tokenizer(backend(roberta=roberta), {}, template)
    return EmbeddingModel(
        (NAME,),
        engine,
        TokenizerPool(tokenizer),
        config,
        affix_tokens_of(tokenizer),
        pair_affix_tokens_of(tokenizer),
        **fields,
    )


def state_of(model: EmbeddingModel, **fields: Any) -> ServerState:
    """A server with a chat model, ``fake/model``, and this one."""
    models = [ServedModel("chat", ("fake/model",)), ServedModel("embedding", model.served_names)]
    fields = {"registry": ModelRegistry(models), **fields}
    runners: dict[ModelRole, Any] = {"embedding": model.client}
    return fake_state(FakeEngine(), runners=runners, embedding=model, **fields)


def minilm() -> Path:
    from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model

    return resolve_model(DEMO_EMBEDDING_MODEL)
