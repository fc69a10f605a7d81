"""Models whose residual stream is float32 in any compute dtype, where a pass is no program."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.models.decoder import Decoder
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder


@pytest.mark.proof
def test_step5_adds_in_float32_where_its_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file, seen = tiny.make("step5", tmp_path), tmp_path / "config.json", []
    prompt, config, plain = prompt_of(8, 24), json.loads(file.read_text()), Decoder.logits

    def logits(own: Decoder, hidden: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        seen.append(hidden.dtype)
        return plain(own, hidden, *others, **options)

    monkeypatch.setattr(Decoder, "logits", logits)
    for exact in (True, False):
        file.write_text(json.dumps({**config, "fp32_residual_connection": exact}))
        ours = PagedDecoder(tmp_path, dtype=torch.bfloat16, packed=False)
        ours.add(0, prompt)
        found = torch.cat([*ours.run((0, 0, 9)), *ours.run((0, 9, 15))])
        expected = expected_logits(model, prompt)
        assert (found - expected).abs().mean() < 0.1 * expected.std()
    assert seen == [torch.float32] * 2 + [torch.bfloat16] * 2
