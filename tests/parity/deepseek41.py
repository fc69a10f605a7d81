"""A tiny DeepSeek V4.1, for :mod:`.hub`: transformers has no class of it, so this is its definition, of whole texts."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers as untyped_transformers
from torch import nn
from torch.nn import functional

from stentor.tests.parity.hub_form import Published, Tensors, Values
from stentor.tests.parity.hybrids import DEEPSEEK4

transformers: Any = untyped_transformers
"""Its classes are untyped."""
_HASHES: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    1: ((47460172883841457, 2997456261491395, 22270724059181023), (53, 59, 61, 67)),
    4: ((50945809908498003, 3120030544686563, 45615425653312993), (71, 73, 79, 83)),
}
"""By layer: what the last tokens are multiplied by (numpy's draws), and the rows of the tables of two and of three."""
_FOLDED, _FILLER = 160, 2
"""Numbers of tokens: each has one with its neighbour; and the token before a text."""


STAGES: Values = {
    **{"num_nextn_predict_layers": 2, "dspark_target_layer_ids": [2, 3], "dspark_block_size": 5},
    **{"dspark_noise_token_id": 7, "dspark_markov_rank": 12},
    **{"dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2},
}
"""Of stages that draft blocks."""


class V41Config(transformers.PretrainedConfig):  # type: ignore[misc]
    model_type = "deepseek_v41_plain"
    sees: int | None = None
    """The token of pictures, which have a correction of routers' scores of their own and no n-grams; None: there is
    none."""


class V41Output(NamedTuple):
    logits: torch.Tensor


class Handed(NamedTuple):
    """What layers hand down: entries, keys of the index, which entries are seen, and which may be."""

    entries: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    seen: torch.Tensor | None = None
    candidates: torch.Tensor | None = None


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _angles(config: Any, compressed: bool, positions: torch.Tensor) -> torch.Tensor:
    """[positions, pairs]; layers with entries extend the context (YaRN)."""
    dim: int = config.qk_rope_head_dim
    theta: float = config.compress_rope_theta if compressed else config.rope_theta
    rates: torch.Tensor = theta ** -(torch.arange(0, dim, 2).float() / dim)
    if compressed:
        told = config.extension
        trained: int = told["original_max_position_embeddings"]

        def turning(times: float) -> float:
            return dim * math.log(trained / (times * 2 * math.pi)) / 2 / math.log(theta)

        low, high = max(math.floor(turning(32)), 0), min(math.ceil(turning(1)), dim - 1)
        slow = ((torch.arange(dim // 2).float() - low) / max(high - low, 1e-3)).clamp(0, 1)
        rates = rates * (1 - slow) + rates / told["factor"] * slow
    return positions.float()[:, None] * rates


def _turned(x: torch.Tensor, angles: torch.Tensor, back: bool = False) -> torch.Tensor:
    """x [rows, positions, heads, dims], whose last dimensions rotate, neighbours together."""
    angles = (-angles if back else angles)[:, None]
    still, turning = x.split((x.shape[3] - 2 * angles.shape[2], 2 * angles.shape[2]), dim=3)
    even, odd = turning.float().unflatten(3, (-1, 2)).unbind(4)
    made = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.cat((still, torch.stack(made, 4).flatten(3).to(x.dtype)), dim=3)


class Compressor(nn.Module):
    """One vector of every few tokens: their mean by gates, dimension by dimension, normed."""

    def __init__(self, config: Any, ratio: int) -> None:
        super().__init__()
        self.ratio, hidden, dim = ratio, config.hidden_size, config.head_dim
        self.wkv, self.norm = _linear(hidden, dim), nn.RMSNorm(dim, config.rms_norm_eps)
        if ratio > 1:
            self.wgate = _linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, tokens, hidden] → [rows, entries, dims]"""
        whole = x[:, : x.shape[1] // self.ratio * self.ratio]
        made: torch.Tensor = self.wkv(whole)
        if self.ratio > 1:
            gates = self.wgate(whole).unflatten(1, (-1, self.ratio)).softmax(2)
            made = (made.unflatten(1, (-1, self.ratio)) * gates).sum(2)
        normed: torch.Tensor = self.norm(made)
        return normed


class Index(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        self.heads, self.dim, self.top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self.wq_b, self.weights_proj = (
            _linear(config.q_lora_rank, self.heads * self.dim),
            _linear(config.hidden_size, self.heads),
        )
        if number in config.kv_source_layer_ids:
            self.wk, self.k_norm = _linear(config.head_dim, self.dim), nn.RMSNorm(self.dim, config.rms_norm_eps)
        first = config.candidate_source_layer_id
        self.chooses, self.among = number == first, 0 <= first < number
        self.size, self.blocks = config.candidate_block_size, config.candidate_topk_blocks

    def forward(
        self, x: torch.Tensor, low: torch.Tensor, angles: torch.Tensor, handed: Handed, visible: torch.Tensor
    ) -> Handed:
        """With the entries that each token sees, bool [rows, tokens, entries]; ``visible``: those that are complete."""
        q = _turned(self.wq_b(low).unflatten(2, (self.heads, -1)), angles)
        products = torch.einsum("rthd,red->rteh", q, handed.keys).relu()
        scores = (products * self.weights_proj(x).unsqueeze(2)).sum(3) * (self.dim * self.heads) ** -0.5
        scores = scores.masked_fill(~visible, -torch.inf)
        if self.chooses:
            handed = handed._replace(candidates=self.candidates(scores, visible))
        if self.among:
            assert handed.candidates is not None
            scores = scores.masked_fill(~handed.candidates, -torch.inf)
        return handed._replace(seen=_best(scores, self.top_k))

    def candidates(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """The entries of the blocks with the best entry, and of the last block, bool as ``scores``."""
        entries = scores.shape[2]
        padded = functional.pad(scores, (0, -entries % self.size), value=-torch.inf)
        blocks = padded.unflatten(2, (-1, self.size)).amax(3)
        last = (visible.sum(1) - 1) // self.size
        blocks = blocks.masked_fill(torch.arange(blocks.shape[2]) == last[:, None], torch.inf)
        return _best(blocks, self.blocks).repeat_interleave(self.size, dim=2)[:, :, :entries]


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The best ones along the last dimension, none of them at -inf."""
    order = scores.sort(dim=-1, descending=True, stable=True)
    chosen = (torch.arange(scores.shape[-1]) < count) & (order.values > -torch.inf)
    return torch.zeros_like(chosen).scatter(-1, order.indices, chosen)


class Attention(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        hidden, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.heads = config.num_attention_heads
        self.config, self.ratio, self.groups = config, config.compress_ratios[number], config.o_groups
        self.wq_a, self.q_norm = _linear(hidden, config.q_lora_rank), nn.RMSNorm(config.q_lora_rank, eps)
        self.wq_b = _linear(config.q_lora_rank, self.heads * dim)
        self.wkv, self.kv_norm = _linear(hidden, dim), nn.RMSNorm(dim, eps)
        self.attn_sink = nn.Parameter(torch.empty(self.heads))
        self.wo_a = _linear(self.heads * dim // self.groups, self.groups * config.o_lora_rank)
        self.wo_b = _linear(self.groups * config.o_lora_rank, hidden)
        if number in config.kv_source_layer_ids:
            self.compressor = Compressor(config, self.ratio)
        if number in config.index_source_layer_ids:
            self.indexer = Index(config, number)

    def forward(self, x: torch.Tensor, handed: Handed) -> tuple[torch.Tensor, Handed]:
        """x [rows, tokens, hidden] → the same"""
        positions = torch.arange(x.shape[1])
        angles = _angles(self.config, self.ratio > 0, positions)
        low = self.q_norm(self.wq_a(x))
        q = _turned(self.wq_b(low).unflatten(2, (self.heads, -1)), angles)
        keys = _turned(self.kv_norm(self.wkv(x)).unsqueeze(2), angles)[:, :, 0]
        distance = positions[:, None] - positions
        seen = ((distance >= 0) & (distance < self.config.sliding_window)).expand(len(x), -1, -1)
        if self.ratio:
            handed = self.compressed(x, low, angles, handed)
            assert handed.entries is not None
            assert handed.seen is not None
            keys, seen = torch.cat((keys, handed.entries), dim=1), torch.cat((seen, handed.seen), dim=2)
        scores = torch.einsum("rthd,rkd->rhtk", q, keys) * keys.shape[2] ** -0.5
        scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
        sinks = self.attn_sink[:, None, None].expand(len(x), -1, len(positions), 1).to(scores.dtype)
        shares = torch.cat((scores, sinks), dim=3).softmax(3)[:, :, :, :-1]
        found = _turned(torch.einsum("rhtk,rkd->rthd", shares, keys), angles, back=True)
        by_group = found.flatten(2).unflatten(2, (self.groups, -1))
        made = torch.einsum("rtgd,god->rtgo", by_group, self.wo_a.weight.unflatten(0, (self.groups, -1)))
        out: torch.Tensor = self.wo_b(made.flatten(2))
        return out, handed

    def compressed(self, x: torch.Tensor, low: torch.Tensor, angles: torch.Tensor, handed: Handed) -> Handed:
        if hasattr(self, "compressor"):
            latents, each = self.compressor(x), angles[:: self.ratio][: x.shape[1] // self.ratio]
            keys = self.indexer.k_norm(self.indexer.wk(latents))
            entries, keys = (_turned(made.unsqueeze(2), each)[:, :, 0] for made in (latents, keys))
            handed = handed._replace(entries=entries, keys=keys)
        if hasattr(self, "indexer"):
            complete = (torch.arange(x.shape[1]) + 1) // self.ratio
            visible = torch.arange(x.shape[1] // self.ratio) < complete[:, None]
            handed = self.indexer(x, low, angles, handed, visible)
        return handed


class Expert(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = _linear(hidden, inner), _linear(hidden, inner), _linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.w2(functional.silu(self.w1(x).clamp(max=10)) * self.w3(x).clamp(-10, 10))
        return made


def _score(x: torch.Tensor) -> torch.Tensor:
    return functional.softplus(x).sqrt()


class Router(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.n_routed_experts))
        if config.sees is not None:
            self.bias_vl = nn.Parameter(torch.empty(config.n_routed_experts))
        self.top_k, self.score_fn = config.num_experts_per_tok, _score

    @property
    def e_score_correction_bias(self) -> torch.Tensor:
        """As routers of transformers call it."""
        return self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Experts(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.gate, self.scale = Router(config), config.routed_scaling_factor
        self.experts = nn.ModuleList(Expert(hidden, inner) for _ in range(config.n_routed_experts))
        self.shared_experts = Expert(hidden, inner)

    def forward(self, x: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
        """x [rows, tokens, hidden] → the same; ``seen`` [rows, tokens]: which are of pictures"""
        scores = _score(self.gate(x))
        bias = self.gate.bias if seen is None else self.gate.bias_vl.where(seen.unsqueeze(2), self.gate.bias)
        weights = scores.where(_best(scores + bias, self.gate.top_k), 0)
        weights = weights / weights.sum(2, keepdim=True) * self.scale
        summed = (torch.stack([expert(x) for expert in self.experts], dim=3) * weights.unsqueeze(2)).sum(3)
        found: torch.Tensor = summed + self.shared_experts(x)
        return found


class Engram(nn.Module):
    """Adds to each stream a value of the last tokens, by how well it and the stream's key of them go together."""

    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        (self.factors, self.rows), streams, hidden = _HASHES[number], config.hc_mult, config.hidden_size
        self.embed = nn.Embedding(config.engram_num_embeddings[[*_HASHES].index(number)], config.engram_head_dim)
        self.wkv = _linear(len(self.rows) * config.engram_head_dim, hidden * (streams + 1))
        self.q_weight, self.k_weight = (nn.Parameter(torch.empty(streams, hidden)) for _ in range(2))
        self.eps = config.rms_norm_eps

    def forward(self, streams: torch.Tensor, tokens: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
        """streams [rows, tokens, streams, hidden] → the same; ``seen`` [rows, tokens] are of pictures"""
        hashes = self.hashes(tokens) if seen is None else self.hashes_beside(tokens, seen)
        *keys, value = self.wkv(self.embed(hashes).flatten(2)).chunk(streams.shape[2] + 1, dim=2)
        key, value, x = torch.stack(keys, dim=2).float(), value.float(), streams.float()
        key, x = (each / (each.square().mean(3, keepdim=True) + self.eps).sqrt() for each in (key, x))
        score = (key * self.k_weight * x * self.q_weight).sum(3) * x.shape[3] ** -0.5
        gate = torch.sigmoid(score.sign() * score.abs().clamp_min(1e-6).sqrt())
        if seen is not None:
            gate = gate.masked_fill(seen.unsqueeze(2), 0)
        found: torch.Tensor = streams.float() + gate.unsqueeze(3) * value.unsqueeze(2)
        return found.to(streams.dtype)

    def hashes_beside(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Of one row of tokens, where each stretch between pictures is a text of its own."""
        (row,), (of_picture,) = tokens, seen
        lengths = torch.unique_consecutive(of_picture, return_counts=True)[1].tolist()
        return torch.cat([self.hashes(part[None]) for part in row.split(lengths)], dim=1)

    def hashes(self, tokens: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, tables]"""
        before = functional.pad(tokens, (2, 0), value=_FILLER) // 2
        last = [before[:, 2 - back : 2 - back + tokens.shape[1]] for back in range(3)]
        mixed = last[0] * self.factors[0] ^ last[1] * self.factors[1]
        of_each = (mixed, mixed, mixed ^ last[2] * self.factors[2], mixed ^ last[2] * self.factors[2])
        firsts = (sum(self.rows[:number]) for number in range(4))
        found = [each % rows + first for each, rows, first in zip(of_each, self.rows, firsts, strict=True)]
        return torch.stack(found, dim=2)


class Weights(NamedTuple):
    """Of streams: of the sum of the next part, of a part's output, and of each stream in each."""

    before: torch.Tensor
    after: torch.Tensor
    mixed: torch.Tensor


class Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        hidden, count = config.hidden_size, config.hc_mult
        self.config, self.attn, self.ffn = config, Attention(config, number), Experts(config)
        self.attn_norm, self.ffn_norm = (nn.RMSNorm(hidden, config.rms_norm_eps) for _ in range(2))
        if number in config.engram_layer_ids:
            self.engram = Engram(config, number)
        for part in ("attn", "ffn"):
            self.register_parameter(f"hc_{part}_fn", nn.Parameter(torch.empty((2 + count) * count, count * hidden)))
            self.register_parameter(f"hc_{part}_base", nn.Parameter(torch.empty((2 + count) * count)))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.empty(3)))

    def forward(
        self,
        x: torch.Tensor,
        before: torch.Tensor,
        handed: Handed,
        tokens: torch.Tensor,
        seen: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Handed]:
        """x [rows, tokens, streams, hidden], and the weights of its sum → the same"""
        if hasattr(self, "engram"):
            x = self.engram(x, tokens, None if self.config.sees is None else tokens == self.config.sees)
        weights = self.weights("attn", x)
        made, handed = self.attn(self.attn_norm(summed(x, before)), handed)
        x, before = mixed(x, made, weights), weights.before
        weights = self.weights("ffn", x)
        made = self.ffn(self.ffn_norm(summed(x, before)), seen)
        return mixed(x, made, weights), weights.before, handed

    def weights(self, part: str, x: torch.Tensor) -> Weights:
        fn, base, scale = (getattr(self, f"hc_{part}_{which}").float() for which in ("fn", "base", "scale"))
        count, eps, flat = x.shape[2], self.config.hc_eps, x.flatten(2).float()
        flat = flat / (flat.square().mean(2, keepdim=True) + self.config.rms_norm_eps).sqrt()
        before, after, matrix = (flat @ fn.T).split((count, count, count * count), dim=2)
        of = base.split((count, count, count * count))
        matrix = (matrix * scale[2] + of[2]).unflatten(2, (count, count)).softmax(3) + eps
        matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
        for _ in range(self.config.hc_sinkhorn_iters - 1):
            matrix = matrix / (matrix.sum(3, keepdim=True) + eps)
            matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
        return Weights(
            torch.sigmoid(before * scale[0] + of[0]) + eps, 2 * torch.sigmoid(after * scale[1] + of[1]), matrix
        )


def summed(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return (x.float() * before.unsqueeze(3)).sum(2).to(x.dtype)


def mixed(x: torch.Tensor, made: torch.Tensor, weights: Weights) -> torch.Tensor:
    kept = torch.einsum("rtjk,rtjd->rtkd", weights.mixed, x.float())
    return (kept + weights.after.unsqueeze(3) * made.float().unsqueeze(2)).to(x.dtype)


class V41(transformers.PreTrainedModel):  # type: ignore[misc]
    config_class = V41Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.embed, self.head = nn.Embedding(config.vocab_size, hidden), _linear(hidden, config.vocab_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)

    def forward(
        self,
        input_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        seen: torch.Tensor | None = None,
        **_: Any,
    ) -> V41Output:
        """input_ids [rows, tokens], with embeddings of those that are ``seen`` → logits [rows, tokens, vocabulary]"""
        embedded = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        x = embedded.unsqueeze(2).repeat(1, 1, self.config.hc_mult, 1)
        before = torch.zeros(x.shape[:3])
        before[:, :, 0] = 1
        handed = Handed()
        for layer in self.layers:
            x, before, handed = layer(x, before, handed, input_ids, seen)
        return V41Output(self.head(self.norm(summed(x, before))))

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        """With a tokenizer of which each two tokens differ in case alone."""
        super().save_pretrained(folder)
        save_tokenizer(self.config.vocab_size, folder)


def save_tokenizer(vocab_size: int, folder: Path) -> None:
    """One of which each two tokens differ in case alone."""
    texts = {f"{'wW'[token % 2]}{token // 2}": token for token in range(vocab_size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(texts, unk_token="w0")).save(str(folder / "tokenizer.json"))


transformers.AutoModelForCausalLM.register(V41Config, V41)


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    rest: Values = {field: value for field, value in DEEPSEEK4.items() if field != "compress_rates"}
    own: Values = {**shape, **rest, "num_hidden_layers": 6, "num_key_value_heads": 1, "hc_mult": 4, "hc_eps": 1e-6}
    own |= {"rms_norm_eps": 1e-20, "routed_scaling_factor": 1.5, "rope_theta": 10000.0, "compress_rope_theta": 40000.0}
    own |= {"extension": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    own |= {"compress_ratios": [0, 2, 2, 1, 1, 1, 0]}
    own |= {"kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 4]}
    own |= {"index_topk": 20, "candidate_source_layer_id": 3, "candidate_topk_blocks": 6, "candidate_block_size": 4}
    own |= {"engram_layer_ids": [1, 4], "engram_num_embeddings": [240, 310], "engram_head_dim": 12, "stages": STAGES}
    plain: Values = {"candidate_source_layer_id": -1, "engram_layer_ids": [], "hc_mult": 2, "num_hidden_layers": 5}
    plain |= {"stages": {}}
    return {
        # all experts: where rounding changed the choice, the error would be larger than that of rounding
        "deepseek-v4.1": lambda: V41Config(**{**own, "num_experts_per_tok": 8}, tie_word_embeddings=False),
        "deepseek-v4.1-plain": lambda: V41Config(**{**own, **plain}, tie_word_embeddings=False),
    }


def _text(config: Any) -> Values:
    kept: tuple[str, ...] = ("head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "sliding_window")
    kept += ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor")
    kept += ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "rope_theta", "compress_rope_theta")
    kept += ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size", "engram_layer_ids")
    kept += ("engram_num_embeddings", "engram_head_dim", "index_n_heads", "index_head_dim", "index_topk")
    kept += ("hc_mult", "hc_eps", "hc_sinkhorn_iters", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads")
    own: Values = {"model_type": "deepseek_v41_text", "n_shared_experts": 1, "hidden_act": "silu", "swiglu_limit": 10.0}
    own |= {"scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True}
    own |= {"engram_max_ngram_size": 3, "engram_n_heads": 2, "engram_vocab_size": 50, "engram_pad_token_id": _FILLER}
    own |= {"engram_compressed_vocab_size": _FOLDED, "rope_scaling": config.extension}
    return {**own, **config.stages, **{field: getattr(config, field) for field in kept}}


def described(config: Any) -> Values:
    """The config.json of a model that sees."""
    return {field: value for field, value in _whole(config).items() if value is not ...}


def _whole(config: Any) -> Values:
    """With the fields of texts in a table."""
    sizes: tuple[str, ...] = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes += ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    text = {**{size: getattr(config, size) for size in sizes}, **_text(config)}
    absent = dict.fromkeys((*sizes, "intermediate_size", "num_key_value_heads", "rms_norm_eps"), ...)
    return {**absent, "model_type": "deepseek_v41", "text_config": text, "vision_config": {"num_hidden_layers": 1}}


@torch.no_grad()
def prepare(model: Any) -> None:
    """Weights of streams and gates that differ. Embeddings are large and outputs small, so that few tokens magnify what
    bfloat16 rounds."""
    for name, parameter in model.named_parameters():
        if name.endswith((".q_weight", ".k_weight", "_scale")):
            parameter.add_(1)
        if name.endswith(("embed.weight", "attn_sink")):
            parameter.mul_(4)
        if name.endswith(("wo_b.weight", "w2.weight")):
            parameter.mul_(0.5)


def _seeing(tensors: Tensors, config: Any) -> Tensors:
    """Beside what sees, and drafts."""
    names = ("vision.norm.weight", "aligner.w1.weight", "image_start", "mtp.0.norm.weight")
    corrected = torch.ones(config.n_routed_experts)
    every = {f"layers.{number}.ffn.gate.bias_vl": corrected.clone() for number in range(config.num_hidden_layers)}
    return {**tensors, **{name: torch.ones(2) for name in names}, **every}


PUBLISHED: Mapping[str, Published] = {
    "deepseek-v4.1": Published("DeepseekV41ForCausalLM", {}, _whole, _seeing, prepare),
    "deepseek-v4.1-plain": Published("DeepseekV41ForCausalLM", {}, _text, prepared=prepare),
}
"""By the name of a configuration."""
