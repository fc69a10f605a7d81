"""Models that write about one picture: what the engine is given of a conversation, and what clients are told."""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from safetensors.torch import load
from transformers.utils.constants import OPENAI_CLIP_MEAN as CLIP_MEAN
from transformers.utils.constants import OPENAI_CLIP_STD as CLIP_STD

from stentor.engine.model_config.towers.media_spec import media_spec
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.server.app.state import ServerState
from stentor.server.generation.picture_prompt import _FLORENCE_TASKS, PicturePrompt
from stentor.server.media.processors.images.parse import bilinear
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.media.processors.processor_classes import ProcessorError
from stentor.tests.fakes import FakeEngine
from stentor.tests.parity.pictured import flattened
from stentor.tests.server.harness import CHAT, in_memory
from stentor.tests.server.media.opened import PictureServer
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.media.test_server import asked, image
from stentor.tests.support.pictured_files import (
    END,
    OWN_NORMS,
    SHAPED,
    SIDES,
    START,
    TASK,
    VOCAB,
    images_of,
    write_files,
)

transformers: Any = untyped_transformers

Use = Callable[[httpx.AsyncClient, ServerState, FakeEngine], Awaitable[object]]
Run = Callable[[Use, PicturePrompt], None]
BEGINS = PicturePrompt((START,))
READS = PicturePrompt(longest_text=60, tasks=_FLORENCE_TASKS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a test with a server of Donut's processor, whose process lives from test to test."""
    folder: Path = tmp_path_factory.mktemp("donut")
    write_files(folder, "DonutProcessor")
    (folder / "config.json").write_text('{"model_type": "vision-encoder-decoder"}')
    spec = media_spec({"model_type": "vision-encoder-decoder"})
    assert spec is not None
    server = PictureServer(folder, spec, VOCAB, CacheGroup("cross", 8, 64, inputs="picture"), 64)

    async def body(use: Use, prompt: PicturePrompt) -> None:
        start = (END, START) if prompt.longest_text else ()
        chat = msgspec.structs.replace(server.state.chat, picture=prompt, decoder_start=start)
        changed = msgspec.structs.replace(server.state, chat=chat)
        async with in_memory(changed) as client:
            await use(client, changed, server.engine)

    with asyncio.Runner() as runner:
        yield lambda use, prompt: runner.run(body(use, prompt))
        server.close()


def test_a_text_begins_the_output_about_a_picture(run: Run) -> None:
    async def use(client: httpx.AsyncClient, _state: ServerState, engine: FakeEngine) -> None:
        expected = images_of("DonutProcessor")(picture(40, 30), return_tensors="pt")["pixel_values"]
        for text, prompt in (
            (("<s_cord-v2>",), [TASK]),
            (("<s_cord-v2>", "ab"), [TASK, *b"ab"]),
            (("ab",), [START, *b"ab"]),
            ((), [START]),
        ):
            response = await client.post(CHAT, json=asked(image(png(40, 30)), *text))
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["message"]["content"] == "a cat"
            assert response.json()["usage"]["prompt_tokens"] == len(prompt)
            assert engine.streams[-1].prompt == prompt
            (seen,) = engine.media[-1]
            assert (seen.start, seen.length) == (-1, 0)
            assert load(bytes(seen.data))["pixel_values"].equal(expected)

    run(use, BEGINS)


def test_a_text_is_read_behind_a_picture_and_may_name_a_task(run: Run) -> None:
    async def use(client: httpx.AsyncClient, _state: ServerState, engine: FakeEngine) -> None:
        digests = set()
        for text, meant in (
            ("<OCR>", "What is the text in the image?"),
            ("<REGION_TO_OCR><loc_1>", "What text is in the region <loc_1>?"),
            ("a thing", "a thing"),
        ):
            response = await client.post(CHAT, json=asked(image(png(40, 30)), text))
            assert response.status_code == 200, response.text
            assert engine.streams[-1].prompt == [END, START]
            (seen,) = engine.media[-1]
            tokens = array("i", [START, *meant.encode(), END])
            head = array("i", [len(tokens), *tokens]).tobytes()
            assert bytes(seen.data).startswith(head)
            assert "pixel_values" in load(bytes(seen.data[len(head) :]))
            assert response.json()["usage"]["prompt_tokens"] == len(tokens)
            digests.add(seen.digest)
        assert len(digests) == 3, "another text makes another encoding"

    run(use, READS)


def test_what_such_a_model_cannot_do_is_refused(run: Run) -> None:
    async def use(client: httpx.AsyncClient, state: ServerState, _engine: FakeEngine) -> None:
        shown = image(png(40, 30))
        tool = {"type": "function", "function": {"name": "f"}}
        refusals: list[tuple[dict[str, Any], str, str]] = [
            (asked("<s_cord-v2>"), "messages[0].content", "writes about a picture; send one"),
            (asked(shown, shown), "messages[0].content[1]", "at most 1 image"),
            (asked(shown, tools=[tool]), "tools", "calls nothing"),
            (asked(shown, truncate_prompt_tokens=3), "truncate_prompt_tokens", "not cut"),
            (asked(shown, prompt_logprobs=1), "prompt_logprobs", "the model's encoder reads the prompt"),
            (asked(shown, "a" * 99), "messages", "context is 64 tokens"),
            (
                {**asked(), "messages": [{"role": "system", "content": "x"}, *asked(shown)["messages"]]},
                "messages",
                "takes one message",
            ),
        ]
        for body, field, why in refusals:
            response = await client.post(CHAT, json=body)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["param"] == field
            assert why in error["message"]
        told = await client.post("/v1/completions", json={"model": "fake", "prompt": "a"})
        assert told.status_code == 400
        assert "which chat completions take" in told.json()["error"]["message"]
        assert state.admission.memory.bytes == 0, "what was held for them is given back"

    run(use, BEGINS)


def test_a_text_that_is_too_long_to_be_read_or_not_meant_by_a_task_is_refused(run: Run) -> None:
    async def use(client: httpx.AsyncClient, _state: ServerState, _engine: FakeEngine) -> None:
        for text, why in (
            ("a" * 59, "the text has 61 tokens, and the model reads at most 60 behind a picture"),
            ("<OCR> all", "<OCR> takes no text behind it"),
        ):
            response = await client.post(CHAT, json=asked(image(png(40, 30)), text))
            assert response.status_code == 400, response.text
            assert why in response.json()["error"]["message"]

    run(use, READS)


@pytest.mark.parametrize("name", sorted(SIDES.keys() - OWN_NORMS))
def test_pixels_are_those_of_transformers_processors(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, name)
    (tmp_path / "config.json").write_text('{"model_type": "vision-encoder-decoder"}')
    ours = ModelProcessor(tmp_path)
    for width, height in ((40, 30), (90, 17), (64, 64)):
        found = load(ours.image(picture(width, height), {}, alone=True).payload)
        expected = images_of(name)(picture(width, height), return_tensors="pt")["pixel_values"]
        assert found.keys() == {"pixel_values"}
        assert found["pixel_values"].equal(expected)
        assert found["pixel_values"].shape == (1, 3, *SIDES[name])


def _faint() -> Image.Image:
    """Black, but for a corner that is nearly so."""
    values = np.zeros((20, 30, 3), np.uint8)
    values[:4, :4] = 1
    return Image.fromarray(values)


_SHAPES = [(40, 30), (300, 200), (9, 700), (1, 1), (2000, 3)]


@pytest.mark.parametrize("seen", [*(picture(*size) for size in _SHAPES), _faint()], ids=[*map(str, _SHAPES), "faint"])
def test_pixels_of_pix2struct_are_its_processors_patches(seen: Image.Image, tmp_path: Path) -> None:
    write_files(tmp_path, SHAPED)
    (tmp_path / "config.json").write_text('{"model_type": "pix2struct", "vision_config": {"seq_len": 41}}')
    ours = ModelProcessor(tmp_path)
    theirs = transformers.Pix2StructImageProcessorPil(patch_size={"height": 8, "width": 8})
    for options, most in ((), 40), ((("max_patches", 100),), 40), ((("max_patches", 6),), 6):
        found = load(ours.image(seen, dict(options), alone=True).payload)["pixel_values"]
        expected = theirs(seen, return_tensors="pt", max_patches=most)["flattened_patches"]
        made = flattened(found)
        assert made.shape[1] <= most
        torch.testing.assert_close(made, expected[:, : made.shape[1]], atol=2e-4, rtol=0)
        assert not expected[:, made.shape[1] :].any()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"is_vqa": True}, "is_vqa is true: questions would be drawn into its pictures"),
        ({"do_normalize": False}, "do_normalize is false, expected true"),
        ({"patch_size": {"height": 16, "width": 8}}, "expected a square"),
    ],
)
def test_pictures_of_pix2struct_of_another_form_are_refused(told: dict[str, object], why: str, tmp_path: Path) -> None:
    write_files(tmp_path, SHAPED)
    (tmp_path / "config.json").write_text('{"model_type": "pix2struct"}')
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **told}))
    with pytest.raises(ProcessorError, match=why):
        ModelProcessor(tmp_path)


def test_pixels_of_formulas_are_made_without_torchvision_as_nougats(tmp_path: Path) -> None:
    settings = {"image_processor_type": "PPFormulaNetImageProcessor", "processor_class": "PPFormulaNetProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, "size": {"height": 64, "width": 64}}))
    (tmp_path / "config.json").write_text('{"model_type": "pp_formulanet"}')
    found = load(ModelProcessor(tmp_path).image(picture(40, 30), {}, alone=True).payload)["pixel_values"]
    said = {"image_mean": [0.7931] * 3, "image_std": [0.1738] * 3}
    nougat = transformers.NougatImageProcessorPil(size={"height": 64, "width": 64}, **said)
    assert found.equal(nougat(picture(40, 30), return_tensors="pt")["pixel_values"])


def test_pixels_between_others_are_those_of_opencv() -> None:
    page = (np.arange(3 * 5 * 7) * 37 % 256).astype(np.uint8).reshape(3, 5, 7)
    # cv2.resize(…, (3, 2), interpolation=cv2.INTER_LINEAR), of OpenCV 5.0
    expected = [[[27, 113, 200], [34, 121, 207]], [[42, 128, 215], [49, 136, 222]], [[57, 143, 230], [64, 151, 151]]]
    assert bilinear(page, 2, 3).tolist() == expected


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("size", "inner"),
    [
        ((40, 30), (slice(33, 63), slice(16, 56))),
        ((60, 192), (slice(0, 96), slice(21, 51))),
        ((720, 5), (47, slice(None))),
    ],
)
def test_a_page_of_nemotron_parse_has_white_around_the_picture(
    size: tuple[int, int], inner: tuple[Any, Any], normed: bool, tmp_path: Path
) -> None:
    settings = {"processor_class": "NemotronParseImageProcessor", "do_normalize": normed, "final_size": [9, 9]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "nemotron_parse", "image_size": [96, 72]}')
    shown = picture(*size)
    found = load(ModelProcessor(tmp_path).image(shown, {}, alone=True).payload)["pixel_values"]
    mean, std = (CLIP_MEAN, CLIP_STD) if normed else ((0, 0, 0), (1, 1, 1))
    values = found[0] * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    around = torch.ones(96, 72, dtype=torch.bool)
    around[inner] = False
    torch.testing.assert_close(values[:, around], torch.ones(3, int(around.sum())))
    if size == (40, 30):
        pixels = torch.tensor(np.asarray(shown)).permute(2, 0, 1) / 255
        torch.testing.assert_close(values[:, ~around].reshape(pixels.shape), pixels)
