"""A model that makes vectors, from a program and from a file of requests."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL
from stentor.server.common.exit_codes import DONE
from stentor.server.offline import pooling
from stentor.server.offline.fields import RequestRefused
from stentor.server.offline.llm import LLM
from stentor.server.offline.run_batch import run_batch
from stentor.server.options.reading import read_config


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with stentor.LLM(DEMO_EMBEDDING_MODEL, dtype="float32") as loaded:
        yield loaded


def test_vectors_come_in_order_of_texts_and_token_ids(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["the sea", [101, 1996, 2712, 102], "once upon a time"]
    found = llm.embed(prompts)
    vectors = np.array([each.outputs.embedding for each in found])
    assert vectors.shape == (3, 384)
    assert len({each.request_id for each in found}) == 3
    assert all(each.finished for each in found)
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
    assert vectors[0] @ vectors[2] < 0.9
    (alone,) = llm.embed("the sea")
    assert np.abs(np.array(alone.outputs.embedding) - vectors[0]).max() < 1e-5
    (tokens,) = llm.encode("the sea", pooling_task="token_embed")
    assert np.array(tokens.outputs.data).shape == (4, 384)


def test_texts_are_scored_one_against_many(llm: LLM) -> None:
    near, far = llm.score("what is a cat?", ["a cat is a small animal", "stocks fell on Tuesday"])
    assert near.outputs.score > far.outputs.score


def test_what_the_model_does_not_do_is_refused_with_the_endpoint_s_words(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match="does not classify texts"):
        llm.classify("the sea")
    with pytest.raises(RequestRefused, match="needs a chat model"):
        llm.generate("the sea")
    with pytest.raises(RequestRefused, match="takes at most 256"):
        llm.embed("the sea " * 300)
    (cut,) = llm.embed("the sea " * 300, truncate_prompt_tokens=-1)
    assert len(cut.outputs.embedding) == cut.outputs.hidden_size == 384
    with pytest.raises(RequestRefused, match="`pooling_params` is not supported"):
        llm.embed("the sea", pooling_params=object())


def test_requests_hold_texts_or_token_ids_and_so_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_TEXTS", 2)
    made = [json.loads(body) for body in pooling.bodies(["a", "b", "c", [1], [2], "d"], {"task": "embed"})]
    assert [body["input"] for body in made] == [["a", "b"], ["c"], [[1], [2]], ["d"]]
    assert all(body["task"] == "embed" for body in made)


def test_a_file_of_requests_is_answered(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests = [
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/embeddings", "body": {"input": f"text {n}"}}
        for n in range(3)
    ]
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert run_batch(read_config({"model": DEMO_EMBEDDING_MODEL}, {}), source, target) == DONE
    answers = {line["custom_id"]: line["response"] for line in map(json.loads, target.read_text().splitlines())}
    assert answers.keys() == {"0", "1", "2"}
    assert all(len(each["body"]["data"][0]["embedding"]) == 384 for each in answers.values())
