"""Heads that draft blocks: what they propose is what transformers' assistant says of its hidden states."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import DraftMethod, SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_heads import ALLOWED, _proposals, check_interrupted
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, _prompt
from stentor.tests.parity import tiny

BLOCK = DRAFTS + 2
MASK = 319
WINDOW = 9
"""As transformers counts: tokens before one that it sees."""
BEHIND = [0, 1]
KINDS = ["full_attention", "sliding_attention"]
LAYERS = {
    **{"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 128},
}
LAYOUTS = ("dflash", "dflash-causal", "muse", "speculators", "dspark", "speculators-dspark")
RANK = 8
IDS = (*ALLOWED, *range(20, tiny.VOCAB, 2))
"""Tokens that heads of speculators' form draft here."""


def described(layout: str, **changes: Any) -> dict[str, Any]:
    """A config.json of this layout."""
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    own = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": BEHIND}
    if layout == "muse":
        told = {"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant", **own}
        return {**told, **LAYERS, "rope_parameters": rope, "layer_types": KINDS, "sliding_window": WINDOW, **changes}
    layers = {**LAYERS, "model_type": "qwen3", "vocab_size": tiny.VOCAB, "rope_parameters": rope, "layer_types": KINDS}
    layers["sliding_window"] = WINDOW + 1
    markov = {"markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True}
    if layout == "dspark":
        return {**layers, **own, **markov, "architectures": ["Qwen3DSparkModel"], "is_causal": False, **changes}
    if layout.startswith("speculators"):
        before = [layer + 1 for layer in BEHIND]
        if layout == "speculators-dspark":
            changes = {**markov, "is_causal": False, **changes}
        told = {
            "speculators_model_type": "dspark" if "dspark" in layout else "dflash",
            "aux_hidden_state_layer_ids": before,
            "block_size": BLOCK,
        }
        told["draft_vocab_size"] = len(IDS)
        return {**told, "mask_token_id": MASK, "transformer_layer_config": layers, **changes}
    table: dict[str, Any] = {"mask_token_id": MASK, "target_layer_ids": BEHIND}
    if layout == "dflash":
        table["causal"] = False
    told = {"architectures": ["DFlashDraftModel"], "block_size": BLOCK, "dflash_config": table}
    return {**layers, **told, **changes}


class Head:
    """transformers' assistant over whole texts."""

    def __init__(self, target: Any, layout: str) -> None:
        self.target, self.causal = target, layout == "dflash-causal"
        self.first = 0 if layout == "dspark" else 1
        self.ids = torch.tensor(IDS if layout.startswith("speculators") else range(tiny.VOCAB))
        self.repeats_nothing = layout == "speculators-dspark"
        self.markov: tuple[torch.Tensor, torch.Tensor] | None = None
        layers: dict[str, Any] = {**LAYERS}
        config = transformers.MuseGlimmerAssistantConfig(
            **layers, layer_types=KINDS, sliding_window=WINDOW, block_size=BLOCK, target_layer_ids=BEHIND
        )
        config._attn_implementation = "eager"
        torch.manual_seed(7)
        self.model = transformers.MuseGlimmerAssistantModel(config).float().eval()
        with torch.no_grad():
            for name, tensor in self.model.named_parameters():
                tensor.uniform_(0.6, 1.4) if "norm" in name else tensor.normal_(0, 0.3)
                if "q_norm" in name:
                    tensor.mul_(3)  # so that attention tells the places of a block apart

        if "dspark" in layout:
            before, behind = torch.randn(tiny.VOCAB, RANK), torch.randn(len(self.ids), RANK)
            if len(self.ids) < tiny.VOCAB:  # a token makes itself unlikely behind it
                behind -= before[self.ids]
            self.markov = before, behind

    def stored(self, layout: str) -> dict[str, torch.Tensor]:
        own = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        if layout == "muse":
            return own
        names = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
        for old, new in names.items():
            own = {name.replace(old, new): tensor for name, tensor in own.items()}
        if self.markov is not None:
            own |= {f"markov_head.markov_w{at}.weight": tensor for at, tensor in enumerate(self.markov, 1)}
            own |= {"confidence_head.proj.weight": torch.ones(1, 2), "confidence_head.proj.bias": torch.ones(1)}
        if layout.startswith("speculators"):  # with a head of its own, for some of the tokens
            ids = self.ids
            offsets = ids - torch.arange(len(ids))
            return {**own, "lm_head.weight": self.target.lm_head.weight.detach()[ids].contiguous(), "d2t": offsets}
        return own

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """What it gets of the model at each position of a text."""
        found = self.target.model(torch.tensor(text)[None], output_hidden_states=True, use_cache=False).hidden_states
        return torch.cat([found[layer + 1][0] for layer in BEHIND], dim=1)

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        known = len(text) - 1
        block = torch.tensor([text[-1:] + [MASK] * (BLOCK - 1)])
        masks = None
        if self.causal:  # in the layer with a window alone
            at, key = known + torch.arange(BLOCK)[:, None], torch.arange(known + BLOCK)
            hidden = (key > at) | (at - key > WINDOW)
            sliding = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None]
            masks = {"full_attention": None, "sliding_attention": sliding}
        cache = transformers.cache_utils.DFlashCache(config=self.model.config)
        cache.set_previous_accepted_tokens(known)
        left = self.model(
            noise_embeds=self.target.get_input_embeddings()(block),
            context_hidden_states=given[None, :known],
            attention_mask=masks,
            cache=cache,
            position_ids=torch.arange(known + BLOCK)[None],
        ).last_hidden_state[0, self.first : self.first + most]
        found: list[int] = []
        for logits in self.target.lm_head(left)[:, self.ids]:
            if self.markov is not None:
                of_token, to_token = self.markov
                logits = logits + to_token @ of_token[found[-1] if found else text[-1]]
            whole = torch.full((tiny.VOCAB,), -torch.inf).index_copy(0, self.ids, logits)
            found.append(ALLOWED[int(whole[list(ALLOWED)].argmax())])
        return found


class Made:
    def __init__(self, layout: str, folder: Path, architecture: str = "qwen3") -> None:
        for name in ("target", "head"):
            (folder / name).mkdir()
        self.folder = folder
        self.head = Head(tiny.make(architecture, folder / "target"), layout)
        (folder / "head" / "config.json").write_text(json.dumps(described(layout)))
        save_file(self.head.stored(layout), folder / "head" / "model.safetensors", {"format": "pt"})
        method: DraftMethod = "dspark" if "dspark" in layout else "dflash"
        self.speculative = SpeculativeConfig(method, DRAFTS, model=str(folder / "head"))
        self.plain = LocalEngine(model_config(folder / "target", batch_invariant=True, max_model_len=CONTEXT))
        self.drafting = self.engine(batch_invariant=True)

    def engine(self, **changes: Any) -> LocalEngine:
        changes = {"max_model_len": CONTEXT, "max_prefill_chunk": 16, "speculative": self.speculative, **changes}
        return LocalEngine(model_config(self.folder / "target", **changes))


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp(request.param))


def _as_transformers_says(made: Made, engine: LocalEngine, prompt: list[int], most: int) -> None:
    proposals = _proposals(engine)
    params = SamplingParams(max_tokens=most, temperature=0.0, allowed_token_ids=ALLOWED)
    text = prompt + engine.generate(prompt, params)
    assert text[len(prompt) :] == made.plain.generate(prompt, params)
    assert len(proposals) > 3
    assert max(len({*drafts}) for _, drafts in proposals) > 1, "a block's places differ"
    given = made.head.given(text)
    for length, drafts in proposals:
        assert drafts == made.head.drafts(text[:length], len(drafts), given)


@pytest.mark.parametrize("packed", [False, True])
def test_a_block_drafter_proposes_what_transformers_assistant_says(made: Made, packed: bool) -> None:
    """Behind a prompt that is computed in pieces; also where the model's pass is a program."""
    engine = made.engine() if packed else made.drafting
    _as_transformers_says(made, engine, _prompt(37, 2), 30)
    right, drafted = accepted(engine)
    assert right < drafted
    assert right > 0 or made.head.repeats_nothing, "the model's text repeats itself"


@pytest.mark.parametrize("made", ["muse"], indirect=True)
def test_blocks_at_the_end_of_the_context_reach_beyond_it(made: Made) -> None:
    _as_transformers_says(made, made.drafting, _prompt(CONTEXT - 24, 3), 24)


@pytest.mark.parametrize("made", ["speculators"], indirect=True)
def test_a_prefix_that_a_later_prompt_finds_holds_a_block_drafters_keys(made: Made) -> None:
    engine, first = made.drafting, _prompt(21, 3)
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=16)
    params = SamplingParams(max_tokens=24, temperature=0.0, allowed_token_ids=ALLOWED, num_drafts=0)
    prompt = [*first, *engine.generate(first, params), ALLOWED[0]]
    _as_transformers_says(made, engine, prompt, 24)
    assert engine.prompts[1].cached_tokens == len(prompt) - 2, "all but the last token of an answer"


@pytest.mark.parametrize("made", ["dflash"], indirect=True)
def test_texts_are_the_same_with_a_block_drafter_that_preemptions_and_crashes_interrupt(made: Made) -> None:
    check_interrupted(made.plain, made.drafting)


@pytest.mark.parametrize("made", ["dflash"], indirect=True)
def test_a_block_drafter_that_does_not_fit_says_why(made: Made, tmp_path: Path) -> None:
    table = described("dflash")["dflash_config"]
    dspark = {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK}
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"architectures": ["DFlash2DraftModel"]}, "its architecture is DFlash2DraftModel, expected DFlashDraftModel"),
        ({"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3', expected 'dflash'"),
        ({"vocab_size": 256}, "vocab_size is 256, expected 320, the model's"),
        ({"draft_vocab_size": 64}, "draft_vocab_size is 64, and it has no lm_head"),
        ({"target_hidden_size": 48}, "it is made for hidden states of 48, expected 64, the model's"),
        ({"hidden_size": 32, "target_hidden_size": 64}, "hidden_size is 32, expected 64: it uses the model's"),
        ({"block_size": DRAFTS}, f"num_speculative_tokens is {DRAFTS}, expected at most {DRAFTS - 1}"),
        ({"sliding_window": 3}, "a block has 6 tokens, expected at most 3"),
        ({"sliding_window": None}, "neither sliding_window nor swa_window_size"),
        ({"is_neox_style": False}, "is_neox_style is false, expected true"),
        ({"dflash_config": {**table, "mask_token_id": 320}}, "mask_token_id is 320, expected a token of the 320"),
        (
            {"dflash_config": {**table, "target_layer_ids": [1, 2]}},
            r"target_layer_ids are \[1, 2\], expected ascending",
        ),
        ({"dflash_config": {**table, "conv_kernel_size": 3}}, "dflash_config has conv_kernel_size, which is not known"),
        ({"dflash_config": {**table, "sample_from_anchor": True}}, "sample_from_anchor is true, expected false"),
    )
    for number, (changes, why) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "config.json").write_text(json.dumps(described("dflash", **changes)))
        save_file({"fc.weight": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
        _refused(made, folder, why)
    last = tmp_path / str(len(cases) - 1)
    torch.save(torch.zeros(64), last / "mask_embedding.pt")
    _refused(made, last, "it has a mask_embedding.pt, which is not read here")
    for number, (changes, why) in enumerate(
        (
            ({}, "its architecture is DFlashDraftModel, expected Qwen3DSparkModel"),
            (
                {**dspark, "block_size": DRAFTS - 1},
                f"num_speculative_tokens is {DRAFTS}, expected at most {DRAFTS - 1}",
            ),
            ({**dspark, "markov_head_type": "gated"}, "markov_head_type is 'gated', expected 'vanilla'"),
            ({**dspark, "dspark_draft_topk": 4}, "dspark_draft_topk is 4, expected None"),
        )
    ):
        (folder := tmp_path / f"dspark-{number}").mkdir()
        (folder / "config.json").write_text(json.dumps(described("dflash", **changes)))
        save_file({"fc.weight": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
        _refused(made, folder, why, "dspark")


def _refused(made: Made, folder: Path, why: str, method: DraftMethod = "dflash") -> None:
    speculative = SpeculativeConfig(method, DRAFTS, model=str(folder))
    with pytest.raises(SetupError, match=f"--speculative-config: .*{why}"):
        set_up(model_config(made.folder / "target", max_model_len=CONTEXT, speculative=speculative), lambda *_: None)
