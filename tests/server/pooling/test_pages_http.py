"""Pages that are pictures, ranked over HTTP by models of late interaction, beside transformers."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers as untyped_transformers

from stentor.tests.parity.test_page_retrievers import MODELS
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support import vision_models
from stentor.tests.support.vision_models import PATCH, SIDE

transformers: Any = untyped_transformers

QUERY = "where is it?"


class Words(NamedTuple):
    """Of a retriever: its processor, and the texts behind a picture, around a query and around a text, with places of
    these and of padding."""

    processor: str
    page: str
    query: str = "{0}"
    document: str = "{0}"


_DESCRIBE, _ANSWER = "Describe the image.<|im_end|>", "<|im_end|>\n<|im_start|>assistant\n"
WORDS = {
    "colqwen3": Words("ColQwen3Processor", f"{_DESCRIBE}<|endoftext|>", "{0}{1}", "{0}{1}"),
    "ops_colqwen3": Words("OpsColQwen3Processor", f"{_DESCRIBE}<|im_start|>assistant\n<|endoftext|>"),
    "colqwen3_5": Words("ColQwen3_5Processor", f"{_DESCRIBE}<|endoftext|>", "{0}{1}"),
    "nemotron_colembed": Words(
        "Qwen3VLNemotronEmbedProcessor",
        f"passage: {_ANSWER}",
        f"<|im_start|>user\nQuery: query: {{0}}{_ANSWER}",
        f"<|im_start|>user\npassage: {{0}}{_ANSWER}",
    ),
}
SIZES = ((40, 30), (30, 40))


def written(name: str, folder: Path) -> tuple[Any, Any]:
    """A tiny model in ``folder``, and transformers' model and processor of it."""
    make, _ = MODELS[name]
    torch.manual_seed(5)
    theirs = make().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.1)
    theirs.save_pretrained(folder)
    if name == "colqwen2":
        images = transformers.Qwen2VLImageProcessorPil(
            patch_size=PATCH, temporal_patch_size=2, merge_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
        )
    elif name == "colmodernvbert":
        images = transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE}
        )
    else:
        images = transformers.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
        images.image_seq_length = 16
    kind = {
        "colqwen2": "ColQwen2Processor",
        "colpali": "ColPaliProcessor",
        "colmodernvbert": "ColModernVBertProcessor",
    }[name]
    settings: dict[str, Any] = {"image_seq_len": 4} if name == "colmodernvbert" else {}
    # one of the processors adds what a tokenizer puts around a text
    vision_models.write_processor(folder, kind, images, "{{ messages }}", bos=name == "colmodernvbert", **settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    return theirs, getattr(transformers, kind)(images, tokenizer, **settings)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", [name for name in MODELS if "qwen3" not in name and "nemotron" not in name])
def test_pages_are_scored_as_transformers_scores_them(name: str, tmp_path: Path) -> None:
    theirs, processor = written(name, tmp_path)
    with torch.inference_mode():
        asked = theirs(**_given(processor.process_queries(text=[QUERY]))).embeddings
        pages = [theirs(**_given(processor.process_images(images=[picture(*size)]))).embeddings[0] for size in SIZES]
    expected = processor.score_retrieval([*asked], pages)[0].tolist()
    served = Served(tmp_path, max_model_len=None)
    urls = ["data:image/png;base64," + base64.b64encode(png(*size)).decode() for size in SIZES]

    async def use() -> None:
        answer = await served.post("/v1/rerank", {"query": QUERY, "documents": [{"image": url} for url in urls]})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        np.testing.assert_allclose([found[0], found[1]], expected, rtol=1e-4)
        describe = {"type": "text", "text": "Describe the image."}
        seen = [{"type": "image_url", "image_url": {"url": urls[0]}}, describe]
        pooled = await served.post("/pooling", {"messages": [{"role": "user", "content": seen}]})
        np.testing.assert_allclose(pooled["data"][0]["data"], pages[0].numpy(), rtol=1e-3, atol=1e-4)
        async with served.client() as client:
            other = {"query": QUERY, "documents": [{"image": urls[0], "text": "a title"}]}
            refused = await client.post("/v1/rerank", content=json.dumps(other))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")

    with asyncio.Runner() as runner:
        runner.run(use())
        served.close()


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", WORDS)
def test_pages_are_scored_in_the_words_of_their_makers(name: str, tmp_path: Path) -> None:
    """Their processors come with the files; texts are put around pictures by hand here, as they do it."""
    make, _ = MODELS[name]
    torch.manual_seed(5)
    theirs = make().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.1)
    theirs.save_pretrained(tmp_path)
    size = {"shortest_edge": 256, "longest_edge": 1 << 20}
    images = transformers.Qwen2VLImageProcessorPil(patch_size=PATCH, temporal_patch_size=2, merge_size=2, size=size)
    words = WORDS[name]
    vision_models.write_processor(tmp_path, words.processor, images, "{{ messages }}")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    fill = 10 * tokenizer.pad_token

    @torch.inference_mode()
    def vectors(text: str, **pixels: Any) -> torch.Tensor:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        found: torch.Tensor = theirs(input_ids=ids, **pixels).embeddings[0]
        return found

    pixels = images(picture(*SIZES[0]), return_tensors="pt")
    count = int(pixels["image_grid_thw"].prod()) // 4
    page = f"<|im_start|>user\n<|vision_start|>{count * '<|image_pad|>'}<|vision_end|>{words.page}"
    query = vectors(words.query.format(QUERY, fill))
    documents = [vectors(page, **pixels), vectors(words.document.format("it is here", fill))]
    expected = [float((query @ each.T).amax(1).sum()) for each in documents]
    served = Served(tmp_path, max_model_len=None)
    url = "data:image/png;base64," + base64.b64encode(png(*SIZES[0])).decode()

    async def use() -> None:
        answer = await served.post("/v1/rerank", {"query": QUERY, "documents": [{"image": url}, "it is here"]})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        np.testing.assert_allclose([found[0], found[1]], expected, rtol=1e-3)

    with asyncio.Runner() as runner:
        runner.run(use())
        served.close()


def _given(inputs: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in inputs.items() if name not in ("labels", "mm_token_type_ids")}
