"""Random LoRA adapters as PEFT stores them, and models with their weights merged by hand: W + s · B · A."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ADAPTED = torch.nn.Linear | torch.nn.Embedding | Conv1D


def save_adapter(
    model: Any,
    folder: Path,
    seed: int = 0,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    targets: Sequence[str] = ALL,
    rslora: bool = False,
    ranks: Mapping[str, int] | None = None,
    alphas: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float32,
    size: float = 0.2,
    **fields: object,
) -> dict[str, torch.Tensor]:
    """Saves an adapter of transformers' ``model`` into ``folder``; returns what it adds to each weight, by module.
    ``ranks`` and ``alphas`` are of modules that end with their keys."""
    generator = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in targets or not isinstance(
            module, torch.nn.Linear | torch.nn.Embedding | Conv1D
        ):
            continue
        is_table, turned = isinstance(module, torch.nn.Embedding), not isinstance(module, torch.nn.Linear)
        outputs, inputs = reversed(module.weight.shape) if turned else module.weight.shape
        r = next((value for key, value in (ranks or {}).items() if name.endswith(key)), rank)
        own = next((value for key, value in (alphas or {}).items() if name.endswith(key)), alpha)
        down = (torch.randn(r, inputs, generator=generator) * size).to(dtype)
        up = (torch.randn(outputs, r, generator=generator) * size).to(dtype)
        for which, matrix in (("A", down), ("B", up)):
            ending = f"lora_embedding_{which}" if is_table else f"lora_{which}.weight"
            stored[f"base_model.model.{name}.{ending}"] = matrix
        delta = up.float() @ down.float() * (own / (math.sqrt(r) if rslora else r))
        added[name] = delta.T if turned else delta
    assert added
    config = {
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": rslora,
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": dict(alphas or {}),
        "target_modules": sorted(targets),
        **fields,
    }
    save_matrices(folder, stored, **config)
    return added


def save_matrices(folder: Path, stored: Mapping[str, torch.Tensor], **fields: object) -> None:
    """Saves A and B by their names in the file, and a configuration with these ``fields``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "modules_to_save": None, **fields}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def save_experts_apart(
    model: Any, folder: Path, prefix: str, names: Sequence[str], seed: int = 0, *, rank: int = 2, size: float = 0.3
) -> dict[str, torch.Tensor]:
    """Saves an adapter of experts that are modules of their own: those with even numbers, whose gate, up and down go by
    ``names`` below ``prefix`` of a layer. Returns what it adds to the parameters in which transformers has all."""
    generator = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        stem, _, which = name.rpartition(".experts.")
        if which not in ("gate_up_proj", "down_proj"):
            continue
        delta = added[name] = torch.zeros_like(parameter)
        layer = stem.rpartition(".")[0]
        for expert in range(0, len(parameter), 2):
            parts = delta[expert].chunk(2) if which == "gate_up_proj" else [delta[expert]]
            for part, own in zip(parts, names[:2] if which == "gate_up_proj" else names[2:], strict=True):
                down = torch.randn(rank, part.shape[1], generator=generator) * size
                up = torch.randn(len(part), rank, generator=generator) * size
                module = f"base_model.model.{layer}.{prefix}.{expert}.{own}"
                stored |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
                part.copy_(up @ down)  # alpha is the rank
    save_matrices(folder, stored, r=rank, lora_alpha=rank, target_modules=list(names))
    return added


def save_experts_together(
    model: Any, folder: Path, seed: int = 0, *, rank: int = 2, size: float = 0.3, turned: bool = False
) -> dict[str, torch.Tensor]:
    """Saves an adapter of all experts as parameters, with the second one wrapped around the first, and of routers;
    ``turned``: as PEFT did before 0.19.1 where outputs stand before inputs. Returns what it adds to them."""
    generator = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        module, _, which = name.rpartition(".")
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj", ".gate.weight", ".router.weight")):
            continue
        count = len(parameter) if parameter.dim() == 3 else 1
        # PEFT takes the first of the last two dimensions for the inputs, or the second
        inputs, outputs = parameter.shape[-2:] if turned and parameter.dim() == 3 else parameter.shape[:-3:-1]
        down = torch.randn(count * rank, inputs, generator=generator) * size
        up = torch.randn(outputs, count * rank, generator=generator) * size
        wrapper = f"base_model.model.{module}" + (".base_layer" if which == "gate_up_proj" else "")
        stored |= {f"{wrapper}.lora_A.weight": down, f"{wrapper}.lora_B.weight": up}
        delta = torch.einsum("ore,eri->eoi", up.view(outputs, rank, count), down.view(count, rank, inputs))
        added[name] = (delta.transpose(1, 2) if delta.shape[1:] != parameter.shape[-2:] else delta).view(
            parameter.shape
        )
    targets = ["experts.gate_up_proj", "experts.down_proj", "gate.weight", "router.weight"]
    version = {"peft_version": "0.18.0" if turned else "0.20.1"}
    save_matrices(folder, stored, r=rank, lora_alpha=rank, target_modules=[], target_parameters=targets, **version)
    return added


def merged(model: Any, added: Mapping[str, torch.Tensor]) -> Any:
    """A copy of the model whose weights, of modules or parameters by name, have it; a head that was the embeddings is
    one by itself."""
    changed = copy.deepcopy(model)
    if getattr(model.config, "tie_word_embeddings", False) and hasattr(model, "lm_head"):
        changed.lm_head.weight = torch.nn.Parameter(changed.lm_head.weight.detach().clone())
    parameters = dict(changed.named_parameters())
    with torch.no_grad():
        for name, delta in added.items():
            parameters[name if name in parameters else f"{name}.weight"].add_(delta)
    return changed
