"""NVIDIA's embedder and reranker of pictures over HTTP, beside their makers' formula over transformers' modules."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.tests.parity.published_tiles import Tiled
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support.vision_models import BOS, PATCH, SIDE, SIZES, TEXT, randomised, token, write_tokenizer

transformers: Any = untyped_transformers

PLACE = "<IMG_CONTEXT>"
TILE_TOKENS = (SIDE // PATCH // 2) ** 2
PICTURES = {"small": (40, 30), "wide": (64, 20), "square": (16, 16)}
PASSAGE = "the year of the map"


def tiles_of(image: Image.Image, most: int) -> list[Image.Image]:
    """As many squares as distort the picture the least, and the whole if they are several."""
    grids = sorted(
        {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= most},
        key=lambda grid: grid[0] * grid[1],
    )
    ratio, area = image.width / image.height, image.width * image.height
    best, chosen = 0.0, (1, 1)
    for columns, rows in grids:
        near = min(columns / rows / ratio, ratio / (columns / rows))
        fit = min(columns * rows * SIDE * SIDE / area, 0.6) * near
        if fit > best:
            best, chosen = fit, (columns, rows)
    columns, rows = chosen
    whole = image.resize((columns * SIDE, rows * SIDE))
    squares = [(column * SIDE, row * SIDE) for row in range(rows) for column in range(columns)]
    tiles = [whole.crop((left, top, left + SIDE, top + SIDE)) for left, top in squares]
    return tiles if len(tiles) == 1 else [*tiles, image.resize((SIDE, SIDE))]


class Composed(torch.nn.Module):
    def __init__(self, labels: int) -> None:
        super().__init__()
        vision = {**SIZES, "patch_size": PATCH, "image_size": SIDE}
        self.vision = {**vision, "model_type": "siglip_vision_model"}
        self.text = transformers.LlamaConfig(**{**TEXT, "rms_norm_eps": 1e-5})
        self.tower, self.language_model = Tiled(vision, -1), transformers.LlamaModel(self.text)
        self.score = torch.nn.Linear(SIZES["hidden_size"], labels, bias=False) if labels else None


class Nemotron(Served):
    def __init__(self, folder: Path, *, labels: int = 0) -> None:
        self.theirs = randomised("nemotron", lambda: Composed(labels))
        kind = "ForSequenceClassification" if labels else "Model"
        written = {"max_input_tiles": 4, "processor_class": "LlamaNemotronVLProcessor"}
        (folder / "processor_config.json").write_text(json.dumps(written))
        inner = {**self.theirs.text.to_dict(), "model_type": "llama_bidirec", "pooling": "avg", "temperature": 0.5}
        inner["architectures"] = [f"LlamaBidirectional{kind}"]
        described = {
            **{"architectures": [f"LlamaNemotronVL{kind}"], "model_type": "llama_nemotron_vl"},
            **{"llm_config": inner, "vision_config": self.theirs.vision, "force_image_size": SIDE},
            **{"img_context_token_id": token(PLACE), "downsample_ratio": 0.5, "max_input_tiles": 2},
        }
        if labels:
            described |= {"model_type": "llama_nemotron_vl_rerank", "num_labels": labels}
        (folder / "config.json").write_text(json.dumps(described))
        before = "model." if labels else ""
        tensors = {}
        for name, tensor in self.theirs.state_dict().items():
            plain = name.removeprefix("tower.").replace("vision_model.vision_model.", "vision_model.")
            plain = plain if plain.startswith(("mlp1.", "vision_model.", "score.", "language_model.")) else ""
            assert plain, name
            tensors[plain if plain.startswith("score.") else before + plain] = tensor.clone()
        save_file(tensors, folder / "model.safetensors")
        write_tokenizer(folder, "", bos=True)
        super().__init__(folder, max_model_len=256)

    @torch.inference_mode()
    def pooled(self, text: str, image: Image.Image | None = None) -> torch.Tensor:
        """The mean of the tokens of a text [1, hidden], before which a picture is."""
        rows, written = torch.empty(0, SIZES["hidden_size"]), text
        if image is not None:
            pixels = np.stack([np.asarray(tile, np.float32) for tile in tiles_of(image, 4)]) / 255
            rows = self.theirs.tower(torch.from_numpy((pixels - 0.5) / 0.5).permute(0, 3, 1, 2))
            written = text.replace("<image>", f"<img>{PLACE * len(rows)}</img>", 1)
        ids = torch.tensor([[token(BOS), *self.model.pool.tokenizer.encode(written, False)]])
        embedded = self.theirs.language_model.embed_tokens(ids)
        embedded[ids == token(PLACE)] = rows
        every = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
        states = self.theirs.language_model(inputs_embeds=embedded, attention_mask=every).last_hidden_state[0]
        mean: torch.Tensor = states.mean(0, keepdim=True)
        return mean

    def vector(self, text: str, image: Image.Image | None = None) -> Any:
        found = self.pooled(text, image)[0]
        return (found / found.norm()).numpy()

    @torch.inference_mode()
    def score_of(self, text: str, image: Image.Image | None = None) -> float:
        return float((self.theirs.score(self.pooled(text, image))[0, 0] / 0.5).sigmoid())


def url_of(name: str) -> dict[str, Any]:
    data = base64.b64encode(png(*PICTURES[name])).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-4)


Run = Callable[[Callable[[Nemotron], Coroutine[Any, Any, None]]], None]


def _running(served: Nemotron) -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from _running(Nemotron(tmp_path_factory.mktemp("embedder")))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from _running(Nemotron(tmp_path_factory.mktemp("scores"), labels=1))


def test_a_picture_and_a_text_have_the_vector_of_their_makers_formula(embedder: Run) -> None:
    async def use(served: Nemotron) -> None:
        for name, size in PICTURES.items():
            parts = [url_of(name), {"type": "text", "text": PASSAGE}]
            answer = await served.post("/v1/embeddings", {"messages": [{"role": "document", "content": parts}]})
            near(answer["data"][0]["embedding"], served.vector(f"passage: <image> {PASSAGE}", picture(*size)))
        asked = await served.post("/v1/embeddings", {"messages": [{"role": "query", "content": "when?"}]})
        near(asked["data"][0]["embedding"], served.vector("query: when?"))
        texts = {"input": ["when?"], "input_type": "query"}
        near((await served.post("/v1/embeddings", texts))["data"][0]["embedding"], served.vector("query: when?"))

    embedder(use)


def test_jinas_and_coheres_pictures_have_the_prefix_of_their_purpose(embedder: Run) -> None:
    async def use(served: Nemotron) -> None:
        image = url_of("small")["image_url"]["url"]
        expected = served.vector("passage: <image> ", picture(*PICTURES["small"]))
        jina = await served.post("/v1/embeddings", {"input": [{"image": image}], "task": "retrieval.passage"})
        near(jina["data"][0]["embedding"], expected)
        body = {"model": "vectors", "input_type": "search_document", "images": [image], "embedding_types": ["float"]}
        cohere = await served.post("/v2/embed", body)
        near(cohere["embeddings"]["float"][0], expected)

    embedder(use)


def test_several_messages_are_refused(embedder: Run) -> None:
    async def use(served: Nemotron) -> None:
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        async with served.client() as client:
            answer = await client.post("/v1/embeddings", json={"messages": said})
        assert answer.status_code == 400
        assert "embeds one message" in answer.text

    embedder(use)


def test_pairs_are_scored_by_their_makers_formula(reranker: Run) -> None:
    async def use(served: Nemotron) -> None:
        documents = [PASSAGE, {"content": [url_of("small")]}, {"content": [url_of("wide"), part(PASSAGE)]}]
        answer = await served.post("/v1/rerank", {"query": "when?", "documents": documents, "top_n": 3})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        shown = "<image> question:when? \n \n passage:"
        expected = [
            served.score_of(f"question:when? \n \n passage:{PASSAGE}"),
            served.score_of(shown, picture(*PICTURES["small"])),
            served.score_of(shown + PASSAGE, picture(*PICTURES["wide"])),
        ]
        near([found[index] for index in range(3)], expected)
        assert len({round(score, 4) for score in expected}) == 3
        plain = await served.post("/score", {"queries": "when?", "documents": [PASSAGE]})
        near(plain["data"][0]["score"], expected[0])
        async with served.client() as client:
            both = {"query": {"content": [url_of("small")]}, "documents": [{"content": [url_of("small")]}]}
            refused = await client.post("/v1/rerank", json=both)
        assert refused.status_code == 400
        assert "one image" in refused.text

    reranker(use)


def test_a_long_text_is_cut_in_a_message_too_and_beside_a_picture_it_is_not_offered(embedder: Run) -> None:
    async def use(served: Nemotron) -> None:
        long, cut = "when? " * 100, {"truncate_prompt_tokens": 20}
        (text,) = (await served.post("/v1/embeddings", {"input": f"query: {long}", **cut}))["data"]
        (said,) = (await served.post("/v1/embeddings", {"messages": [{"role": "query", "content": long}], **cut}))[
            "data"
        ]
        near(said["embedding"], text["embedding"])
        seen = [{"role": "document", "content": [url_of("small"), part(long)]}]
        async with served.client() as client:
            refused = await client.post("/v1/embeddings", json={"messages": seen, **cut})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].endswith("the model takes at most 20. Shorten it.")

    embedder(use)


def test_a_long_document_is_cut_alike_beside_one_that_is_a_picture(reranker: Run) -> None:
    async def use(served: Nemotron) -> None:
        long, cut = "the year of the map " * 40, {"query": "when?", "truncate_prompt_tokens": 60}
        alone = await served.post("/v1/rerank", {"documents": [long], **cut})
        both = await served.post("/v1/rerank", {"documents": [long, {"content": [url_of("small")]}], **cut})
        found = {each["index"]: each["relevance_score"] for each in both["results"]}
        near(found[0], alone["results"][0]["relevance_score"])

    reranker(use)


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_what_is_not_read_in_a_config_is_refused(tmp_path: Path) -> None:
    inner = {**transformers.LlamaConfig(**TEXT).to_dict(), "model_type": "llama_bidirec", "pooling": "weighted_avg"}
    described = {"architectures": ["LlamaNemotronVLModel"], "model_type": "llama_nemotron_vl", "llm_config": inner}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert kind_of(tmp_path) == "embedding"
    with pytest.raises(CheckpointError, match="expected one of avg, cls, last"):
        pooling_config(tmp_path)
