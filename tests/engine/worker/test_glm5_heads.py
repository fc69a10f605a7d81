"""GLM 5.3 Flash's head proposes what its definition draws of transformers' hidden states, and texts stay."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.glm5_next import modeling_glm5_next as glm5

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _by_expert, _proposals, draw_
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import prompt_of

DRAFTS, LAYERS = 3, 4


class Head(nn.Module):
    """A plain definition, over whole texts, of modules of transformers: one stream, an index that chooses all."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.whole = [model]  # no module of this one
        config = copy.deepcopy(model.config.text_config)
        config.index_topk, config._attn_implementation = 4096, "eager"
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm, self.input_layernorm, self.post_attention_layernorm, self.shared_norm = (
            glm5.Glm5NextTextRMSNorm(hidden, eps) for _ in range(5)
        )
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.self_attn: Any = glm5.Glm5NextTextAttention(config, 1)
        self.mlp: Any = glm5.Glm5NextTextMoE(config)
        draw_(self)

    def stored(self) -> dict[str, torch.Tensor]:
        """The weights under the names of published checkpoints, with copies of the model's embeddings and head."""
        model, behind = self.whole[0], f"model.language_model.layers.{LAYERS}."
        own = {name.replace("shared_norm.", "shared_head.norm."): each for name, each in self.state_dict().items()}
        own["shared_head.head.weight"] = model.lm_head.weight.detach().clone()
        own["embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
        return {f"{behind}{name}": tensor.contiguous() for name, tensor in _by_expert(own).items()}

    def left(self, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Normed, of tokens [n] that follow positions 0 to n - 1, and hidden states there [n, hidden]."""
        e = self.whole[0].get_input_embeddings()(following)
        e = e.masked_fill((torch.arange(len(e)) == 0)[:, None], 0)
        x = self.eh_proj(torch.cat((self.enorm(e), self.hnorm(hidden)), dim=1))[None]
        seen = torch.ones(1, len(e), dtype=torch.bool)
        x = x + self.self_attn(self.input_layernorm(x), attention_mask=seen)[0]
        x = x + self.mlp(self.post_attention_layernorm(x))
        normed: torch.Tensor = self.shared_norm(x)[0]
        return normed

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: the model's hidden states at each position of this text, or a longer one that begins so."""
        hidden, following = given[: len(text) - 1], torch.tensor(text[1:])
        found: list[int] = []
        for _ in range(most):
            left = self.left(following, hidden)
            logits = self.whole[0].lm_head(left[-1])
            found.append(ALLOWED[int(logits[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor(found[-1:])))
            hidden = torch.cat((hidden, left[-1:]))
        return found


@pytest.mark.proof
@pytest.mark.parametrize("packed", [False, True])
def test_a_head_drafts_what_its_definition_draws_of_transformers_hidden_states(packed: bool, tmp_path: Path) -> None:
    """Behind a prompt that is computed in pieces and longer than the model's index chooses; drafts that are taken back
    leave states as they were."""
    model = tiny.make("glm5-next-seeing", tmp_path)
    head = Head(model).eval()
    described = json.loads((tmp_path / "config.json").read_text())
    described["text_config"]["num_nextn_predict_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(described))
    weights = {**load_file(tmp_path / "model.safetensors"), **head.stored()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    drafting, plain = (
        LocalEngine(model_config(tmp_path, max_model_len=128, max_prefill_chunk=16, batch_invariant=not packed, **more))
        for more in ({"speculative": SpeculativeConfig("mtp", DRAFTS)}, {})
    )
    proposals = _proposals(drafting)
    params, prompt = SamplingParams(max_tokens=16, temperature=0.0, allowed_token_ids=ALLOWED), prompt_of(2, 37)
    text = prompt + drafting.generate(prompt, params)
    assert text[37:] == plain.generate(prompt, params)
    right, drafted = accepted(drafting)
    assert 0 < right < drafted
    assert len(proposals) > 5
    with torch.no_grad():
        given = model.model.language_model(torch.tensor(text)[None]).last_hidden_state[0]
    for length, drafts in proposals:
        assert drafts == head.drafts(text[:length], len(drafts), given)
