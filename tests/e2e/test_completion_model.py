"""A model of text alone, as vLLM's first examples serve: it completes, and has no chat template."""

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from stentor.loadtest.server_process import ServerProcess
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.tests.parity import tiny

PROMPT = [5, 6, 7, 8, 9]


@pytest.mark.proof(
    each="name"
)  # the parts: tests/parity/test_architectures.py, tests/server/text/test_chat_template.py
@pytest.mark.parametrize("name", ["gpt2", "falcon-mamba", "jamba"])
@torch.inference_mode()
def test_it_completes_as_transformers_does_and_says_what_chat_needs(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    Tokenizer(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, [])).save(f"{tmp_path}/tokenizer.json")
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, min_new_tokens=8, do_sample=False)[0]
    arguments = ["--served-model-name", "tiny", "--dtype", "float32", "--kv-cache-memory", "8MiB"]
    with ServerProcess([str(tmp_path), *arguments]) as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)
        more: dict[str, Any] = {"return_token_ids": True, "min_tokens": 8}
        whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, extra_body=more)
        assert (whole.choices[0].model_extra or {})["token_ids"] == expected[len(PROMPT) :].tolist()
        with pytest.raises(openai.BadRequestError, match=r"no default chat template\..* /v1/completions"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "5"}])
