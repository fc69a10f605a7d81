"""Heads for multi-token prediction with as many residual streams as their model: their plain definitions, and files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek
from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen

from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import mtp_head_stored
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _by_expert, draw_
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_mtp_forms import assert_drafts, engines
from stentor.tests.engine.worker.test_speculation import Ask, _prompt, _run, _same
from stentor.tests.parity import tiny
from stentor.tests.parity.test_deepseek4_files import QUANTISED, published_of


class StreamHead(nn.Module):
    """A plain definition over whole texts: a layer over streams, each a projection of the model's with one of the
    embedding added."""

    embedding_norm: nn.Module
    hidden_norm: nn.Module
    narrow: nn.Module
    said: ClassVar[Mapping[str, Any]] = {}
    """Fields of the config.json besides."""
    names: ClassVar[Mapping[str, str]]
    """Stored beginnings of names, of this one's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.whole = [model]
        self.config = model.config.get_text_config()
        hidden = self.config.hidden_size
        self.fc, self.embedding_fc = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)

    def finish(self) -> None:
        """Random weights."""
        draw_(self)
        self.eval()

    def stored(self) -> dict[str, torch.Tensor]:
        """As checkpoints name it, or more of them."""
        found = {}
        for name, tensor in _by_expert(self.state_dict()).items():
            for ours, theirs in self.names.items():
                name = name.replace(ours, theirs)
            found[name] = tensor.contiguous()
        return found

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """The layer over [1, tokens, streams, hidden]."""
        raise NotImplementedError

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """[1, tokens, streams, hidden] → [1, tokens, hidden], what the output head takes."""
        return torch.as_tensor(self.narrow(x))

    def normed(self, streams: torch.Tensor) -> torch.Tensor:
        """[tokens, streams, hidden]"""
        return torch.as_tensor(self.hidden_norm(streams))

    def embedded(self, following: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.whole[0].get_input_embeddings()(following)
        return found

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """The model's streams [tokens, streams, hidden] behind its last layer."""
        found: list[torch.Tensor] = []
        body = self.whole[0].get_decoder()
        hook = body.layers[-1].register_forward_hook(lambda *called: found.append(called[2]))
        body(torch.tensor(text)[None], use_cache=False)
        hook.remove()
        return found[0].reshape(len(text), -1, self.config.hidden_size)

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        streams, following = given[: len(text) - 1], torch.tensor(text[1:])
        found: list[int] = []
        for _ in range(most):
            embedded = self.embedding_fc(self.embedding_norm(self.embedded(following)))
            x = self.fc(self.normed(streams)) + embedded[:, None]
            left = self.run(x[None])
            logits = self.whole[0].lm_head(self.narrowed(left)[0, -1])
            found.append(ALLOWED[int(logits[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor(found[-1:])))
            streams = torch.cat((streams, left[0, -1:]))
        return found


class DeepSeekV4(StreamHead):
    """A layer of the model's that sees a window alone. The first token of a text has no embedding."""

    names: ClassVar[Mapping[str, str]] = {
        "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
        "layer.": "mtp.0.",
        "self_attn.sinks": "attn.attn_sink",
        "self_attn.": "attn.",
        "mlp.": "ffn.",
        **{f"attn_hc.{part}": f"hc_attn_{part}" for part in ("fn", "base", "scale")},
        **{f"ffn_hc.{part}": f"hc_ffn_{part}" for part in ("fn", "base", "scale")},
        "q_a_proj": "wq_a",
        "q_a_norm": "q_norm",
        "q_b_proj": "wq_b",
        "kv_proj": "wkv",
        "o_a_proj": "wo_a",
        "o_b_proj": "wo_b",
        "gate_proj": "w1",
        "down_proj": "w2",
        "up_proj": "w3",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attn_norm",
        "embedding_norm": "mtp.0.enorm",
        "hidden_norm": "mtp.0.hnorm",
        "embedding_fc": "mtp.0.e_proj",
        "fc.": "mtp.0.h_proj.",
        "narrow.0.hc_": "mtp.0.hc_head_",
        "narrow.1": "mtp.0.norm",
    }

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        alone = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "mlp_layer_types": ["moe"]}
        one = type(self.config).from_dict({**self.config.to_dict(), **alone})
        one._attn_implementation = "eager"
        hidden, eps = one.hidden_size, one.rms_norm_eps
        self.embedding_norm, self.hidden_norm, norm = (deepseek.DeepseekV4RMSNorm(hidden, eps=eps) for _ in range(3))
        self.layer = deepseek.DeepseekV4DecoderLayer(one, 0)
        self.narrow = nn.Sequential(deepseek.DeepseekV4HyperHead(one), norm)
        self.finish()

    def stored(self) -> dict[str, torch.Tensor]:
        """With what files may repeat, and a tensor of a further head."""
        ignored = ("mtp.0.head.weight", "mtp.0.emb.tok_emb.weight", "mtp.1.norm.weight")
        return {**super().stored(), **{name: torch.ones(1) for name in ignored}}

    def embedded(self, following: torch.Tensor) -> torch.Tensor:
        return super().embedded(following).masked_fill((torch.arange(len(following)) == 0)[:, None], 0)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        back = places[:, None] - places
        mask = torch.zeros(back.shape).masked_fill((back < 0) | (back >= self.config.sliding_window), -torch.inf)
        turned = self.whole[0].model.rotary_emb(x[:, :, 0], position_ids=places[None], layer_type="main")
        made = self.layer(
            x, position_embeddings={"main": turned}, position_ids=places[None], attention_mask=mask[None, None]
        )
        return torch.as_tensor(made)


class Qwen4(StreamHead):
    """A layer with attention. All streams have one norm together, and none stands before the output head."""

    said: ClassVar[Mapping[str, Any]] = {"mtp_num_hidden_layers": 1}
    names: ClassVar[Mapping[str, str]] = {
        "layer.": "mtp.layers.0.",
        "embedding_norm": "mtp.pre_fc_norm_embedding",
        "hidden_norm": "mtp.pre_fc_norm_hidden",
        "embedding_fc": "mtp.fc_embedding",
        "fc.": "mtp.fc_hidden.",
        "narrow.": "mtp.hyper_connection_mixer.",
    }

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        alone = {"num_hidden_layers": 1, "layer_types": ["indexed_attention"], "ple_layer_ids": None}
        one = type(self.config).from_dict({**self.config.to_dict(), **alone})
        one._attn_implementation = "eager"
        hidden, eps = one.hidden_size, one.rms_norm_eps
        self.embedding_norm = qwen.Qwen4ExpTextRMSNorm(hidden, eps=eps)
        self.hidden_norm = qwen.Qwen4ExpTextRMSNorm(one.hc_count * hidden, eps=eps)
        self.layer = qwen.Qwen4ExpTextDecoderLayer(one, 0)
        self.narrow = qwen.Qwen4ExpTextGatedResidual(one, use_combine=False)
        self.finish()

    def stored(self) -> dict[str, torch.Tensor]:
        """With a tensor that nothing is computed with."""
        return {**super().stored(), "mtp.hyper_connection_mixer.block_inject_weight.weight": torch.ones(1)}

    def normed(self, streams: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.hidden_norm(streams.flatten(1)).view_as(streams))

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.narrow(x.flatten(2)))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[1]
        places = torch.arange(count).expand(3, 1, -1)
        mask = torch.full((count, count), torch.finfo(x.dtype).min).triu(1)[None, None]
        turned = self.whole[0].get_decoder().rotary_emb(x[:, :, 0], places)
        made = self.layer(x.flatten(2), position_embeddings=turned, attention_mask=mask)
        return torch.as_tensor(made.view_as(x))


HEADS: Mapping[str, type[StreamHead]] = {
    **dict.fromkeys(("deepseek-v4", "deepseek-v4-plain"), DeepSeekV4),
    **dict.fromkeys(("qwen4", "qwen4-plain"), Qwen4),
}


def made(architecture: str, folder: Path) -> StreamHead:
    """The definition of a head, which is in the model's files too."""
    model = tiny.make(architecture, folder)
    model.config._attn_implementation = "eager"
    head = HEADS[architecture](model)
    described = json.loads((folder / "config.json").read_text()) | head.said
    (folder / "config.json").write_text(json.dumps(described))
    assert mtp_head_stored(model_spec_from_hf(described))
    weights = load_file(folder / "model.safetensors") | head.stored()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return head


@pytest.mark.proof(each="architecture")
@pytest.mark.parametrize("architecture", HEADS)
def test_a_head_over_streams_drafts_what_its_definition_says(architecture: str, tmp_path: Path) -> None:
    """Also behind a prefix that is found in the cache."""
    assert_drafts(tmp_path, made(architecture, tmp_path), prompt_len=30, max_tokens=15, again=True)


@pytest.mark.proof
def test_texts_are_the_same_with_a_head_over_streams_that_preemptions_interrupt(tmp_path: Path) -> None:
    made("deepseek-v4-plain", tmp_path)
    drafting, plain = engines(tmp_path)
    params = SamplingParams(max_tokens=24, temperature=0.8, allowed_token_ids=ALLOWED)
    asks: list[Ask] = [(_prompt(12 + each, each), params, [each], None) for each in range(3)]
    _same(_run(drafting, asks, blocks=6), _run(plain, asks))
    assert drafting.scheduler.stats().preemptions > 0
    assert accepted(drafting)[0] > 3


@pytest.mark.proof
def test_a_head_in_float8_and_float4_drafts_what_its_definition_says(tmp_path: Path) -> None:
    """As DeepSeek stores it: experts in FP4, other products in FP8. Of a text whose first token is seen at first."""
    head = made("deepseek-v4-plain", tmp_path)
    published, values = published_of(load_file(tmp_path / "model.safetensors"))
    save_file(values, tmp_path / "model.safetensors", {"format": "pt"})
    for name, tensor in head.stored().items():
        tensor.copy_(values[name])
    head.whole[0] = type(head.whole[0]).from_pretrained(tmp_path, attn_implementation="eager")
    save_file(published, tmp_path / "model.safetensors", {"format": "pt"})
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, **QUANTISED}))
    assert_drafts(tmp_path, head, prompt_len=4, max_tokens=20)
