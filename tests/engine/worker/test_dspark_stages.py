"""Stages in DeepSeek V4.1's own files that draft blocks (DSpark): their plain definition."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import stages_head
from stentor.engine.worker.errors import SetupError
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED
from stentor.tests.engine.worker.test_mtp_forms import assert_drafts
from stentor.tests.parity import tiny
from stentor.tests.parity.deepseek41 import STAGES, Attention, Layer, _angles, _turned, summed
from stentor.tests.parity.test_deepseek41_files import CONFIG, published_of

TAPS, BLOCK = STAGES["dspark_target_layer_ids"], STAGES["dspark_block_size"]
MASK, RANK = STAGES["dspark_noise_token_id"], STAGES["dspark_markov_rank"]


class StageAttention(Attention):
    """Of a block to itself, and to the last tokens before it, which the model's streams stand for."""

    def forward(self, x: torch.Tensor, handed: Any) -> tuple[torch.Tensor, Any]:
        """x [1, block, hidden]; ``handed`` [1, tokens, hidden]: of all tokens before the block."""
        known, window = handed.shape[1], self.config.sliding_window
        of_block = _angles(self.config, False, torch.arange(known, known + x.shape[1]))
        of_others = _angles(self.config, False, torch.arange(known))
        q = _turned(self.wq_b(self.q_norm(self.wq_a(x))).unflatten(2, (self.heads, -1)), of_block)
        keys = [
            _turned(self.kv_norm(self.wkv(each)).unsqueeze(2), angles)[0, :, 0]
            for each, angles in ((handed, of_others), (x, of_block))
        ]
        seen = torch.cat((keys[0][-window:], keys[1]))
        scores = torch.einsum("thd,kd->htk", q[0], seen) * seen.shape[1] ** -0.5
        sinks = self.attn_sink[:, None, None].expand(-1, x.shape[1], 1)
        shares = torch.cat((scores, sinks), dim=2).softmax(2)[:, :, :-1]
        found = _turned(torch.einsum("htk,kd->thd", shares, seen)[None], of_block, back=True)
        by_group = found.flatten(2).unflatten(2, (self.groups, -1))
        made = torch.einsum("rtgd,god->rtgo", by_group, self.wo_a.weight.unflatten(0, (self.groups, -1)))
        return self.wo_b(made.flatten(2)), handed


class Stages(nn.Module):
    names: ClassVar[Mapping[str, str]] = {
        "main_proj": "mtp.0.main_proj",
        "main_norm": "mtp.0.main_norm",
        "norm": "mtp.1.norm",
        "before": "mtp.1.markov_head.embed",
        "behind": "mtp.1.markov_head.head",
    }

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.whole = [model]
        config = copy.deepcopy(model.config)
        config.compress_ratios, config.engram_layer_ids = [0] * 16, []
        config.n_routed_experts, config.num_experts_per_tok = 4, 2
        hidden, count = config.hidden_size, config.num_hidden_layers
        self.mtp = nn.ModuleList(Layer(config, count + number) for number in range(2))
        for number, layer in enumerate(self.mtp):
            layer.attn = StageAttention(config, count + number)
        self.main_proj = nn.Linear(len(TAPS) * hidden, hidden, bias=False)
        self.main_norm, self.norm = (nn.RMSNorm(hidden, config.rms_norm_eps) for _ in range(2))
        self.before, self.behind = nn.Embedding(config.vocab_size, RANK), nn.Linear(RANK, config.vocab_size, bias=False)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, tensor in self.named_parameters():
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(1 + 0.2 * noise if "norm" in name or name.endswith("_scale") else 0.2 * noise)
        self.eval()

    def stored(self) -> dict[str, torch.Tensor]:
        """As files have it, with what estimates confidence and corrects the experts of pictures."""
        found = {}
        for name, tensor in self.state_dict().items():
            first, _, rest = name.partition(".")
            found[f"{self.names.get(first, first)}.{rest}"] = tensor.contiguous()
        others = ("mtp.1.confidence_head.proj.weight", "mtp.0.ffn.gate.bias_vl")
        return {**found, **{name: torch.ones(1) for name in others}}

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """The mean of the model's streams before some layers, side by side: [tokens, copies · hidden]."""
        found: list[torch.Tensor] = []
        layers = [self.whole[0].layers[number] for number in TAPS]
        hooks = [layer.register_forward_pre_hook(lambda _, given: found.append(given[0])) for layer in layers]
        self.whole[0](torch.tensor(text)[None])
        for hook in hooks:
            hook.remove()
        return torch.cat([streams[0].mean(1) for streams in found], dim=1)

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        model, known = self.whole[0], len(text) - 1
        before: Any = self.main_norm(self.main_proj(given[None, :known]))
        block = torch.tensor([[text[-1], *[MASK] * (BLOCK - 1)]])
        x = model.embed(block).unsqueeze(2).repeat(1, 1, model.config.hc_mult, 1)
        mix = torch.zeros(x.shape[:3])
        mix[:, :, 0] = 1
        for layer in self.mtp:
            x, mix, _ = layer(x, mix, before, block)
        found: list[int] = []
        for logits in model.head(self.norm(summed(x, mix)))[0, :most]:
            whole = logits + self.behind(self.before.weight[found[-1] if found else text[-1]])
            found.append(ALLOWED[int(whole[list(ALLOWED)].argmax())])
        return found


def made(folder: Path) -> Stages:
    """The definition of stages, which are in the model's files too."""
    stages = Stages(tiny.make("deepseek-v4.1", folder))
    weights = load_file(folder / "model.safetensors") | stages.stored()
    del weights["mtp.0.norm.weight"]  # which the model's own files have to be passed over
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return stages


@pytest.mark.proof
def test_stages_draft_what_their_definition_says(tmp_path: Path) -> None:
    """Also behind a prefix that is found in the cache."""
    assert_drafts(tmp_path, made(tmp_path), prompt_len=30, max_tokens=15, again=True)


@pytest.mark.proof
def test_stages_in_float8_and_float4_draft_what_their_definition_says(tmp_path: Path) -> None:
    """As DeepSeek stores them: experts in FP4, other products in FP8."""
    stages = made(tmp_path)
    published, values = published_of(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        for name, tensor in stages.stored().items():
            tensor.copy_(values[name])
    stages.whole[0].load_state_dict({name: values[name] for name in stages.whole[0].state_dict()})
    save_file(published, tmp_path / "model.safetensors", {"format": "pt"})
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "quantization_config": CONFIG}))
    assert_drafts(tmp_path, stages, prompt_len=14, max_tokens=15)


def test_more_tokens_than_a_block_has_are_refused() -> None:
    spec = model_spec_from_hf(tiny.described("deepseek-v4.1"))
    assert spec.stages is not None
    assert stages_head(spec, spec.stages, BLOCK).block == BLOCK
    with pytest.raises(ConfigError, match="num_speculative_tokens is 6, expected at most 5"):
        stages_head(spec, spec.stages, BLOCK + 1)


def test_a_model_without_stages_needs_a_head_with_its_name(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    with pytest.raises(
        SetupError, match="LlamaForCausalLM: it has no stages that draft blocks; give the head as model"
    ):
        LocalEngine(model_config(tmp_path, speculative=SpeculativeConfig("dspark", 3)))
