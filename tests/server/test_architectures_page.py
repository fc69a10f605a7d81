"""What docs/reference/models.md says of an architecture is true of the models that tests make of it."""

import pytest

from stentor.engine.model_config.hf_config import DECODERS, model_spec_from_hf, named_architecture
from stentor.server.main.architectures import described, kinds, remarks
from stentor.tests.parity import tiny


@pytest.mark.parametrize("model", tiny.ARCHITECTURES)
def test_a_model_has_no_kind_of_layer_that_the_page_keeps_from_its_architecture(model: str) -> None:
    config = tiny.ARCHITECTURES[model]().to_dict()
    architecture = named_architecture(config, {name: decoder.model_type for name, decoder in DECODERS.items()})
    spec, told = model_spec_from_hf(config), described(architecture)
    assert {*kinds(spec)} - {"dense"} <= {*kinds(told)}
    assert {*remarks(architecture, spec)} <= {*remarks(architecture, told)}
    assert spec.text_part == told.text_part
