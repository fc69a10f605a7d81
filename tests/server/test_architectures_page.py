"""What docs/reference/models.md says of an architecture is true of the models that tests make of it."""

from pathlib import Path

import pytest

import stentor
from stentor.engine.model_config.gguf.architectures import ARCHITECTURES
from stentor.engine.model_config.gguf.families import TRANSLATIONS
from stentor.engine.model_config.hf.config import DECODERS, model_spec_from_hf, named_architecture
from stentor.engine.model_config.hf.text_part import ALIASES
from stentor.server.main.architectures import computed, described, kinds, parity_models, remarks
from stentor.server.main.tested import MEDIA, MEDIA_FILE, PARITY, PARITY_FILE, TEXT_ALONE, TEXT_FILE
from stentor.server.main.tested_formats import FORMATS, FormatCheck
from stentor.tests.engine.loading import test_gguf_experts, tiny_gguf
from stentor.tests.parity import test_architectures, test_gguf_families, test_media_models, test_text_alone, tiny
from stentor.tests.parity.published import PUBLISHED
from stentor.tests.parity.seeing import CONFIGS
from stentor.tests.support import mmproj_files
from stentor.tests.support.vision_models import FAMILIES

ROOT = Path(stentor.__file__).parent
UNTESTED = {
    "IQuestCoderForCausalLM",
    "DeepseekOCR2ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Super_Omni_Reasoning_V3",
    "Qwen2_5OmniModel",
}
"""transformers has no model of the first, and the others are other names of what is tested."""


@pytest.mark.parametrize("model", tiny.ARCHITECTURES)
def test_a_model_has_no_kind_of_layer_that_the_page_keeps_from_its_architecture(model: str) -> None:
    config = tiny.described(model)
    architecture = named_architecture(config, {name: decoder.model_type for name, decoder in DECODERS.items()})
    spec, reported = model_spec_from_hf(config), described(architecture)
    assert {*kinds(spec)} - {"dense"} <= {*kinds(reported)}
    assert {*remarks(architecture, spec)} <= {*remarks(architecture, reported)}
    assert spec.text_part == reported.text_part


def test_the_page_names_the_parity_models_of_each_architecture_and_no_others() -> None:
    known = {name: decoder.model_type for name, decoder in DECODERS.items()}
    found: dict[str, tuple[str, ...]] = {}
    for model in tiny.ARCHITECTURES:
        architecture = named_architecture(tiny.described(model), known)
        found[architecture] = (*found.get(architecture, ()), model)
    assert found == PARITY, "a new architecture or model has a row in server/main/tested.py"
    seen = {**{name: name for name in FAMILIES}, "pixtral": "llava"}
    seen |= {name: config().model_type for name, config in CONFIGS.items()}
    seen |= {name: each.model_type for name, each in PUBLISHED.items()}
    of_type = {kind: name for name, kind in known.items() if name not in ALIASES}
    named = {name: each.architecture for name, each in PUBLISHED.items() if each.architecture}
    with_media: dict[str, set[str]] = {}
    for model, kind in seen.items():
        with_media.setdefault(named.get(model, of_type[kind]), set()).add(model)
    assert with_media == {name: {*models} for name, models in MEDIA.items()}
    assert test_text_alone.MODELS == TEXT_ALONE
    assert {name for name in DECODERS if not parity_models(name)} == UNTESTED
    assert Path(test_media_models.__file__) == ROOT / MEDIA_FILE
    assert Path(test_architectures.__file__) == ROOT / PARITY_FILE
    assert Path(test_text_alone.__file__) == ROOT / TEXT_FILE


@pytest.mark.parametrize("architecture", PARITY)
def test_a_model_calls_nothing_that_the_page_keeps_from_its_architecture(architecture: str) -> None:
    reported = computed(described(architecture))
    for model in PARITY[architecture]:
        called = test_architectures.CALLED.get(model, set())
        assert [what for what in called if what not in reported] == [], model


@pytest.mark.parametrize("format", {each for formats in FORMATS.values() for each in formats})
def test_a_format_that_the_page_names_is_in_its_test(format: FormatCheck) -> None:
    text = (ROOT / format.file).read_text()
    assert [name for name in format.names if f'"{name}"' not in text] == []


def test_every_architecture_that_gguf_files_have_is_tested() -> None:
    tested = {*tiny_gguf.ARCHITECTURES, *test_gguf_experts.MODELS, *test_gguf_families.MODELS.values()}
    tested |= {*mmproj_files.TEXTS.values()}
    assert {*ARCHITECTURES, *TRANSLATIONS} == tested
