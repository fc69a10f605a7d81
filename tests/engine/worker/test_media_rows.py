"""Rows with pictures: where their tokens stand, and that they are bitwise the same whatever shares their steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch

from stentor.engine.models.towers.payload import Payload, read_payload, write_payload
from stentor.engine.worker.media.positions import MediaPositions
from stentor.engine.worker.media.rows import MediaRows
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowSpan, TokenLogprobs
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.pictures import Picture, Prompt, prompt_of
from stentor.tests.parity.seeing import CONFIGS, KINDS, MAKERS
from stentor.tests.parity.sounding import model_of
from stentor.tests.support.vision_models import FAMILIES, VOCAB


def test_text_stands_behind_the_longer_side_of_a_picture() -> None:
    span = RowSpan(0, 2, 6, (1, 2, 3))
    positions = MediaPositions.of(10, [(span, [(2, 8)])])
    assert positions.of_text(0, 12).tolist()[:2] == [0, 1]
    assert positions.of_text(8, 4).tolist() == [5, 6, 7, 8]
    at, axes = positions.of_media(3, 4)
    assert at.tolist() == [3, 4, 5, 6]
    assert axes.tolist() == [[2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3]]


def test_frames_between_which_text_stands_are_pictures_each() -> None:
    span = RowSpan(0, 1, 6, (2, 1, 2))
    positions = MediaPositions.of(8, [(span, [(1, 3), (5, 7)])])
    assert positions.axes[:, 0].tolist() == [0, 1, 1, 3, 4, 5, 5, 7]
    assert positions.axes[:, 2].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert positions.shift == 0


def test_frames_are_as_far_apart_as_their_interval_says() -> None:
    positions = MediaPositions.of(9, [(RowSpan(0, 0, 8, (4, 1, 2), 1.5), [(0, 8)])])
    assert positions.axes[::2, 0].tolist() == [0, 1, 3, 4, 2]
    assert positions.shift == -4


def test_what_follows_a_video_may_stand_behind_its_last_frame() -> None:
    spans = [(RowSpan(0, 1, 6, (3, 1, 2), 4.0), [(1, 7)])]
    positions = MediaPositions.of(9, spans, "frames")
    assert positions.axes[:, 0].tolist() == [0, 1, 1, 5, 5, 9, 9, 10, 11]
    assert positions.shift == 3
    assert MediaPositions.of(9, spans).axes[7:, 0].tolist() == [3, 4]


def test_places_in_a_picture_may_count_from_its_corner() -> None:
    spans = [(RowSpan(0, 2, 6, (1, 2, 3)), [(2, 8)]), (RowSpan(0, 9, 1, (1, 1, 1)), [(9, 10)])]
    positions = MediaPositions.of(12, spans, "corner")
    assert positions.axes[:, 0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 3, 4, 5, 6]
    assert positions.axes[2:8, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert positions.axes[9].tolist() == [4, 0, 0]
    assert positions.shift == -5


def test_tokens_of_numbered_pictures_have_their_index_and_their_place_within_the_picture() -> None:
    spans = [(RowSpan(0, 1, 5, (1, 1, 2)), [(1, 6)]), (RowSpan(0, 7, 6, (1, 2, 1)), [(7, 13)])]
    positions = MediaPositions.of(14, spans, "numbered")
    at, axes = positions.of_media(0, 14)
    assert at.tolist() == [2, 3, 4, 8, 9, 10, 11], "but the first and the last of each"
    first = [[2, 0, 0, 0], [3, 1, 0, 0], [4, 2, 0, 0]]
    assert axes.tolist() == [*first, [8, 0, 0, 1], [9, 1, 0, 1], [10, 0, 1, 1], [11, 1, 1, 1]]
    assert positions.of_text(0, 16).tolist() == list(range(16))
    with pytest.raises(ValueError, match=r"a picture of 1 x 2 embeddings stands at runs of \[4\] placeholders"):
        MediaPositions.of(6, [(RowSpan(0, 1, 4, (1, 1, 2)), [(1, 5)])], "numbered")


def test_placeholders_that_do_not_fit_a_grid_are_an_error() -> None:
    with pytest.raises(ValueError, match="media of 1 frames of 2 x 3 embeddings stand at runs of"):
        MediaPositions.of(6, [(RowSpan(0, 0, 5, (1, 2, 3)), [(0, 5)])])


def test_a_payload_is_read_as_it_was_written() -> None:
    tensors = {"pixel_values": torch.randn(2, 3), "image_grid_thw": torch.tensor([[1, 2, 3]])}
    found = read_payload(memoryview(write_payload(Payload("image", tensors))))
    assert found.modality == "image"
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("data", [b"", b"\x00" * 7, b"\xff" * 64, write_payload(Payload("image", {}))[:-1]])
def test_what_is_no_payload_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(data)} bytes of media are no payload"):
        read_payload(data)


_APART: Final = ("ernie_vl", "hunyuan_vl", "mllama")
"""Whose tokens of pictures have other experts, or positions that leave those of text alone, or whose tokens of text
attend to pictures."""


class Served:
    def __init__(self, name: str, folder: Path) -> None:
        {**FAMILIES, **MAKERS}[name](folder)
        self.kind = KINDS[name]
        self.engine = LocalEngine(
            model_config(folder, max_model_len=256, kv_cache_memory=8 << 20, batch_invariant=True)
        )

    def prompt(self, *parts: list[int] | int) -> Prompt:
        """A number is a picture's."""
        return prompt_of(self.kind, *(part if isinstance(part, list) else self._picture(part) for part in parts))

    def _picture(self, number: int) -> Picture:
        return self.kind.draw(torch.Generator().manual_seed(number), 0)

    def told(self, *prompts: Prompt, budget: int = 0) -> list[Sequence[TokenLogprobs | None]]:
        """What is told of the prompts and of the answers, computed together."""
        engine = self.engine
        engine.restart(engine.ready.num_blocks, prefix_cache=False, max_num_batched_tokens=budget)
        params = SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=4, logprobs=4)
        rids = [engine.submit(prompt.tokens, params, media=prompt.media) for prompt in prompts]
        engine.run()
        return [[*(engine.prompts[rid].logprobs or ()), *engine.outcomes[rid, 0].logprobs] for rid in rids]


@pytest.mark.parametrize(
    "name", ["qwen3_vl", "gemma3", "idefics3", *(pytest.param(name, marks=pytest.mark.proof) for name in _APART)]
)
def test_rows_are_bitwise_the_same_beside_pictures_and_cut_within_them(name: str, tmp_path: Path) -> None:
    served = Served(name, tmp_path)
    text, seen = served.prompt([*range(40, 70)]), served.prompt([50, 51, 52], 1, [60, 61], 2, [*range(70, 80)])
    alone = [*served.told(text), *served.told(seen)]
    assert served.told(text, seen) == alone
    assert served.told(seen, text, budget=9)[::-1] == alone
    can_be_said = [each for each in alone[1] if each is not None and each.token < VOCAB]
    assert np.isfinite([each.logprob for each in can_be_said]).all()


def test_embeddings_that_a_request_brings_stand_for_the_picture_that_they_were_made_of(tmp_path: Path) -> None:
    served = Served("idefics3", tmp_path)
    engine, prompt = served.engine, served.prompt([50, 51], 1, [60])
    params = SamplingParams(max_tokens=6, temperature=0.0)
    (media,) = prompt.media
    seen = engine.submit(prompt.tokens, params, media=prompt.media)
    engine.run()
    rows = engine.runner.extras
    assert isinstance(rows, MediaRows)
    embeddings = rows._tower.encode(read_payload(bytes(media.data))).embeddings
    given = write_payload(Payload("image", {"image_embeds": embeddings.float()}))
    brought = engine.submit(prompt.tokens, params, media=[media._replace(data=given, digest=b"7" * 16)])
    narrow = write_payload(Payload("image", {"image_embeds": embeddings.float()[:, :-1]}))
    wrong = engine.submit(prompt.tokens, params, media=[media._replace(data=narrow, digest=b"8" * 16)])
    engine.run(check=True)
    assert engine.outcomes[brought, 0].tokens == engine.outcomes[seen, 0].tokens
    end = engine.outcomes[wrong, 0].finished
    assert end is not None
    assert "expected [embeddings, 64]" in (end.message or "")


def test_a_request_whose_media_the_model_cannot_take_ends_and_others_go_on(tmp_path: Path) -> None:
    served = Served("qwen3_vl", tmp_path)
    engine, prompt = served.engine, served.prompt([50, 51], 1, [60])
    params = SamplingParams(max_tokens=6, temperature=0.0)
    expected = engine.generate(served.prompt([40, 41]).tokens, params)
    (media,) = prompt.media
    shorter = prompt.tokens[:4] + prompt.tokens[5:]
    broken = write_payload(Payload("image", {"pixel_values": torch.zeros(3, 4)}))
    grid = torch.tensor([[1, -4, -6]])
    unmatched = write_payload(Payload("image", {"pixel_values": torch.zeros(24, 96), "image_grid_thw": grid}))
    asked = [
        (prompt.tokens, media._replace(data=b"no payload", digest=b"1" * 16)),
        (prompt.tokens, media._replace(data=broken, digest=b"2" * 16)),
        (prompt.tokens, media._replace(data=broken.replace(b"image", b"smell"), digest=b"3" * 16)),
        (shorter, media._replace(length=media.length - 1, grid=None)),
        (prompt.tokens, media._replace(grid=(1, 2, 2))),
        (prompt.tokens, media._replace(data=unmatched, digest=b"4" * 16)),
    ]
    field = "messages[0].content[1]"
    rids = [engine.submit(tokens, params, media=[one._replace(field=field)]) for tokens, one in asked]
    beside = engine.submit(served.prompt([40, 41]).tokens, params)
    engine.run(check=True)
    ends = [engine.outcomes[rid, 0].finished for rid in rids]
    assert {end and end.reason for end in ends} == {"error"}
    whys = ("are no payload", "cannot take", "no encoder for smells", "6 emb", "2 x 2", "RuntimeError")
    for end, why in zip(ends, whys, strict=True):
        assert end is not None
        assert (end.fault, end.field) == ("media", field)
        assert "the model cannot take the media of the prompt: " in (end.message or "")
        assert why in (end.message or "")
    assert engine.outcomes[beside, 0].tokens == expected
    assert engine.generate(served.prompt([40, 41]).tokens, params) == expected


def test_embeddings_of_another_size_than_the_decoders_end_their_request_alone(tmp_path: Path) -> None:
    config = CONFIGS["qwen2_vl_film"]()
    config.vision_config.hidden_size, config.vision_config.hidden_act = 48, "relu"  # which transformers alone runs
    model_of(config).save_pretrained(tmp_path)
    engine = LocalEngine(model_config(tmp_path, max_model_len=256, kv_cache_memory=8 << 20))
    kind, params = KINDS["qwen2_vl_film"], SamplingParams(max_tokens=2, temperature=0.0)
    prompt = prompt_of(kind, [50, 51], kind.draw(torch.Generator().manual_seed(1), 0))
    wrong = engine.submit(prompt.tokens, params, media=prompt.media)
    beside = engine.submit([40, 41], params)
    engine.run(check=True)
    end = engine.outcomes[wrong, 0].finished
    assert end is not None
    assert "makes embeddings of 48 numbers, expected 64" in (end.message or "")
    assert len(engine.outcomes[beside, 0].tokens) == 2


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3"])
def test_sequences_of_one_request_share_its_pictures(name: str, tmp_path: Path) -> None:
    served = Served(name, tmp_path)
    engine, prompt = served.engine, served.prompt([*range(40, 60)], 1, [60, 61])
    params = SamplingParams(max_tokens=6, temperature=0.9)
    rid = engine.submit(prompt.tokens, params, [1, 2, 3], media=prompt.media)
    engine.run(check=True)
    together = [engine.outcomes[rid, index].tokens for index in range(3)]
    for seed, expected in zip((1, 2, 3), together, strict=True):
        engine.restart(engine.ready.num_blocks)
        alone = engine.submit(prompt.tokens, params, [seed], media=prompt.media)
        engine.run(check=True)
        assert engine.outcomes[alone, 0].tokens == expected
