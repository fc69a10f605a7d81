"""Heads for multi-token prediction as their makers store them: what they propose is what a model of one layer says.

The forms of DeepSeek's and Qwen's heads are in :mod:`.test_draft_heads`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.hy_v4 import modeling_hy_v4
from transformers.models.longcat_flash import modeling_longcat_flash

from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.hf.draft_head import mtp_head_stored
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _by_expert, _proposals, draw_
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, _prompt
from stentor.tests.parity import tiny

_ENDING = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "fc": "eh_proj", "norm": "final_layernorm"}
_APART = {
    "layer": "layers.0",
    "embedding_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "fc": "fc",
    "norm": "norm",
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """A head's names, its order of inputs, and the model of one layer that its layer is."""

    names: Mapping[str, str]
    """Of its parts behind ``prefix``."""
    prefix: str = ""
    """"": it is a layer behind the model's last."""
    one: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model of one layer."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config.json besides."""
    embeds: str = ""
    """The stored name of its own embeddings; "": the model's."""
    hidden_first: bool = False
    takes_stream: bool = False
    skips_first: bool = False
    feeds_normed: bool = True
    build: Callable[[Any], nn.Module] | None = None
    """Of a configuration, in place of transformers' model of one layer."""
    several: bool = False
    """Whether there may be further heads, which are not read."""
    whole_experts: bool = False
    """Whether the matrices of all experts are stored as one, as transformers has them."""
    stored: Callable[[str], str] = str
    """The stored name of a part of the layer."""


class _PlainLayer(nn.Module):
    """Attention and a network, without what the models have around their layers."""

    def __init__(self, config: Any, modeling: Any, family: str, attention: str, network: str) -> None:
        super().__init__()
        config._attn_implementation = "eager"
        norm = getattr(modeling, f"{family}RMSNorm")
        self.input_layernorm, self.post_attention_layernorm = (norm(config.hidden_size) for _ in range(2))
        self.self_attn = getattr(modeling, f"{family}{attention}")(config, 0)
        self.mlp = getattr(modeling, f"{family}{network}")(config)
        self.rotary = getattr(modeling, f"{family}RotaryEmbedding")(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        both = {"position_embeddings": self.rotary(x, places), "position_ids": places, "attention_mask": mask}
        x = x + self.self_attn(self.input_layernorm(x), **both)[0]
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)))


def _longcat(config: Any) -> nn.Module:
    return _PlainLayer(config, modeling_longcat_flash, "LongcatFlash", "MLA", "MLP")


def _hy4(config: Any) -> nn.Module:
    return _PlainLayer(config, modeling_hy_v4, "HYV4", "Attention", "MoE")


def _renamed(**parts: str) -> Callable[[str], str]:
    """Replaces parts of names; two underscores are a dot."""

    def renamed(name: str) -> str:
        for part, stored in parts.items():
            name = name.replace(part.replace("__", "."), stored)
        return name

    return renamed


_FORMS: Mapping[str, Form] = {
    "ernie-moe": Form(
        prefix="model.mtp_",
        names={
            "layer": "block.0",
            "embedding_norm": "emb_norm.0",
            "hidden_norm": "hidden_norm.0",
            "fc": "linear_proj.0",
        },
        one={"mlp_layer_types": ["dense"], "moe_layer_start_index": 9, "moe_layer_end_index": 9},
        said={"num_nextn_predict_layers": 1},
        skips_first=True,
        feeds_normed=False,
    ),
    "exaone-moe": Form(
        prefix="mtp.",
        names=_APART,
        one={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
        said={"mtp_layer_types": ["sliding_attention"]},
    ),
    "mellum": Form(
        prefix="mtp.",
        names=_APART,
        one={"layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"]},
        said={"num_nextn_predict_layers": 1},
    ),
    "hy-v3": Form(
        names={"layer": "", **_ENDING},
        one={"mlp_layer_types": ["sparse"]},
        skips_first=True,
        stored=_renamed(
            e_score_correction_bias="expert_bias", mlp__gate="mlp.router.gate", shared_experts="shared_mlp"
        ),
    ),
    "ling": Form(
        names={"layer": "", **_ENDING},
        one={"layer_types": ["full_attention"], "mlp_layer_types": ["sparse"]},
        stored=_renamed(
            e_score_correction_bias="expert_bias", self_attn__o_proj="attention.dense", self_attn="attention"
        ),
    ),
    "dots3-note": Form(
        names={"layer": "", **_ENDING, "norm": "shared_head.norm"},
        one={
            **{"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
            "per_layer_config": {
                0: {
                    **{"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 48},
                    **{"head_dim": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 20},
                }
            },
        },
        embeds="model.mtp.embed_tokens.weight",
        skips_first=True,
    ),
    "mimo": Form(
        prefix="model.mtp_layers.",
        names={
            "layer": "0",
            "embedding_norm": "0.token_layernorm",
            "hidden_norm": "0.hidden_layernorm",
            "fc": "0.input_proj",
            "norm": "0.final_layernorm",
        },
        one={"layer_types": ["full_attention"]},
        hidden_first=True,
        takes_stream=True,
        several=True,
        skips_first=True,
    ),
    "minimax-m3": Form(
        prefix="model.mtp.",
        names={
            "layer": "layers.0.transformer_layer",
            **{part: f"layers.0.{name}" for part, name in _ENDING.items()},
        },
        one={"layer_types": ["minimax_m3_sparse"], "mlp_layer_types": ["sparse"]},
        whole_experts=True,
        skips_first=True,
        several=True,
        feeds_normed=False,
    ),
    "hy-v4-shared": Form(
        prefix="model.mtp_layers.",
        names={"layer": "0", **{part: f"0.{name}" for part, name in _ENDING.items()}},
        one={"indexer_types": ["full"], "mlp_layer_types": ["sparse"], "layer_types": ["indexed_attention"]},
        build=_hy4,
        skips_first=True,
        several=True,
        stored=_renamed(
            self_attn__gate_proj="self_attn.linear_gate", self_attn__sinks="self_attn.learnable_sink_param"
        ),
    ),
    "ling2.5": Form(
        names={"layer": "", **_ENDING},
        one={"first_k_dense_replace": 0},
        skips_first=True,
        stored=_renamed(
            e_score_correction_bias="expert_bias", self_attn__o_proj="attention.dense", self_attn="attention"
        ),
    ),
    "mimo-v2-flash": Form(
        prefix="model.mtp.",
        names={"layer": "layers.0", **{part: f"layers.0.{name}" for part, name in _ENDING.items()}},
        one={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
        several=True,
        stored=_renamed(post_attention_layernorm="pre_mlp_layernorm"),
    ),
    "longcat": Form(
        prefix="model.mtp.",
        names={
            "layer": "layers.0",
            "embedding_norm": "layers.0.enorm.m",
            "hidden_norm": "layers.0.hnorm.m",
            "fc": "layers.0.eh_proj",
            "norm": "norm",
        },
        build=_longcat,
        stored=_renamed(mlp__="transformer_layer.mlp."),
    ),
    "nemotron-h-moe": Form(
        prefix="mtp.",
        names={
            "layer": "layers",
            **{part: f"layers.0.{name}" for part, name in _ENDING.items()},
            "norm": "layers.1.final_layernorm",
        },
        one={"layers_block_type": ["full_attention", "moe"], "num_hidden_layers": 2},
        said={"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["full_attention", "moe"]},
    ),
    **dict.fromkeys(
        ("step3.5", "step5"),
        Form(
            names={
                "layer": "",
                **_ENDING,
                "norm": "transformer.shared_head.norm",
                "head": "transformer.shared_head.output",
            },
            one={
                **{"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
                **{"swiglu_limits_shared": [0.0], "swiglu_limits": [0.0]},
                "per_layer_config": {0: {"num_attention_heads": 8}},
            },
            takes_stream=True,
            feeds_normed=False,
        ),
    ),
}


class Head(nn.Module):
    """A plain definition over whole texts."""

    def __init__(self, form: Form, model: Any) -> None:
        super().__init__()
        self.form, self.whole = form, [model]
        text = model.config.get_text_config()
        self.text = text
        self.body = [model.get_decoder()]
        one = type(text).from_dict({**text.to_dict(), "num_hidden_layers": 1, **form.one})
        norm = type(getattr(self.body[0], "norm", None) or self.body[0].norm_f)
        eps = getattr(text, "rms_norm_eps", None) or text.layer_norm_epsilon
        self.embedding_norm, self.hidden_norm, self.norm = (norm(text.hidden_size, eps=eps) for _ in range(3))
        self.fc = nn.Linear(2 * text.hidden_size, text.hidden_size, bias=False)
        if "norm" not in form.names:
            self.norm = nn.Identity()
        if "head" in form.names:
            self.head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if form.embeds:
            self.embedding = nn.Embedding(text.vocab_size, text.hidden_size)
        if form.build is not None:
            self.layer = form.build(one)
        else:
            self.layer = type(self.body[0])._from_config(one, attn_implementation="eager")
            for ending in ("norm", "norm_f"):
                if hasattr(self.layer, ending):
                    setattr(self.layer, ending, nn.Identity())
            for embedding in ("embed_tokens", "embeddings", "word_embeddings"):
                if hasattr(self.layer, embedding):
                    delattr(self.layer, embedding)
        draw_(self)
        self.eval()

    def stored(self) -> dict[str, torch.Tensor]:
        """As checkpoints name it."""
        names, behind = self.form.names, f"model.layers.{self.text.num_hidden_layers}."
        found = {}
        for name, tensor in self.state_dict().items():
            part, _, rest = name.partition(".")
            if part == "embedding":
                found[self.form.embeds] = tensor
                continue
            if part == "layer":
                rest = self.form.stored(rest.removeprefix("layers.0." if names["layer"] != "layers" else "layers."))
            whole = ".".join(piece for piece in (names[part], rest) if piece)
            found[(self.form.prefix or behind) + whole] = tensor
        return found

    def left(self, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Of tokens [n] that follow positions 0 to n - 1, and hidden states there [n, hidden]."""
        form, count = self.form, len(following)
        embedding = self.embedding if form.embeds else self.whole[0].get_input_embeddings()
        e: torch.Tensor = embedding(following)
        if form.skips_first:
            e = e.masked_fill((torch.arange(count) == 0)[:, None], 0)
        both = [self.embedding_norm(e), self.hidden_norm(hidden)]
        x = self.fc(torch.cat(both[::-1] if form.hidden_first else both, dim=1))[None]
        found = self.layer(x) if form.build else self.layer(inputs_embeds=x, use_cache=False).last_hidden_state
        return torch.as_tensor(found[0])

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """The model's hidden states of a text, behind its last norm or before."""
        if self.form.takes_stream:
            found: list[torch.Tensor] = []
            hook = self.body[0].norm.register_forward_pre_hook(lambda _, given: found.append(given[0][0]))
            self.body[0](torch.tensor(text)[None], use_cache=False)
            hook.remove()
            return found[0]
        return torch.as_tensor(self.body[0](torch.tensor(text)[None], use_cache=False).last_hidden_state[0])

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        head = self.head if "head" in self.form.names else self.whole[0].lm_head
        hidden, following = given[: len(text) - 1], torch.tensor(text[1:])
        found: list[int] = []
        for _ in range(most):
            left = self.left(following, hidden)
            logits = head(self.norm(left[-1]))
            found.append(ALLOWED[int(logits[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor(found[-1:])))
            hidden = torch.cat((hidden, self.norm(left[-1:]) if self.form.feeds_normed else left[-1:]))
        return found


class Definition(Protocol):
    """What a head should propose."""

    def given(self, text: list[int]) -> torch.Tensor:
        """What it gets of the model at each position of a text."""

    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""


def engines(folder: Path) -> tuple[LocalEngine, LocalEngine]:
    """One that drafts with the head of this checkpoint, and one that does not."""
    changes: dict[str, Any] = {"batch_invariant": True, "max_model_len": CONTEXT}
    speculative = SpeculativeConfig("mtp", DRAFTS)
    drafting = LocalEngine(model_config(folder, speculative=speculative, max_prefill_chunk=16, **changes))
    return drafting, LocalEngine(model_config(folder, **changes))


def assert_drafts(
    folder: Path, head: Definition, prompt_len: int = 60, max_tokens: int = 30, *, again: bool = False
) -> None:
    """Asserts that the head in the checkpoint proposes what it should, and that texts stay, in one several times as
    long as its window; ``again``: also behind a prefix that is found in the cache."""
    drafting, plain = engines(folder)
    if again:  # states of prefixes are kept where steps end
        drafting.restart(drafting.ready.num_blocks, max_num_batched_tokens=16)
    proposals = _proposals(drafting)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt, proposed = _prompt(prompt_len, 2), 0
    for turn in range(1 + again):
        proposals.clear()
        text = prompt + drafting.generate(prompt, params)
        assert text[len(prompt) :] == plain.generate(prompt, params)
        assert drafting.prompts[turn].cached_tokens >= 16 * turn
        proposed += len(proposals)
        given = head.given(text)
        for length, drafts in proposals:
            assert drafts == head.drafts(text[:length], len(drafts), given)
        prompt = [*text, ALLOWED[0]]
    assert proposed > 5
    assert accepted(drafting)[1] > 5


@pytest.mark.proof(each="architecture")
@pytest.mark.parametrize("architecture", _FORMS)
def test_a_head_drafts_what_a_model_of_its_layer_says(architecture: str, tmp_path: Path) -> None:
    form = _FORMS[architecture]
    model = tiny.make(architecture, tmp_path)
    model.config._attn_implementation = "eager"
    head = Head(form, model)
    described = json.loads((tmp_path / "config.json").read_text())
    described |= {"num_nextn_predict_layers": 1, **form.said} if not architecture.startswith("step") else {}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert mtp_head_stored(model_spec_from_hf(described))
    weights = load_file(tmp_path / "model.safetensors")
    stored = head.stored() if form.whole_experts else _by_expert(head.stored())
    weights |= {name: tensor.contiguous() for name, tensor in stored.items()}
    if form.several:
        weights |= {re.sub(r"\b0\.", "1.", name, count=1): torch.ones(1) for name in stored}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert_drafts(tmp_path, head)
