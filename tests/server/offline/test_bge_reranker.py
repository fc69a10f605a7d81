"""A reranker as BGE's on Gemma, with random weights: it scores by the logit of Yes, as FlagEmbedding reads it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import stentor
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.server.offline.fields import RequestRefused
from stentor.server.offline.llm import LLM

QUERY: Final = "what is a cat?"
DOCUMENTS: Final = ("a cat is a small animal", "stocks fell sharply on Tuesday", "", "the sea " * 20)
QUESTION: Final = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
BOS: Final = 2
LENGTH: Final = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import GemmaConfig, GemmaForCausalLM

    path = tmp_path_factory.mktemp("models--BAAI--bge-reranker-v2-gemma") / "snapshots" / "0123abcd"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([*DOCUMENTS, QUERY, QUESTION, "Yes " * 20], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", BOS)])
    config = GemmaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=LENGTH,
        initializer_range=0.2,
    )
    torch.manual_seed(7)
    GemmaForCausalLM(config).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with stentor.LLM(str(folder), dtype="float32") as loaded:
        yield loaded


def theirs(folder: Path, pairs: list[tuple[str, str]], question: str = QUESTION, most: int = LENGTH) -> Any:
    """The logit of Yes behind ``<bos> A: query, a new line, B: passage, a new line, the question``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    (yes,) = ids("Yes")
    between, asked = ids("\n"), ids(question)
    found = []
    for query, passage in pairs:
        before, after = [BOS, *ids(f"A: {query}"), *between], [*between, *asked]
        given = [*before, *ids(f"B: {passage}")[: most - len(before) - len(after)], *after]
        with torch.inference_mode():
            found.append(float(model(input_ids=torch.tensor([given])).logits[0, -1, yes]))
    return np.array(found)


def scored(llm: LLM, query: str, documents: list[str], **options: Any) -> Any:
    return np.array([each.outputs.score for each in llm.score(query, documents, **options)])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_pairs_are_scored_by_the_logit_of_yes(llm: LLM, folder: Path) -> None:
    expected = theirs(folder, [(QUERY, document) for document in DOCUMENTS])
    assert np.ptp(expected) > 0.01, "or it would show nothing"
    assert np.abs(scored(llm, QUERY, [*DOCUMENTS]) - sigmoid(expected)).max() < 1e-5
    raw = scored(llm, QUERY, [*DOCUMENTS], use_activation=False)
    assert np.abs(raw - expected).max() < 1e-4


def test_an_instruction_is_what_the_model_is_asked(llm: LLM, folder: Path) -> None:
    expected = theirs(folder, [(QUERY, DOCUMENTS[0])], "Is B about A? Say 'Yes' or 'No'.")
    raw = scored(llm, QUERY, [DOCUMENTS[0]], instruction="Is B about A? Say 'Yes' or 'No'.", use_activation=False)
    assert np.abs(raw - expected).max() < 1e-4


def test_of_what_is_too_long_the_document_is_cut(llm: LLM, folder: Path) -> None:
    long = "the sea is deep " * 90
    with pytest.raises(RequestRefused, match=r"together with the query \d+ tokens; the model takes at most 256"):
        scored(llm, QUERY, [long])
    expected = theirs(folder, [(QUERY, long)])
    raw = scored(llm, QUERY, [long], truncate_prompt_tokens=-1, use_activation=False)
    assert np.abs(raw - expected).max() < 1e-4
    with pytest.raises(RequestRefused, match=r"which leaves none of 256 for a document"):
        scored(llm, long, [QUERY], truncate_prompt_tokens=-1)


def test_a_tokenizer_without_the_word_is_told(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "bge-reranker-v2-gemma"
    other.mkdir()
    (other / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"tokenizer\.json, by which the model says 'Yes', cannot be read"):
        pooling_config(other)
    (other / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"No": 3}}}))
    with pytest.raises(CheckpointError, match="has no token 'Yes', whose logit is the score"):
        pooling_config(other)
