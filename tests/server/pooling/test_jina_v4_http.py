"""jina-embeddings-v4 over HTTP, whose tasks have adapters in one file, beside transformers' Qwen2.5-VL with these
merged in. Prompts and pooling are put around it by hand, as its makers' code has them."""

import asyncio
import base64
import copy
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.server.pooling.purposes import adapter_of, prompt_of
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.real_pooler import RealPooler, Served
from stentor.tests.support import vision_models
from stentor.tests.support.vision_models import PATCH, qwen2_5_vl, token

transformers: Any = untyped_transformers

TASKS: Final = ("retrieval", "text-matching", "code")
RANK, ALPHA, OUTPUTS, HIDDEN = 4, 6, 24, 64
ADAPTED: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PAGE: Final = "<|im_start|>user\n<|vision_start|>{0}<|vision_end|>Describe the image.<|im_end|>\n"
SIZES: Final = ((40, 30), (30, 40))
WEIGHTS, CONFIG = "adapters/adapter_model.safetensors", "adapters/adapter_config.json"


class Adapted(torch.nn.Module):
    """A Qwen2.5-VL with a layer on each token."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.layer = inner, torch.nn.Linear(HIDDEN, OUTPUTS)


def written(folder: Path) -> dict[str, Adapted]:
    """By task, the model with its adapter; in ``folder`` the model under its published names, and the adapters."""
    whole = qwen2_5_vl(folder)
    torch.manual_seed(3)
    plain = Adapted(whole.model).eval()
    tensors = {f"multi_vector_projector.{name}": each for name, each in plain.layer.state_dict().items()}
    for name, each in plain.inner.state_dict().items():
        tensors[f"model.{name.removeprefix('language_model.')}" if name.startswith("language_model.") else name] = each
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    described |= {
        **{"architectures": ["JinaEmbeddingsV4Model"], "task_names": TASKS, "matryoshka_dims": [16, 32, HIDDEN]},
        **{"single_vector_pool_strategy": "mean", "multi_vector_projector_dim": OUTPUTS},
    }
    (folder / "config.json").write_text(json.dumps(described))
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, temporal_patch_size=2, merge_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
    )
    vision_models.write_processor(folder, "JinaEmbeddingsV4Processor", images, "{{ messages }}")
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "path": "", "type": "custom_st.Transformer"}]))
    (folder / "adapters").mkdir()
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "exclude_modules": ".*visual.*"}
    (folder / CONFIG).write_text(json.dumps(adapter))
    models, matrices = {}, {}
    for task in TASKS:
        models[task] = copy.deepcopy(plain)
        for name, linear in models[task].named_modules():
            if not name.endswith((*ADAPTED, "layer")) or "visual" in name:
                continue
            stored = "multi_vector_projector" if name == "layer" else name.replace("inner.", "model.", 1)
            down, up = torch.randn(RANK, linear.in_features) * 0.2, torch.randn(linear.out_features, RANK) * 0.2
            matrices[f"base_model.model.{stored}.lora_A.{task}.weight"] = down
            matrices[f"base_model.model.{stored}.lora_B.{task}.weight"] = up
            linear.weight.data += ALPHA / RANK * up @ down
    save_file(matrices, folder / WEIGHTS)
    return models


class Jina(Served):
    def __init__(self, folder: Path) -> None:
        self.theirs = written(folder)
        super().__init__(folder)

    @torch.inference_mode()
    def states(self, task: str, text: str, size: tuple[int, int] | None = None) -> tuple[list[int], torch.Tensor]:
        """The tokens of a text or of a page, and their hidden states."""
        given: dict[str, Any] = {}
        if size is not None:
            images = transformers.Qwen2VLImageProcessorPil.from_pretrained(str(self.model_folder))
            given = dict(images(picture(*size), return_tensors="pt"))
            text = PAGE.format(int(given["image_grid_thw"].prod()) // 4 * "<|image_pad|>")
        ids = self.model.pool.tokenizer.encode(text, False)
        given["mm_token_type_ids"] = torch.tensor([[int(each == token("<|image_pad|>")) for each in ids]])
        made = self.theirs[task].inner(input_ids=torch.tensor([ids]), **given).last_hidden_state[0]
        return ids, made

    @property
    def model_folder(self) -> Path:
        return Path(self.pooler.engine.config.model)

    def vector(self, task: str, text: str, size: tuple[int, int] | None = None, dimensions: int = HIDDEN) -> Any:
        ids, states = self.states(task, text, size)
        if size is not None:
            states = states[ids.index(token("<|vision_start|>")) : ids.index(token("<|vision_end|>")) + 1]
        return torch.nn.functional.normalize(states.mean(0)[:dimensions], dim=-1).numpy()

    @torch.inference_mode()
    def vectors(self, task: str, text: str, size: tuple[int, int] | None = None) -> torch.Tensor:
        made: torch.Tensor = torch.nn.functional.normalize(self.theirs[task].layer(self.states(task, text, size)[1]))
        return made

    def run(self, use: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner() as runner:
            runner.run(use())


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jina]:
    served = Jina(tmp_path_factory.mktemp("jina"))
    yield served
    served.close()


def url(size: tuple[int, int]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(*size)).decode()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_texts_and_pictures_have_one_vector_of_their_task(jina: Jina) -> None:
    expected = {
        None: ("retrieval", "Query: where?"),
        "retrieval.query": ("retrieval", "Query: where?"),
        "retrieval.passage": ("retrieval", "Passage: where?"),
        "text-matching": ("text-matching", "Query: where?"),
        "code.passage": ("code", "Passage: where?"),
    }

    async def use() -> None:
        for purpose, (task, text) in expected.items():
            given = [{"text": "where?"}, {"image": url(SIZES[0])}]
            answer = await jina.post("/v1/embeddings", {"input": given, "task": purpose})
            found = [each["embedding"] for each in answer["data"]]
            close(found[0], jina.vector(task, text))
            close(found[1], jina.vector(task, "", SIZES[0]))
        plain = await jina.post("/v1/embeddings", {"input": "where?", "task": "code.query", "dimensions": 16})
        close(plain["data"][0]["embedding"], jina.vector("code", "Query: where?", dimensions=16))

    jina.run(use)


def test_tokens_have_vectors_by_the_layer_of_their_task(jina: Jina) -> None:
    async def use() -> None:
        seen = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url(SIZES[1])}}]}]
        page = await jina.post("/pooling", {"messages": seen, "task": "token_embed"})
        close(page["data"][0]["data"], jina.vectors("retrieval", "", SIZES[1]))
        asked = {"input": "where?", "task": "token_embed", "prompt_name": "code.passage"}
        text = await jina.post("/pooling", asked)
        close(text["data"][0]["data"], jina.vectors("code", "Passage: where?"))

    jina.run(use)


def test_pages_and_texts_are_ranked_by_the_vectors_of_their_tokens(jina: Jina) -> None:
    async def use() -> None:
        answer = await jina.post(
            "/v1/rerank", {"query": "where?", "documents": [{"image": url(SIZES[0])}, "it is here"]}
        )
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        query = jina.vectors("retrieval", "Query: where?")
        told = jina.vectors("retrieval", "", SIZES[0]), jina.vectors("retrieval", "Passage: it is here")
        expected = [float((query @ each.T).amax(1).sum()) for each in told]
        np.testing.assert_allclose([found[0], found[1]], expected, rtol=1e-3)

    jina.run(use)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": "where?", "task": "separation.query"}, "task"),
        ({"input": "where?", "task": "code.nothing"}, "task"),
        ({"input": "where?", "dimensions": 20}, "dimensions"),
        ({"input": [{"image": url(SIZES[0]), "text": "a title"}]}, "input[0]"),
    ],
)
def test_what_it_was_not_made_for_is_refused(jina: Jina, body: dict[str, Any], field: str) -> None:
    async def use() -> None:
        async with jina.client() as client:
            response: httpx.Response = await client.post("/v1/embeddings", content=json.dumps(body))
        assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text

    jina.run(use)


def test_purposes_choose_an_adapter_and_a_prompt(jina: Jina) -> None:
    config = pooling_config(jina.model_folder)
    assert kind_of(jina.model_folder) == "embedding"
    assert config.adapters == TASKS
    chosen = {each: (adapter_of(config, each), prompt_of(config, each)) for each in ("STS", "code.query", "passage")}
    assert chosen == {
        "STS": ("text-matching", "Query: "),
        "code.query": ("code", "Query: "),
        "passage": ("", "Passage: "),
    }


def test_adapters_of_unknown_tasks_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({name.replace(".code.", ".other."): each for name, each in tensors.items()}, tmp_path / WEIGHTS)
    with pytest.raises(WeightError, match="of none of the tasks retrieval, text-matching, code"):
        RealPooler(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "task_names": ["code"]}))
    with pytest.raises(CheckpointError, match="adapters for code, expected retrieval among at most 16"):
        pooling_config(tmp_path)
