"""EAGLE-3 heads of other forms: what they propose is what a plain definition draws of transformers' hidden states."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _proposals, check_interrupted
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, _prompt
from stentor.tests.parity import tiny

TAPS = [0, 1, 2]
MASK = 319
LAYERS = 2


@dataclass(frozen=True, kw_only=True)
class Form:
    qwen: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config.json besides those of the layers."""
    within: str = ""
    """The field that has those of the layers; "": they stand beside."""
    taps: str = ""
    """``whole``: all copies are normed as one; ``each``: each by itself."""
    norm_before_residual: bool = False
    feeds_normed: bool = False
    parallel: bool = False


_FORMS: Mapping[str, Form] = {
    "speculators": Form(
        qwen=True,
        told={"speculators_model_type": "eagle3", "fc_norm": True, "norm_output": True},
        within="transformer_layer_config",
        taps="each",
        norm_before_residual=True,
        feeds_normed=True,
    ),
    "parallel": Form(
        told={
            "architectures": ["PeagleLlamaForCausalLM"],
            "pard_token": MASK,
            "eagle_config": {"norm_before_fc": True},
        },
        taps="whole",
        parallel=True,
    ),
}


class Head(nn.Module):
    def __init__(self, form: Form, target: Any) -> None:
        super().__init__()
        self.form, self.whole, size = form, [target], target.config.hidden_size
        modeling: Any = modeling_qwen3 if form.qwen else modeling_llama
        family, kind = ("Qwen3", Qwen3Config) if form.qwen else ("Llama", LlamaConfig)
        self.config = kind(**{**tiny.SHAPE, "num_hidden_layers": LAYERS, "head_dim": 16})
        self.config._attn_implementation = "eager"
        norm = getattr(modeling, f"{family}RMSNorm")
        layers = [getattr(modeling, f"{family}DecoderLayer")(self.config, at) for at in range(LAYERS)]
        for part in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layers[0].self_attn, part)
            setattr(layers[0].self_attn, part, nn.Linear(2 * size, old.out_features, bias=False))
        self.layers = nn.ModuleList(layers)
        self.layers[0].hidden_norm = norm(size, eps=self.config.rms_norm_eps)
        self.norm = norm(size, eps=self.config.rms_norm_eps)
        if form.taps == "each":
            self.fc_norm = nn.ModuleList(norm(size, eps=self.config.rms_norm_eps) for _ in TAPS)
        if form.taps == "whole":
            self.input_norm = norm(len(TAPS) * size, eps=self.config.rms_norm_eps)
        self.fc = nn.Linear(len(TAPS) * size, size, bias=False)
        self.lm_head = nn.Linear(size, tiny.VOCAB, bias=False)
        if form.parallel:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(TAPS) * size))
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, tensor in self.named_parameters():
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(1 + 0.2 * noise if "norm" in name else (1 if "mask" in name else 0.15) * noise)
        self.eval()

    def described(self) -> dict[str, Any]:
        own = {name: value for name, value in self.config.to_dict().items() if name != "architectures"}
        layers = {self.form.within: own} if self.form.within else own
        return {**layers, "eagle_aux_hidden_state_layer_ids": TAPS, **self.form.told}

    def combined(self, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.form.taps == "each":
            copies = [norm(copy) for norm, copy in zip(self.fc_norm, copies, strict=True)]
        joined = torch.cat([*copies], dim=-1)
        return torch.as_tensor(self.fc(self.input_norm(joined) if self.form.taps == "whole" else joined))

    def left(self, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Of tokens [n] that follow positions 0 to n - 1, and hidden states there [n, hidden]."""
        layers: list[Any] = [*self.layers]
        (first, *others), count, model = layers, len(following), self.whole[0].model
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        both = {
            "attention_mask": mask,
            "position_embeddings": model.rotary_emb(hidden[None], torch.arange(count)[None]),
        }
        normed = first.hidden_norm(hidden)
        x = torch.cat((first.input_layernorm(model.embed_tokens(following)), normed), dim=1)
        h = normed if self.form.norm_before_residual else hidden
        h = h + first.self_attn(hidden_states=x[None], **both)[0][0]
        h = h + first.mlp(first.post_attention_layernorm(h))
        for layer in others:
            h = layer(h[None], **both)[0].view(count, -1)
        return torch.as_tensor(h)

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """What it gets of the model at each position of a text."""
        found = self.whole[0].model(torch.tensor(text)[None], output_hidden_states=True, use_cache=False).hidden_states
        return self.combined([found[tap][0] for tap in TAPS])

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        hidden, following = given[: len(text) - 1], torch.tensor(text[1:])
        if self.form.parallel:
            masked = self.combined(self.mask_hidden[0].split(self.fc.out_features, dim=1))
            following = torch.cat((following, torch.tensor([MASK] * (most - 1), dtype=torch.int64)))
            left = self.left(following, torch.cat((hidden, masked.expand(most - 1, -1))))[-most:]
            return [ALLOWED[int(row[list(ALLOWED)].argmax())] for row in self.lm_head(self.norm(left))]
        found: list[int] = []
        for _ in range(most):
            left = self.left(following, hidden)[-1:]
            logits = self.lm_head(self.norm(left))[0]
            found.append(ALLOWED[int(logits[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor(found[-1:])))
            hidden = torch.cat((hidden, self.norm(left) if self.form.feeds_normed else left))
        return found


class Made:
    def __init__(self, form: Form, folder: Path) -> None:
        for name in ("target", "head"):
            (folder / name).mkdir()
        self.folder = folder
        target = tiny.make("llama", folder / "target")
        target.config._attn_implementation = "eager"
        self.head = Head(form, target)
        (folder / "head" / "config.json").write_text(json.dumps(self.head.described()))
        own = {name: tensor.detach().contiguous() for name, tensor in self.head.state_dict().items()}
        save_file(own, folder / "head" / "model.safetensors", {"format": "pt"})
        changes: dict[str, Any] = {"batch_invariant": True, "max_model_len": CONTEXT}
        speculative = SpeculativeConfig("eagle3", DRAFTS, model=str(folder / "head"))
        self.plain = LocalEngine(model_config(folder / "target", **changes))
        self.drafting = LocalEngine(
            model_config(folder / "target", speculative=speculative, max_prefill_chunk=16, **changes)
        )


@pytest.fixture(scope="module", params=_FORMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(_FORMS[request.param], tmp_path_factory.mktemp(request.param))


def test_a_head_drafts_what_its_definition_draws(made: Made) -> None:
    proposals = _proposals(made.drafting)
    params = SamplingParams(max_tokens=30, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(37, 2)
    text = prompt + made.drafting.generate(prompt, params)
    assert text[37:] == made.plain.generate(prompt, params)
    right, drafted = accepted(made.drafting)
    assert 0 < right < drafted
    assert len(proposals) > 5
    assert max(len({*drafts}) for _, drafts in proposals) > 1
    given = made.head.given(text)
    for length, drafts in proposals:
        assert drafts == made.head.drafts(text[:length], len(drafts), given)


@pytest.mark.parametrize("made", ["parallel"], indirect=True)
def test_texts_are_the_same_with_a_parallel_head_that_preemptions_and_crashes_interrupt(made: Made) -> None:
    check_interrupted(made.plain, made.drafting)


@pytest.mark.parametrize("made", ["parallel"], indirect=True)
def test_a_head_in_a_form_that_is_not_known_says_why(made: Made, tmp_path: Path) -> None:
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash', expected 'eagle3' or 'peagle'"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5, expected 1.0"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false, expected true"),
        ({"layer_types": ["sliding_attention"] * LAYERS}, "layer_types has a 'sliding_attention'"),
        ({"pard_token": None}, "mask_token_id is None, expected a token of the 320"),
    )
    cases = (*cases, ({}, "PeagleLlamaForCausalLM drafts in parallel, and it has no mask_hidden"))
    for number, (changes, why) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "config.json").write_text(json.dumps({**made.head.described(), **changes}))
        save_file(
            {"mask_hidden" if changes else "fc.weight": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"}
        )
        speculative = SpeculativeConfig("eagle3", DRAFTS, model=str(folder))
        with pytest.raises(SetupError, match=f"--speculative-config: .*{why}"):
            set_up(
                model_config(made.folder / "target", max_model_len=CONTEXT, speculative=speculative), lambda *_: None
            )
