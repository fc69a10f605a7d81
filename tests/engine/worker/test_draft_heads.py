"""Heads that draft: what they propose is what their definition draws of transformers' hidden states, and texts stay."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.loading.gguf_families import Kinds, write_family
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.test_draft_models import accepted
from stentor.tests.engine.worker.test_speculation import CONTEXT, DRAFTS, Ask, _asks, _prompt, _run, _same
from stentor.tests.parity import tiny

LAYERS = 8
TAPS = (2, 4, 5)
DRAFTABLE = 64
ALLOWED = tuple(range(10, 14))
"""So few that a random head is right now and then."""
METHODS = ("eagle", "eagle3", "glm4-moe", "deepseek-v3", "qwen3.5")
"""Of EAGLE over a Llama, or the architecture that brings heads for multi-token prediction."""
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


BEHIND = {
    "layer": "",
    "embedding_norm": "enorm.",
    "hidden_norm": "hnorm.",
    "fc": "eh_proj.",
    "norm": "shared_head.norm.",
}
APART = {
    "layer": "layers.0.",
    "embedding_norm": "pre_fc_norm_embedding.",
    "hidden_norm": "pre_fc_norm_hidden.",
    "fc": "fc.",
    "norm": "norm.",
}
"""What DeepSeek's checkpoints and Qwen's call a head's parts."""


class Head(nn.Module):
    """A plain definition, over whole texts, of modules of transformers."""

    def __init__(self, method: str, model: Any) -> None:
        super().__init__()
        self.method = method
        self.whole = [model]  # no module of this one
        self.model = model.model
        config, hidden = model.config, model.config.hidden_size
        self.brought = method not in ("eagle", "eagle3")
        self.apart = method.startswith("qwen")
        of_layer, norm = {
            "qwen3.5": (modeling_qwen3_5.Qwen3_5DecoderLayer, modeling_qwen3_5.Qwen3_5RMSNorm),
            "qwen3.5-moe": (modeling_qwen3_5_moe.Qwen3_5MoeDecoderLayer, modeling_qwen3_5_moe.Qwen3_5MoeRMSNorm),
            "glm4-moe": (modeling_glm4_moe.Glm4MoeDecoderLayer, modeling_glm4_moe.Glm4MoeRMSNorm),
            "deepseek-v3": (modeling_deepseek_v3.DeepseekV3DecoderLayer, modeling_deepseek_v3.DeepseekV3RMSNorm),
        }.get(method, (modeling_llama.LlamaDecoderLayer, modeling_llama.LlamaRMSNorm))
        self.layer = of_layer(config, 1 if self.apart else config.num_hidden_layers - 1)
        self.rotary = self.model.rotary_emb
        self.fc = nn.Linear((3 if method == "eagle3" else 2) * hidden, hidden, bias=False)
        if method != "eagle":
            self.embedding_norm, self.hidden_norm, self.norm = (norm(hidden) for _ in range(3))
        if method == "eagle":
            self.layer.input_layernorm = nn.Identity()
        if method == "eagle3":
            for part in ("q_proj", "k_proj", "v_proj"):
                old = getattr(self.layer.self_attn, part)
                setattr(self.layer.self_attn, part, nn.Linear(2 * hidden, old.out_features, bias=False))
        drafts = DRAFTABLE if method == "eagle3" else config.vocab_size
        self.head = nn.Linear(hidden, drafts, bias=False) if method == "eagle3" else model.lm_head
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.arange(drafts)
        if method == "eagle3":
            self.ids = torch.randperm(config.vocab_size, generator=generator)[:drafts].sort().values
            self.ids[: len(ALLOWED)] = torch.tensor(ALLOWED)
            self.ids = self.ids.sort().values
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if not name.startswith("model.") and (method == "eagle3" or not name.startswith("head.")):
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)

    def stored(self) -> dict[str, torch.Tensor]:
        """The weights under the names of published checkpoints."""
        own = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(("model.", "head."))}
        if self.method == "eagle":
            return {name.replace("layer.", "layers.0."): tensor for name, tensor in own.items()}
        if self.method == "eagle3":
            named = {
                name.replace("layer.", "midlayer.")
                .replace("embedding_norm", "midlayer.input_layernorm")
                .replace("hidden_norm", "midlayer.hidden_norm"): tensor
                for name, tensor in own.items()
                if name != "layer.input_layernorm.weight"
            }
            shown = torch.zeros(self.model.config.vocab_size, dtype=torch.bool)
            shown[self.ids] = True
            offsets = self.ids - torch.arange(len(self.ids))
            return {**named, "lm_head.weight": self.head.weight.detach(), "d2t": offsets, "t2d": shown}
        behind = f"model.layers.{self.model.config.num_hidden_layers}."
        if not self.apart:
            own["embed_tokens.weight"] = self.model.embed_tokens.weight.detach().clone()
        names = APART if self.apart else BEHIND
        found = {}
        for name, tensor in own.items():
            part, _, rest = name.partition(".")
            found[("mtp." if self.apart else behind) + names.get(part, f"{part}.") + rest] = tensor
        return found

    def behind(self) -> dict[str, torch.Tensor]:
        """The weights under the names that GGUF converters give them, which are DeepSeek's."""
        layers = self.model.config.num_hidden_layers
        back = {f"mtp.{apart}": f"model.layers.{layers}.{BEHIND[part]}" for part, apart in APART.items()}
        found = {}
        for name, tensor in self.stored().items():
            start = next((each for each in back if name.startswith(each)), "")
            found[back.get(start, "") + name.removeprefix(start)] = tensor
        return found

    def left(self, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Of tokens [n] that follow positions 0 to n - 1, and hidden states there [n, hidden]."""
        e: torch.Tensor = self.model.embed_tokens(following)
        h = hidden
        if self.brought and not self.apart:
            e = e.masked_fill((torch.arange(len(e)) == 0)[:, None], 0)
        count = len(e)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        turns = self.rotary(e[None], torch.arange(count)[None])
        both = {"attention_mask": mask, "position_embeddings": turns}
        if self.method == "eagle3":
            x = torch.cat((self.embedding_norm(e), self.hidden_norm(h)), dim=1)
            h = h + self.layer.self_attn(hidden_states=x[None], **both)[0][0]
            return torch.add(h, self.layer.mlp(self.layer.post_attention_layernorm(h)))
        if self.brought:
            e, h = self.embedding_norm(e), self.hidden_norm(h)
        x = self.fc(torch.cat((e, h), dim=1))
        found = self.layer(x[None], **both)
        return torch.reshape(found[0] if isinstance(found, tuple) else found, (count, -1))

    @torch.no_grad()
    def given(self, text: list[int]) -> torch.Tensor:
        """What it gets of the model at each position of a text."""
        found = self.model(torch.tensor(text)[None], output_hidden_states=True, use_cache=False).hidden_states
        if self.method == "eagle3":
            return torch.as_tensor(self.fc(torch.cat([found[tap][0] for tap in TAPS], dim=1)))
        return torch.as_tensor(found[-1][0])

    @torch.no_grad()
    def drafts(self, text: list[int], most: int, given: torch.Tensor) -> list[int]:
        """``given``: of this text, or a longer one that begins so."""
        hidden, following = given[: len(text) - 1], torch.tensor(text[1:])
        found: list[int] = []
        for _ in range(most):
            left = self.left(following, hidden)
            logits = self.head(self.norm(left[-1]) if self.method != "eagle" else left[-1])
            whole = torch.full((self.model.config.vocab_size,), -torch.inf)
            whole[self.ids] = logits
            found.append(ALLOWED[int(whole[list(ALLOWED)].argmax())])
            following = torch.cat((following, torch.tensor(found[-1:])))
            hidden = torch.cat((hidden, self.norm(left[-1:]) if self.apart else left[-1:]))
        return found


def _coded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float8, and its scale, which is that of all blocks."""
    scale = weight.abs().max() / 448.0
    rows, columns = weight.shape
    return (weight / scale).to(torch.float8_e4m3fn), scale.repeat(-(-rows // 128), -(-columns // 128))


def draw_(module: nn.Module, *ones: str) -> None:
    """Random weights. Vectors with one of the names ``ones`` in theirs, by default norms, are near 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            near = tensor.dim() == 1 and any(each in name for each in ones or ("norm",))
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + 0.2 * noise if near else 0.15 * noise)


def _by_expert(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same, with views of the matrices of each expert in place of those of all."""
    found = {}
    for name, tensor in stored.items():
        stem, _, part = name.rpartition(".")
        if not stem.endswith(".experts"):
            found[name] = tensor
            continue
        for number, each in enumerate(tensor):
            parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            for what, rows in zip(parts, each.chunk(len(parts)), strict=True):
                found[f"{stem}.{number}.{what}.weight"] = rows
    return found


def _described(coded: bool) -> str:
    return f'"quantization_config": {json.dumps(FP8)}, ' if coded else ""


class Stored:
    """A model, a head of one method as its checkpoint has it, and its definition."""

    def __init__(self, method: str, folder: Path, *, coded: bool = False) -> None:
        """``coded``: products of the head are stored in float8."""
        self.target = folder / "target"
        self.target.mkdir()
        brought = method not in ("eagle", "eagle3")
        config = tiny.ARCHITECTURES[method if brought else "llama"]()
        config.num_hidden_layers = 3 if brought else LAYERS
        model = tiny.make_of(config, method, self.target)
        model.config._attn_implementation = "eager"
        self.head = Head(method, model).eval()
        self.speculative = SpeculativeConfig("mtp", DRAFTS)
        if brought:
            self.target.joinpath("config.json").write_text(
                self.target.joinpath("config.json")
                .read_text()
                .replace("{", f'{{"num_nextn_predict_layers": 1, {_described(coded)}', 1)
            )
            own = _by_expert(self.head.stored())
            for name in [name for name in own if coded and name.endswith(("_proj.weight", ".fc.weight"))]:
                codes, scale = _coded(own[name])
                own[name].copy_(codes.float() * scale[0, 0])  # the definition's too
                own |= {name: codes, f"{name}_scale_inv": scale}
            own = {name: tensor.contiguous() for name, tensor in own.items()}
            weights = {**load_file(self.target / "model.safetensors"), **own}
            save_file(weights, self.target / "model.safetensors", {"format": "pt"})
        else:
            stored = folder / "head"
            stored.mkdir()
            described = tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "num_hidden_layers": 1})
            described.draft_vocab_size = DRAFTABLE
            described.save_pretrained(stored)
            tensors = {name: tensor.contiguous() for name, tensor in self.head.stored().items()}
            if method == "eagle3":
                torch.save(tensors, stored / "pytorch_model.bin")
            else:
                save_file(tensors, stored / "model.safetensors")
            self.speculative = SpeculativeConfig("eagle" if method == "eagle" else "eagle3", DRAFTS, model=str(stored))


class Made(Stored):
    """The same with an engine that drafts, and one that does not."""

    def __init__(self, method: str, folder: Path, *, coded: bool = False) -> None:
        super().__init__(method, folder, coded=coded)
        self.plain = LocalEngine(model_config(self.target, batch_invariant=True, max_model_len=CONTEXT))
        self.drafting = self.engine(batch_invariant=True)

    def engine(self, **changes: Any) -> LocalEngine:
        changes = {"max_model_len": CONTEXT, "max_prefill_chunk": 16, "speculative": self.speculative, **changes}
        return LocalEngine(model_config(self.target, **changes))


@pytest.fixture(scope="module", params=METHODS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp(request.param))


def _proposals(engine: LocalEngine) -> list[tuple[int, list[int]]]:
    """Filled with what is proposed: the length of the row, and drafts."""
    found: list[tuple[int, list[int]]] = []
    compute: Any = engine.runner.compute
    proposer = compute._drafting._proposer
    propose = type(proposer).propose.__get__(proposer)

    def spy(wanted: dict[int, int]) -> dict[int, list[int]]:
        drafts: dict[int, list[int]] = propose(wanted)
        found.extend((proposer._lengths[slot], each) for slot, each in drafts.items())
        return drafts

    proposer.propose = spy
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_a_head_drafts_what_its_definition_draws_of_transformers_hidden_states(made: Made, packed: bool) -> None:
    """Behind a prompt that is computed in pieces; also where the model's pass is a program."""
    engine = made.engine() if packed else made.drafting
    proposals = _proposals(engine)
    params = SamplingParams(max_tokens=30, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(37, 2)
    text = prompt + engine.generate(prompt, params)
    assert text[37:] == made.plain.generate(prompt, params)
    right, drafted = accepted(engine)
    assert 0 < right < drafted
    assert len(proposals) > 5
    given = made.head.given(text)
    for length, drafts in proposals:
        assert drafts == made.head.drafts(text[:length], len(drafts), given)


@pytest.mark.parametrize("method", ["glm4-moe", "qwen3.5"])
def test_a_head_in_float8_drafts_what_its_definition_draws(method: str, tmp_path: Path) -> None:
    _drafts_as_defined(Made(method, tmp_path, coded=True))


def _drafts_as_defined(made: Made) -> None:
    proposals = _proposals(made.drafting)
    params = SamplingParams(max_tokens=20, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(21, 2)
    text = prompt + made.drafting.generate(prompt, params)
    assert text[21:] == made.plain.generate(prompt, params)
    assert len(proposals) > 5
    given = made.head.given(text)
    for length, drafts in proposals:
        assert drafts == made.head.drafts(text[:length], len(drafts), given)


GGUF = {"glm4-moe": "glm4moe", "deepseek-v3": "deepseek2", "qwen3.5": "qwen35", "qwen3.5-moe": "qwen35moe"}


@pytest.mark.proof(each="method")
@pytest.mark.parametrize("method", GGUF)
def test_a_head_in_a_gguf_file_drafts_what_its_definition_draws(method: str, tmp_path: Path) -> None:
    made = Made(method, tmp_path)
    _to_gguf(made, tmp_path / "m.gguf", method)
    _drafts_as_defined(made)


def test_a_head_in_blocks_of_a_gguf_file_is_multiplied_as_stored(tmp_path: Path) -> None:
    made = Made("qwen3.5", tmp_path)
    kinds = dict.fromkeys(
        ("attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_", "eh_proj"), gguf.GGMLQuantizationType.Q8_0
    )
    _to_gguf(made, tmp_path / "m.gguf", "qwen3.5", kinds, dtype="bfloat16")
    head: Any = made.drafting.runner.compute
    assert {"layers.0.self_attn.q_proj.weight", "fc.weight"} <= head._head._head.weights.raw
    params = SamplingParams(max_tokens=30, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = _prompt(21, 2)
    assert made.drafting.generate(prompt, params) == made.plain.generate(prompt, params)
    right, drafted = accepted(made.drafting)
    assert 0 < right < drafted


def _to_gguf(made: Made, file: Path, method: str, kinds: Kinds | None = None, **changes: Any) -> None:
    """Its engines are those of this file then."""
    write_family(file, made.head.whole[0], GGUF[method], kinds, {"nextn_predict_layers": 1}, behind=made.head.behind())
    made.target = file
    changes = changes or {"batch_invariant": True}
    made.drafting = made.engine(**changes)
    made.plain = LocalEngine(model_config(file, max_model_len=CONTEXT, **changes))


def test_a_prefix_that_a_later_prompt_finds_holds_a_heads_keys(made: Made) -> None:
    engine, first = made.drafting, _prompt(21, 3)
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=16)
    params = SamplingParams(max_tokens=24, temperature=0.0, allowed_token_ids=ALLOWED)
    prompt = [*first, *engine.generate(first, msgspec.structs.replace(params, num_drafts=0)), ALLOWED[0]]
    proposals = _proposals(engine)
    text = prompt + engine.generate(prompt, params)
    known = 32 if made.head.apart else len(prompt) - 2
    assert engine.prompts[1].cached_tokens == known, "behind a state, or all but the last token of an answer"
    assert len(proposals) > 5
    given = made.head.given(text)
    for length, drafts in proposals:
        assert drafts == made.head.drafts(text[:length], len(drafts), given)


def _few(asks: Sequence[Ask]) -> list[Ask]:
    return [(prompt, _allowed(params), seeds, grammar) for prompt, params, seeds, grammar in asks]


def _allowed(params: SamplingParams) -> SamplingParams:
    return SamplingParams(max_tokens=params.max_tokens, temperature=params.temperature, allowed_token_ids=ALLOWED)


def check_interrupted(
    plain: LocalEngine, drafting: LocalEngine, *, more_than: int = 3, dies: Iterable[bool] = (False,) * 5 + (True,)
) -> None:
    """Texts with drafts that preemptions and crashes interrupt are the plain ones; ``more_than`` drafts are accepted.
    ``dies``: whether the worker does after each step; later ones leave it alone."""
    asks = [*_few(_asks("sampled")), *_asks("greedy", 3)]
    expected = _run(plain, asks)
    _same(_run(drafting, asks, blocks=9), expected)
    assert drafting.scheduler.stats().preemptions > 0
    assert accepted(drafting)[0] > more_than
    deaths = iter(dies)
    _same(_run(drafting, asks, dies=lambda: next(deaths, False)), expected)
    assert drafting.deaths > 0


def test_texts_are_the_same_with_a_head_that_preemptions_and_crashes_interrupt(made: Made) -> None:
    rng = random.Random(4)
    check_interrupted(made.plain, made.drafting, more_than=10, dies=iter(lambda: rng.random() < 0.1, None))


def _refused(folder: Path, speculative: SpeculativeConfig, why: str) -> None:
    with pytest.raises(SetupError, match=f"--speculative-config: .*{why}"):
        set_up(model_config(folder, max_model_len=CONTEXT, speculative=speculative), lambda *_: None)


def test_a_head_that_does_not_fit_its_model_says_why(tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    tiny.make("llama", target)
    _refused(target, SpeculativeConfig("mtp", 2), "LlamaForCausalLM comes without heads for multi-token prediction")
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"vocab_size": 256}, "vocab_size is 256, expected 320, the model's"),
        ({"hidden_size": 32}, "it is made for hidden states of 32, expected 64"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 1]}}, r"before layers \[2, 1\] of 3; expected asc"),
    )
    for number, (changes, why) in enumerate(cases):
        (head := tmp_path / str(number)).mkdir()
        config = tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "num_hidden_layers": 1, **changes})
        config.save_pretrained(head)
        save_file({"fc.weight": torch.zeros(64, 192)}, head / "model.safetensors", {"format": "pt"})
        _refused(target, SpeculativeConfig("eagle3", 2, model=str(head)), why)
    (head := tmp_path / "deep").mkdir()
    tiny.transformers.LlamaConfig(**{**tiny.SHAPE, "num_hidden_layers": 2}).save_pretrained(head)
    save_file({"fc.weight": torch.zeros(64, 128)}, head / "model.safetensors", {"format": "pt"})
    _refused(target, SpeculativeConfig("eagle", 2, model=str(head)), "num_hidden_layers is 2, expected 1")
