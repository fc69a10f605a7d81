from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.worker.compute.runner import ModelRunner
from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

BERT: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def saved(model: Any, folder: Path) -> Any:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.eval().save_pretrained(folder)
    return model


def runner_of(folder: Path) -> ModelRunner[Any, Any]:
    config = WorkerConfig(str(folder), dtype="float32", threads=1, is_pooling=True)
    return set_up_on(config, lambda phase, done, total: None).runner


def step(number: int, *rows: tuple[list[int], Pooling]) -> StepPlan:
    none = SamplingParams(max_tokens=0)
    new = [NewRow(slot, text, len(text), none, 0, [], pooling=pooling) for slot, (text, pooling) in enumerate(rows)]
    freed = [] if number == 0 else list(range(len(rows)))
    return StepPlan(0, number, freed, new, [RowStep(row.slot, 0, row.prompt_len, [], False) for row in new])


def test_others_are_let_in_after_every_layer(tmp_path: Path) -> None:
    saved(transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False), tmp_path)
    runner = runner_of(tmp_path)
    breaths: list[None] = []
    assert runner.extras is not None
    runner.extras.yield_device = lambda: breaths.append(None)
    runner.step(step(0, ([5, 6, 7], Pooling("embed")), ([8], Pooling("embed"))))
    assert len(breaths) == 3


def test_the_two_texts_of_a_pair_are_told_apart(tmp_path: Path) -> None:
    theirs = saved(
        transformers.BertForSequenceClassification(transformers.BertConfig(**{**BERT, "num_labels": 1})), tmp_path
    )
    runner = runner_of(tmp_path)
    text = [1, 9, 8, 2, 33, 34, 2]
    plan = step(0, (text, Pooling("classify", second=4)), (text, Pooling("classify")), ([7], Pooling("embed")))
    made = [np.frombuffer(row.pooled.data, "<f4") for row in runner.step(plan).pooled]
    with torch.inference_mode():
        for types, found in (([0, 0, 0, 0, 1, 1, 1], made[0]), ([0] * 7, made[1])):
            expected = theirs(input_ids=torch.tensor([text]), token_type_ids=torch.tensor([types])).logits.sigmoid()
            np.testing.assert_allclose(found, expected[0].numpy(), atol=1e-5)
    assert len(made[2]) == 32


def test_parts_of_a_text_that_is_read_as_a_whole_have_a_vector_each(tmp_path: Path) -> None:
    theirs = saved(transformers.MPNetModel(transformers.MPNetConfig(**BERT), add_pooling_layer=False), tmp_path)
    text, other = [5, 6, 7, 8, 9, 10, 11], [12, 13]
    in_parts = Pooling("embed", normalize=False, skip=1, parts=(3, 6), dimensions=20)
    made = runner_of(tmp_path).step(step(0, (other, Pooling("embed", normalize=False)), (text, in_parts))).pooled
    whole, parts = (np.frombuffer(row.pooled.data, "<f4").reshape(row.pooled.rows, -1) for row in made)
    with torch.inference_mode():
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        expected = torch.stack([hidden[1:3].mean(0), hidden[3:6].mean(0)])
        alone = theirs(input_ids=torch.tensor([other])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(parts, expected.numpy()[:, :20], atol=1e-5)
    np.testing.assert_allclose(whole[0], alone.numpy(), atol=1e-5)


def test_a_text_of_which_the_last_token_is_read_may_begin_with_tokens_that_are_not_pooled(tmp_path: Path) -> None:
    config = transformers.Qwen2Config(**BERT, num_key_value_heads=2)
    saved(transformers.Qwen2Model(config), tmp_path)
    last, skipping = Pooling("embed", last=True), Pooling("embed", last=True, skip=2)
    one, other = runner_of(tmp_path).step(step(0, ([5, 6, 7], last), ([5, 6, 7], skipping))).pooled
    assert one.pooled.data == other.pooled.data


def test_a_slot_is_used_again(tmp_path: Path) -> None:
    saved(transformers.MPNetModel(transformers.MPNetConfig(**BERT), add_pooling_layer=False), tmp_path)
    runner = runner_of(tmp_path)
    long, short = ([9] * 40, Pooling("embed")), ([5, 6], Pooling("embed"))
    first = runner.step(step(0, long, short)).pooled
    second = runner.step(step(1, short, long)).pooled
    for one, other in ((first[0], second[1]), (first[1], second[0])):
        a, b = (np.frombuffer(row.pooled.data, "<f4") for row in (one, other))
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_reranker_whose_tokens_are_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    config = transformers.Qwen2Config(**BERT, num_key_value_heads=2, tie_word_embeddings=True)
    saved(transformers.Qwen2ForCausalLM(config), tmp_path)
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore/config.json").write_text('{"true_token_id": 130}')
    with pytest.raises(WeightError, match="the scores are of the tokens 130, expected such as are below 130"):
        runner_of(tmp_path)
