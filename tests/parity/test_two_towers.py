"""Models of a tower for texts and one for pictures, which meet in one space, beside transformers' own in float32."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.client.media import Media
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.engine.models.towers.payload import Payload, write_payload
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.pooling import PoolingFamily
from stentor.protocols.ipc.pooling import Pooling, PoolingTask
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.test_media_poolers import close
from stentor.tests.support.two_towers import LONGEST, NAMES, PATCH, SIDE, ids_of, write_towers


class TwoTowers:
    """A tiny model on disk, its like in transformers, and our engine over it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.theirs = write_towers(name, folder)
        self.engine = LocalEngine(model_config(folder, is_pooling=True))

    def picture(self, seed: int) -> dict[str, torch.Tensor]:
        """Of SigLIP 2, 2 x 3 patches, filled up to eight."""
        random = torch.Generator().manual_seed(seed)
        if self.name != "siglip2":
            return {"pixel_values": torch.randn(1, 3, SIDE, SIDE, generator=random)}
        mask = torch.tensor([[1] * 6 + [0] * 2])
        pixels = torch.randn(1, 8, 3 * PATCH * PATCH, generator=random) * mask.unsqueeze(2)
        return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[2, 3]])}

    def ask(self, given: str | dict[str, torch.Tensor], task: PoolingTask) -> int:
        media, ids = [], [0]
        if isinstance(given, str):
            ids = ids_of(self.name, given)
        else:
            payload = write_payload(Payload("image", given))
            media = [Media(payload, blake2b(payload, digest_size=16).digest(), 0, 1)]
        return self.engine.submit(ids, SamplingParams(max_tokens=0), media=media, pooling=Pooling(task))

    @torch.inference_mode()
    def expected(self, given: str | dict[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(given, str):
            found = self.theirs.get_text_features(input_ids=torch.tensor([ids_of(self.name, given)]))
        else:
            found = self.theirs.get_image_features(**given)
        features: torch.Tensor = found.pooler_output
        return features


@pytest.fixture(scope="module", params=NAMES)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> TwoTowers:
    return TwoTowers(request.param, tmp_path_factory.mktemp(request.param))


def test_texts_and_pictures_have_the_vectors_of_transformers(model: TwoTowers) -> None:
    given: list[str | dict[str, torch.Tensor]] = ["a cat", model.picture(1), "", model.picture(2), model.picture(1)]
    tasks: tuple[PoolingTask, ...] = ("embed", "token_embed")
    for task in tasks:
        rids = [model.ask(each, task) for each in given]
        model.engine.run(check=True)
        for rid, each in zip(rids, given, strict=True):
            end = model.engine.outcomes[rid, 0].finished
            assert end is not None
            assert end.reason == "stop", end.message
            pooled = model.engine.prompts[rid].pooled
            assert pooled is not None
            found = torch.frombuffer(bytearray(pooled.data), dtype=torch.float32).view(pooled.rows, pooled.columns)
            expected = model.expected(each)
            close(found[-1:], torch.nn.functional.normalize(expected) if task == "embed" else expected)


def test_texts_that_are_filled_up_need_the_whole_context(model: TwoTowers) -> None:
    config = model_config(Path(model.engine.config.model), is_pooling=True, max_model_len=LONGEST - 1)
    family = PoolingFamily(open_pooling(Path(config.model)), "cpu")
    if model.name == "clip":
        assert family.longest(config) == LONGEST - 1
        return
    with pytest.raises(SetupError, match=f"--max-model-len {LONGEST - 1}: texts are filled up to the {LONGEST} tokens"):
        family.longest(config)


def test_start_up_says_which_towers_run_on_transformers_code(model: TwoTowers) -> None:
    notes = [note for note in model.engine.ready.notes if "by transformers' modelling code" in note]
    assert bool(notes) == (model.name == "siglip2")
