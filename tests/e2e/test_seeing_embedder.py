"""Vectors of pictures from a real server over a tiny vision model, against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai.types import CreateEmbeddingResponse

from stentor.loadtest.server_process import ServerProcess
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.e2e.made_up import EXACT
from stentor.tests.server.pooling.test_media_http import theirs_of, user
from stentor.tests.support.metrics import metric
from stentor.tests.support.vision_models import qwen3_vl

pytestmark = pytest.mark.proof  # one process: server/pooling/test_media_http.py

NAME = "embeds"


def test_a_folder_of_sentence_transformers_that_sees_is_served_as_an_embedder(tmp_path: Path) -> None:
    theirs = qwen3_vl(tmp_path)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    arguments = [str(tmp_path), *EXACT, "--served-model-name", NAME, "--kv-cache-memory", "64MiB"]
    with (
        ServerProcess(arguments) as server,
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        body: dict[str, Any] = {"model": NAME, "messages": [user("small", "what is this?")]}
        twice = [client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body) for _ in range(2)]
        hits = metric(server.port, "mm_cache_hits_total")
    given = ModelProcessor(tmp_path)._processor.apply_chat_template(
        [{"role": "user", "content": [theirs_of("small"), theirs_of("what is this?")]}],
        chat_template=(tmp_path / "chat_template.jinja").read_text(),
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        last = theirs.model(**given).last_hidden_state[0, -1]
    for answer in twice:
        np.testing.assert_allclose(answer.data[0].embedding, (last / last.norm()).numpy(), rtol=1e-4, atol=1e-4)
    assert hits == 1
