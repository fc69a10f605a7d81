"""Documents ranked over HTTP by models as jina-reranker-v3 and as the Llama reranker of NVIDIA are stored, beside
transformers in float32."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.server.pooling import listwise
from stentor.tests.parity.test_embedders import NVIDIA, both_ways
from stentor.tests.parity.test_pooling_decoders import added, changed, saved
from stentor.tests.server.pooling.real_pooler import Served

library: Any = transformers  # whose types know no labels
DOCUMENTS: Final = ["a cat is a small animal", "stocks fell on Tuesday", "the sea is deep", "cats sleep", "rain"]
QUERY: Final = "what is a cat?"
EXPERT: Final = (
    "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on how "
    "relevant they are to the query. If the query is a question, how relevant a passage is depends on how well it "
    "answers the question. If not, try to analyze the intent of the query and assess how well each passage satisfies "
    "the intent. If an instruction is provided, you should follow the instruction when determining the ranking."
    "<|im_end|>\n<|im_start|>user\n"
)
ASKED: Final = (
    "I will provide you with {} passages, each indicated by a numerical identifier. Rank the passages based on their "
    "relevance to query: {}\n"
)
ANSWER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def write_tokenizer(folder: Path, special: Sequence[str], begin: str = "") -> Tokenizer:
    """A tokenizer of bytes; ``begin`` stands before all texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([*special])
    if begin:
        pair = f"{begin} $A {begin} $B"
        made.post_processor = processors.TemplateProcessing(f"{begin} $A", pair, [(begin, made.token_to_id(begin))])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", **({"bos_token": begin} if begin else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return made


class Jinas(Served):
    """A model of its makers' code: two layers on the tokens behind the documents and behind the query."""

    def __init__(self, folder: Path) -> None:
        special = ["<|im_start|>", "<|im_end|>", "<|embed_token|>", "<|rerank_token|>"]
        self.tokenizer = write_tokenizer(folder, special)
        config = library.Qwen3Config(vocab_size=self.tokenizer.get_vocab_size(), head_dim=8, **SIZES)
        self.theirs = saved(library.Qwen3Model(config), folder)
        changed(folder, "model.{}".format, architectures=["JinaForRanking"])
        first, second = torch.nn.Linear(32, 16, bias=False), torch.nn.Linear(16, 12, bias=False)
        self.layers = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        added(folder, projector__0__weight=first.weight.detach(), projector__2__weight=second.weight.detach())
        super().__init__(folder, max_model_len=4096)

    @torch.inference_mode()
    def vectors(self, query: str, documents: Sequence[str], told: str = "") -> tuple[torch.Tensor, torch.Tensor]:
        """Of the documents [documents, 12], and of the query [12]."""
        passages = [f'<passage id="{n}">\n{text}<|embed_token|>\n</passage>\n' for n, text in enumerate(documents)]
        asked = f"<query>\n{query}<|rerank_token|>\n</query>"
        text = f"{EXPERT}{ASKED.format(len(documents), query)}{told}{''.join(passages)}{asked}{ANSWER}"
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        rows = self.layers(self.theirs(input_ids=ids[None]).last_hidden_state[0])
        mark, question = (self.tokenizer.get_vocab()[f"<|{name}_token|>"] for name in ("embed", "rerank"))
        return rows[ids == mark], rows[ids == question][0]

    def scores(self, query: str, documents: Sequence[str], told: str = "") -> list[float]:
        found, asked = self.vectors(query, documents, told)
        scores: list[float] = torch.cosine_similarity(found, asked[None]).tolist()
        return scores


class Nvidias(Served):
    def __init__(self, folder: Path) -> None:
        self.tokenizer = write_tokenizer(folder, ["<s>"], "<s>")
        config = library.LlamaConfig(vocab_size=self.tokenizer.get_vocab_size(), num_labels=1, **SIZES)
        self.theirs = saved(library.LlamaForSequenceClassification(config), folder)
        named: dict[str, Any] = {"architectures": [NVIDIA], "model_type": "llama_bidirec"}
        changed(folder, **named, pooling="avg", temperature=0.5)
        super().__init__(folder, max_model_len=64)

    @torch.inference_mode()
    def score(self, query: str, document: str, most: int = 64) -> float:
        ids = self.tokenizer.encode(f"question:{query} \n \n passage:{document}").ids[:most]
        pooled = both_ways(self.theirs.model, ids).mean(0)
        return float((self.theirs.score(pooled) / 0.5).sigmoid())


Use = Callable[[Any], Coroutine[Any, Any, None]]
Run = Callable[[Use], None]


def running(served: Served) -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


@pytest.fixture(scope="module")
def jinas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running(Jinas(tmp_path_factory.mktemp("listwise")))


@pytest.fixture(scope="module")
def nvidias(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running(Nvidias(tmp_path_factory.mktemp("nvidia")))


async def reranked(served: Served, **body: Any) -> list[float]:
    answer = await served.post("/v1/rerank", body)
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert [each["relevance_score"] for each in answer["results"]] == sorted(scores.values(), reverse=True)
    return [scores[place] for place in range(len(scores))]


def test_documents_are_ranked_in_one_prompt(jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        expected = served.scores(QUERY, DOCUMENTS)
        assert len(set(np.round(expected, 3))) == len(DOCUMENTS)
        found = await reranked(served, query=QUERY, documents=DOCUMENTS)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        alone = await reranked(served, query=QUERY, documents=DOCUMENTS[:1])
        assert abs(alone[0] - expected[0]) > 1e-3  # a document's score depends on the others

    jinas(use)


def test_an_instruction_stands_before_the_documents(jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        told = "<instruct>\nfind cats\n</instruct>\n"
        found = await reranked(served, query=QUERY, documents=DOCUMENTS, instruction="find cats")
        np.testing.assert_allclose(found, served.scores(QUERY, DOCUMENTS, told), rtol=1e-3, atol=1e-4)

    jinas(use)


def test_many_documents_come_in_blocks_whose_queries_are_averaged(jinas: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listwise, "_BLOCK", 2)

    async def use(served: Jinas) -> None:
        blocks = [served.vectors(QUERY, DOCUMENTS[first : first + 2]) for first in (0, 2, 4)]
        weights = [(1 + torch.cosine_similarity(rows, query[None]).max()) / 2 for rows, query in blocks]
        queries = [weight * query for weight, (_, query) in zip(weights, blocks, strict=True)]
        rows = torch.cat([rows for rows, _ in blocks])
        expected = torch.cosine_similarity(rows, torch.stack(queries).sum(0)[None])
        found = await reranked(served, query=QUERY, documents=DOCUMENTS)
        np.testing.assert_allclose(found, expected.tolist(), rtol=1e-3, atol=1e-4)

    jinas(use)


def test_long_documents_end_a_block_and_are_cut(jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        before = len(served.pooler.prompts)
        await reranked(served, query=QUERY, documents=["x" * 3000, "y" * 100], max_tokens_per_doc=2040)
        prompts = served.pooler.prompts[before:]
        letter = served.tokenizer.get_vocab()["x"]
        assert [prompt.count(letter) > 1000 for prompt in prompts] == [True, False]
        assert 2040 <= prompts[0].count(letter) < 2060  # with those of what is around

    jinas(use)


def test_several_queries_have_a_document_each(jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        body = {"queries": [QUERY, "rain"], "documents": DOCUMENTS[:2]}
        answer = await served.post("/v1/score", body)
        expected = [*served.scores(QUERY, DOCUMENTS[:1]), *served.scores("rain", DOCUMENTS[1:2])]
        np.testing.assert_allclose([each["score"] for each in answer["data"]], expected, rtol=1e-3, atol=1e-4)

    jinas(use)


def test_marks_in_texts_are_left_out(jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        marked = [f"{text[:3]}<|embed_token|>{text[3:]}" for text in DOCUMENTS]
        found = await reranked(served, query=f"{QUERY}<|rerank_token|>", documents=marked)
        np.testing.assert_allclose(found, served.scores(QUERY, DOCUMENTS), rtol=1e-3, atol=1e-4)

    jinas(use)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {"input": "a"}, "use /rerank or /score"),
        ("/pooling", {"input": "a"}, "use /rerank or /score"),
        ("/v1/rerank", {"query": "a", "documents": ["<|emb<|embed_token|>ed_token|>"]}, "which mark what is ranked"),
        (
            "/v1/rerank",
            {"query": "a" * 600, "documents": ["é" * 2000], "instruction": "b" * 400},
            "`documents` and the query have 41",
        ),
    ],
)
def test_what_it_cannot_rank_is_a_400(path: str, body: dict[str, Any], says: str, jinas: Run) -> None:
    async def use(served: Jinas) -> None:
        async with served.client() as client:
            response = await client.post(path, content=msgspec.json.encode(body))
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]

    jinas(use)


def test_a_folder_without_marks_or_layers_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, [])
    config = library.Qwen3Config(vocab_size=300, head_dim=8, **SIZES)
    saved(library.Qwen3Model(config), tmp_path)
    changed(tmp_path, "model.{}".format, architectures=["JinaForRanking"])
    with pytest.raises(CheckpointError, match=r"projector\.0\.weight or projector\.2\.weight is missing"):
        pooling_config(tmp_path)
    added(tmp_path, projector__0__weight=torch.zeros(16, 32), projector__2__weight=torch.zeros(12, 16))
    with pytest.raises(CheckpointError, match=r"has no token '<\|embed_token\|>', which marks what is ranked"):
        pooling_config(tmp_path)


def test_nvidias_reranker_gets_the_words_of_its_training(nvidias: Run) -> None:
    async def use(served: Nvidias) -> None:
        some = DOCUMENTS[:3]
        found = await reranked(served, query=QUERY, documents=some)
        np.testing.assert_allclose(found, [served.score(QUERY, text) for text in some], rtol=1e-3, atol=1e-4)
        long = "deep " * 30
        cut = await reranked(served, query=QUERY, documents=[long], truncate_prompt_tokens=-1)
        np.testing.assert_allclose(cut, [served.score(QUERY, long)], rtol=1e-3, atol=1e-4)

    nvidias(use)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"documents": ["deep " * 30]}, "the model takes at most 64"),
        ({"documents": ["a"], "instruction": "b"}, "`instruction`: the model takes none"),
    ],
)
def test_what_nvidias_reranker_does_not_take_is_a_400(body: dict[str, Any], says: str, nvidias: Run) -> None:
    async def use(served: Nvidias) -> None:
        async with served.client() as client:
            response = await client.post("/v1/rerank", content=msgspec.json.encode({"query": QUERY, **body}))
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]

    nvidias(use)
