"""Tiny models whose layers run several times, for :mod:`.hub`.

They are models of transformers with a layer for each run, of equal weights, and the last norm before each later run.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity.hub_form import Published, Tensors, Values, old_rope

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

LOOPS = 2
"""Times that layers run in models whose layers loop."""
WINDOW = 16
"""Tokens that later runs of an IQuest LoopCoder see of their own."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    llama = transformers.LlamaConfig
    looped = {**shape, "num_hidden_layers": 2 * LOOPS}
    sandwiched = {"head_dim": 16, "query_pre_attn_scalar": 16, "hidden_activation": "silu"}
    sandwiched |= {**dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping")), "tie_word_embeddings": False}
    return {
        "nanbeige": lambda: llama(**looped, head_dim=32, rms_norm_eps=1e-5),
        "nanbeige-skipping": lambda: llama(**looped, head_dim=32, rms_norm_eps=1e-5),
        "iquest-loop": lambda: llama(**looped, rms_norm_eps=1e-5),
        "ouro": lambda: transformers.Gemma2Config(
            **looped,
            **sandwiched,
            layer_types=["full_attention"] * 2 * LOOPS,
            attn_implementation="eager",
        ),
    }


def _nanbeige(**own: Any) -> Callable[[Any], Values]:
    def described(config: Any) -> Values:
        of_loops = {"num_hidden_layers": config.num_hidden_layers // LOOPS, "head_dim": config.head_dim}
        said = {"model_type": "nanbeige", "hidden_act": "silu", "tie_word_embeddings": False, **old_rope(config)}
        return {**said, **of_loops, **own}

    return described


def _ouro(config: Any) -> Values:
    own = {"model_type": "ouro", "num_hidden_layers": config.num_hidden_layers // LOOPS, "head_dim": 16}
    own |= {"total_ut_steps": LOOPS, "early_exit_threshold": 1.0, "sliding_window": None, **old_rope(config)}
    return {**own, "use_sliding_window": False, "tie_word_embeddings": False, "hidden_act": "silu"}


@torch.no_grad()
def _repeat(model: Any) -> None:
    """Gives layers of later loops the weights of the first."""
    layers = model.model.layers
    stored = len(layers) // LOOPS
    for at in range(stored, len(layers)):
        layers[at].load_state_dict(layers[at - stored].state_dict())


def _repeat_normed(model: Any) -> None:
    """The same, with the last norm before each later loop."""
    _repeat(model)
    stored = len(model.model.layers) // LOOPS
    for at in range(stored, len(model.model.layers), stored):
        model.model.layers[at].register_forward_pre_hook(partial(_norm_first, model.model.norm))


def _norm_first(norm: Any, _layer: Any, given: Any) -> Any:
    return norm(given[0]), *given[1:]


@torch.no_grad()
def _see_first_run(model: Any) -> None:
    """Layers of later runs also attend to the keys and values of the first."""
    layers = model.model.layers
    stored = len(layers) // LOOPS
    _repeat(model)
    for layer in layers[stored:]:
        layer.self_attn.loop_gate = torch.nn.Linear(model.config.head_dim, model.config.num_attention_heads)
        torch.nn.init.normal_(layer.self_attn.loop_gate.weight, 0, 0.5)
    kept: dict[int, Any] = {}

    def seen(query: Any, key: Any, value: Any, scaling: float, window: int) -> Any:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        at = torch.arange(key.shape[2])
        far = at[-query.shape[2] :, None] - at
        scores = (query @ key.transpose(2, 3)) * scaling
        return scores.masked_fill((far < 0) | (far >= window), -torch.inf).softmax(-1).to(value.dtype) @ value

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
        if module.layer_idx < stored:
            kept[module.layer_idx] = key, value
            return seen(query, key, value, scaling, 1 << 20).transpose(1, 2), None
        of_first = kept[module.layer_idx - stored]
        first = seen(query, of_first[0], of_first[1], scaling, 1 << 20)
        near = seen(query, key, value, scaling, WINDOW)
        logits = torch.einsum("bhtd,hd->bht", query, module.loop_gate.weight) + module.loop_gate.bias[:, None]
        gate = logits.sigmoid()[..., None]
        return (first * gate + near * (1 - gate)).transpose(1, 2), None

    transformers.AttentionInterface.register("loop", attend)
    model.config._attn_implementation = "loop"


def _gemma_alone(model: Any) -> None:
    """The same of a Gemma whose embeddings are not scaled."""
    _repeat_normed(model)
    model.model.embed_tokens.embed_scale.fill_(1.0)


def once(tensors: Tensors, config: Any) -> Tensors:
    """The layers of the first loop."""
    later = tuple(f"model.layers.{at}." for at in range(config.num_hidden_layers // LOOPS, config.num_hidden_layers))
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(later)}


def _with_gates(tensors: Tensors, config: Any) -> Tensors:
    """The layers of the first run, and gates of the later one."""
    stored, found = config.num_hidden_layers // LOOPS, once(tensors, config)
    for name, tensor in tensors.items():
        if "loop_gate" in name:
            number, ending = int(name.split(".")[2]) - stored, name.rpartition(".")[2]
            found[f"model.gate_projections.{number}.{ending}"] = tensor
    return found


def _plain_norms(tensors: Tensors, config: Any) -> Tensors:
    """With norms that multiply by their weight, not by one more, and none of heads; with a gate of exits."""
    found = {name: tensor + 1 if "norm" in name else tensor for name, tensor in once(tensors, config).items()}
    gate = {"model.early_exit_gate.weight": torch.ones(1, 64), "model.early_exit_gate.bias": torch.ones(1)}
    return {**found, **gate}


_OURO_NAMES = {
    "post_attention_layernorm": "input_layernorm_2",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "post_attention_layernorm_2",
}
PUBLISHED: Mapping[str, Published] = {
    "nanbeige": Published("NanbeigeForCausalLM", {}, _nanbeige(num_loops=LOOPS), once, _repeat_normed),
    "nanbeige-skipping": Published(
        "NanbeigeForCausalLM",
        {},
        _nanbeige(loop_loss_weights=[1.0] * (LOOPS - 1), skip_loop_final_norm=True),
        once,
        _repeat,
    ),
    "iquest-loop": Published(
        "IQuestLoopCoderForCausalLM",
        {},
        lambda config: {**_nanbeige(loop_num=LOOPS, loop_window_size=WINDOW)(config), "model_type": "iquestloopcoder"},
        _with_gates,
        _see_first_run,
    ),
    "ouro": Published("OuroForCausalLM", _OURO_NAMES, _ouro, _plain_norms, _gemma_alone),
}
"""By the name of a configuration."""
