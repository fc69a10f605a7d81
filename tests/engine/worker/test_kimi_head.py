"""The head of Kimi K3 that predicts further tokens drafts what its definition draws."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _proposals, draw_
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, _prompt
from stentor.tests.parity import kimi3, tiny


class Head(nn.Module):
    """A layer over the model's stream before its last norm, and the embedding of the next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        config, hidden = copy.deepcopy(model.config), model.config.hidden_size
        self.whole = [model]  # no module of this one
        self.enorm, self.hnorm, self.behind = (nn.RMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        config.attn_res_block_size = None
        self.layer = kimi3.Layer(config, config.num_hidden_layers)
        draw_(self, "norm", "behind")

    def stored(self) -> dict[str, torch.Tensor]:
        """Beside what it shares with the model, and what mixes the streams of the model's layers."""
        model, places = self.whole[0], {"behind.": "shared_head.norm.", "layer.": ""}
        own = dict(self.state_dict())
        for old, new in places.items():
            own = {new + name.removeprefix(old) if name.startswith(old) else name: own[name] for name in own}
        own |= {"shared_head.head.weight": model.lm_head.weight, "embed_tokens.weight": model.model.embed_tokens.weight}
        hidden = model.config.hidden_size
        own |= {f"{part}_res_proj.weight": torch.ones(1, hidden) for part in ("self_attention", "mlp")}
        own |= {f"{part}_res_norm.weight": torch.ones(hidden) for part in ("self_attention", "mlp")}
        prefix = f"language_model.model.layers.{model.config.num_hidden_layers}."
        return {prefix + name: tensor.detach().clone().contiguous() for name, tensor in own.items()}

    @torch.no_grad()
    def drafts(self, text: list[int], most: int) -> list[int]:
        model = self.whole[0]
        hidden, following = model.model(torch.tensor([text]))[:, :-1], torch.tensor([text[1:]])
        found: list[int] = []
        for _ in range(most):
            embedded = model.model.embed_tokens(following)
            embedded[:, 0] = 0  # that of position 0 is not known in training
            left = self.layer(self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=2)), None)
            logits = model.lm_head(self.behind(left[0, -1]))
            found.append(ALLOWED[int(logits[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor([found[-1:]])), dim=1)
            hidden = torch.cat((hidden, left[:, -1:]), dim=1)
        return found


def test_a_head_of_kimi_k3_drafts_what_its_definition_draws(tmp_path: Path) -> None:
    model = tiny.make("kimi-k3", tmp_path)
    head, file = Head(model).eval(), tmp_path / "model.safetensors"
    save_file({**load_file(file), **head.stored()}, file)
    described = json.loads((tmp_path / "config.json").read_text())
    described["text_config"]["num_nextn_predict_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(described))
    plain = LocalEngine(model_config(tmp_path, batch_invariant=True, max_model_len=CONTEXT))
    speculative = SpeculativeConfig("mtp", DRAFTS)
    drafting = LocalEngine(
        model_config(
            tmp_path, batch_invariant=True, max_model_len=CONTEXT, max_prefill_chunk=16, speculative=speculative
        )
    )
    proposals = _proposals(drafting)
    params = SamplingParams(max_tokens=20, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(21, 2)
    text = prompt + drafting.generate(prompt, params)
    assert text[21:] == plain.generate(prompt, params)
    assert len(proposals) > 5
    for length, drafts in proposals:
        assert drafts == head.drafts(text[:length], len(drafts))
