"""Gemma 4's assistants: what they propose is what transformers' assistant says of transformers' keys and values."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _proposals, check_interrupted
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, _prompt
from stentor.tests.parity import tiny

TEXT = {
    **{name: tiny.SHAPE[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id")},
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
"""Of an assistant; the rest is the model's."""
_SHARED = ("head_dim", "num_key_value_heads", "attention_k_eq_v", "sliding_window", "rope_parameters")


def make_assistant(target: Any, folder: Path, **changes: Any) -> Any:
    """Of the model ``target``, with ``changes`` of its configuration."""
    config = target.config.get_text_config()
    known, full = config.to_dict(), config.per_layer_config[config.num_hidden_layers - 1]
    own = {name: known[name] for name in _SHARED if name in known}
    heads = {"head_dim": full.head_dim, "num_key_value_heads": full.num_key_value_heads}
    text = transformers.Gemma4TextConfig(**{**own, **TEXT, "num_kv_shared_layers": 3, "per_layer_config": {2: heads}})
    config = transformers.Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=known["hidden_size"], **{"num_centroids": 16, **changes}
    )
    torch.manual_seed(7)
    # transformers 5.23 refuses to make what it describes: a text model whose layers all use another's keys
    with patch.object(transformers.Gemma4TextConfig, "kv_sharing_modes", ["reuse"] * text.num_hidden_layers):
        model = transformers.Gemma4AssistantForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.uniform_(0.6, 1.4) if "norm" in name else tensor.normal_(0, 0.15)
        if model.masked_embedding is not None:
            model.masked_embedding.token_ordering.copy_(torch.randperm(config.get_text_config().vocab_size))
    model.save_pretrained(folder)
    return model


class Made:
    def __init__(self, folder: Path, architecture: str = "gemma4", **changes: Any) -> None:
        self.folder = folder
        for name in ("target", "assistant"):
            (folder / name).mkdir()
        self.target = tiny.make(architecture, folder / "target")
        self.assistant = make_assistant(self.target, folder / "assistant", **changes)
        # transformers' mask of the assistant has two keys more than the model's window leaves a query behind them
        self.assistant.config.get_text_config().sliding_window -= 2
        layers, kinds = self.target.model.layers, self.target.config.layer_types
        first = len(layers) - self.target.config.num_kv_shared_layers
        for kind in {*kinds}:  # transformers 5.23 returns none where no layer of the model uses another's
            layers[first - 1 - kinds[:first][::-1].index(kind)].self_attn.store_full_length_kv = True
        for model in (self.target, self.assistant):
            model.set_attn_implementation("eager")
        config = model_config(folder / "target", batch_invariant=True, max_model_len=CONTEXT)
        self.plain = LocalEngine(config)
        speculative = SpeculativeConfig("mtp", DRAFTS, model=str(folder / "assistant"))
        changes = {"batch_invariant": True, "max_model_len": CONTEXT, "max_prefill_chunk": 16}
        self.drafting = LocalEngine(model_config(folder / "target", speculative=speculative, **changes))

    @torch.no_grad()
    def drafts(self, text: list[int], most: int) -> list[int]:
        """By transformers, of all but the last token's keys and values."""
        found = self.target(torch.tensor(text[:-1])[None], output_hidden_states=True, return_shared_kv_states=True)
        token, fed = torch.tensor([text[-1:]]), found.hidden_states[-1][:, -1:]
        drafts = []
        for _ in range(most):
            embedded = self.target.get_input_embeddings()(token)
            said = self.assistant(
                inputs_embeds=torch.cat((embedded, fed), dim=-1),
                position_ids=torch.tensor([[len(text) - 1]]),
                shared_kv_states=found.shared_kv_states,
                use_cache=False,
            )
            logits = said.logits[0, -1, list(ALLOWED)]
            drafts.append(ALLOWED[int(logits.argmax())])
            token, fed = torch.tensor([drafts[-1:]]), said.last_hidden_state
        return drafts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("assisted"))


def _as_transformers_says(made: Made) -> None:
    proposals = _proposals(made.drafting)
    params = SamplingParams(max_tokens=30, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(37, 2)
    text = prompt + made.drafting.generate(prompt, params)
    assert text[37:] == made.plain.generate(prompt, params)
    assert len(proposals) > 5
    for length, drafts in proposals:
        assert drafts == made.drafts(text[:length], len(drafts))


def test_an_assistant_proposes_what_transformers_assistant_says(made: Made) -> None:
    """Behind a prompt longer than the window, that is computed in pieces."""
    _as_transformers_says(made)
    right, drafted = accepted(made.drafting)
    assert 0 < right < drafted


@pytest.mark.proof(each="architecture")
@pytest.mark.parametrize("architecture", ["gemma4-small", "gemma4-unified"])
def test_an_assistant_sees_keys_of_the_last_layers_that_have_some(architecture: str, tmp_path: Path) -> None:
    _as_transformers_says(Made(tmp_path, architecture))


def test_an_assistant_proposes_tokens_of_its_best_clusters_alone(tmp_path: Path) -> None:
    made = Made(tmp_path, use_ordered_embeddings=True, centroid_intermediate_top_k=14)
    _as_transformers_says(made)


def test_texts_are_the_same_with_an_assistant_that_preemptions_and_crashes_interrupt(made: Made) -> None:
    check_interrupted(made.plain, made.drafting)


def test_an_assistant_that_does_not_fit_says_why(made: Made, tmp_path: Path) -> None:
    cases: Sequence[tuple[dict[str, Any], dict[str, Any], str]] = (
        ({"backbone_hidden_size": 48}, {}, "it is made for hidden states of 48, expected 64, the model's"),
        ({}, {"vocab_size": 256}, "vocab_size is 256, expected 320, the model's"),
        ({}, {"head_dim": 8}, "it sees 2 key-value heads of 8, expected 2 of 16, those of layer"),
        ({"num_centroids": 7, "use_ordered_embeddings": True}, {}, "num_centroids is 7, expected a divisor of voc"),
        ({"architectures": ["LlamaForCausalLM"]}, {}, "its architecture is LlamaForCausalLM, expected Gemma4Assist"),
    )
    config = made.assistant.config.to_dict()
    for number, (changes, text, why) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        told = {**config, "architectures": ["Gemma4AssistantForCausalLM"], **changes}
        told["text_config"] = {**config["text_config"], **text}
        (folder / "config.json").write_text(json.dumps(told))
        torch.save({"fc.weight": torch.zeros(1)}, folder / "pytorch_model.bin")
        speculative = SpeculativeConfig("mtp", 2, model=str(folder))
        with pytest.raises(SetupError, match=f"--speculative-config: .*{why}"):
            set_up(
                model_config(made.folder / "target", max_model_len=CONTEXT, speculative=speculative),
                lambda *_: None,
            )
