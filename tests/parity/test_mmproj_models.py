"""Text models in GGUF files that see or hear by a projector file, beside transformers' whole model in float32."""

from pathlib import Path
from typing import Any

import pytest

from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.seeing import KINDS, MAKERS
from stentor.tests.parity.test_media_models import Seeing, check_prompts
from stentor.tests.support.mmproj_files import TEXTS, write_pair
from stentor.tests.support.vision_models import FAMILIES


class SeeingByFile(Seeing):
    """The same model as two GGUF files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reference = {**FAMILIES, **MAKERS}[name](folder)
        self.kind = KINDS[name]
        if name == "qwen2_5_vl":  # no key says how large its windows are
            self.reference.model.visual.window_size = 112
        if name == "qwen2_5_omni":  # nor that of how many frames the sounds have that are encoded together
            self.reference.model.visual.window_size = 112
            self.reference.model.audio_tower.n_window = 100
        file = write_pair(folder, self.reference, name.removesuffix("_film"))
        self.engine = LocalEngine(model_config(file, max_model_len=256, kv_cache_memory=8 << 20))


@pytest.fixture(scope="module", params=[*TEXTS, "qwen2_vl_film", "qwen3_5_film", "glm4v_film"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return SeeingByFile(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.proof(each="model")
def test_media_in_prompts_of_gguf_files_are_answered_as_by_transformers(model: Seeing) -> None:
    check_prompts(model)
