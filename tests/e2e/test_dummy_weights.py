"""A model of which there is only a description: made-up weights, and tokens that are written as numbers."""

import json
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from stentor.loadtest.server_process import ServerProcess

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.mark.proof  # others serve descriptions; tests/engine/quantization/test_checkpoints.py has such a cache
def test_a_description_alone_is_served_with_a_float8_cache(folder: Path) -> None:
    arguments = ["--load-format", "dummy", "--kv-cache-dtype", "fp8", "--kv-cache-memory", "8MiB"]
    with ServerProcess([str(folder), "--served-model-name", "made-up", *arguments]) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)
        rules: dict[str, Any] = {"model": "made-up", "max_tokens": 6, "temperature": 0}
        whole = client.completions.create(prompt=[5, 6, 7], **rules, extra_body={"return_token_ids": True})
        (choice,) = whole.choices
        tokens = (choice.model_extra or {})["token_ids"]
        assert len(tokens) == 6
        assert [int(word) for word in choice.text.split()] == tokens
        as_text = client.completions.create(prompt="5 6 7", **rules)
        assert as_text.choices[0].text == choice.text
        stream = client.completions.create(prompt=[5, 6, 7], **rules, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == choice.text
        with pytest.raises(openai.BadRequestError, match="no default chat template"):
            client.chat.completions.create(model="made-up", messages=[{"role": "user", "content": "5"}])


@pytest.mark.proof  # the refusal itself: tests/engine/quantization/test_checkpoints.py
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_only_a_gpu_can_do_is_refused_in_one_line(folder: Path) -> None:
    command = ServerProcess([str(folder), "--load-format", "dummy", "--quantization", "fp8"]).command
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("stentor: ")]
    assert len(said) == 1
    assert "the kernels for it run on CUDA, not on cpu" in said[0]
