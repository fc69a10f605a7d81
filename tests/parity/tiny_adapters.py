"""Random LoRA adapters as PEFT stores them, and models with their weights merged by hand: W + s · B · A."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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
        if name.rpartition(".")[2] not in targets or not isinstance(module, torch.nn.Linear):
            continue
        outputs, inputs = module.weight.shape
        r = next((value for key, value in (ranks or {}).items() if name.endswith(key)), rank)
        own = next((value for key, value in (alphas or {}).items() if name.endswith(key)), alpha)
        down = (torch.randn(r, inputs, generator=generator) * size).to(dtype)
        up = (torch.randn(outputs, r, generator=generator) * size).to(dtype)
        stored[f"base_model.model.{name}.lora_A.weight"] = down
        stored[f"base_model.model.{name}.lora_B.weight"] = up
        added[name] = up.float() @ down.float() * (own / (math.sqrt(r) if rslora else r))
    assert added
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": rslora,
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": dict(alphas or {}),
        "target_modules": sorted(targets),
        "bias": "none",
        "modules_to_save": None,
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


def merged(model: Any, added: Mapping[str, torch.Tensor]) -> Any:
    """A copy of the model whose weights have it."""
    changed = copy.deepcopy(model)
    modules = dict(changed.named_modules())
    with torch.no_grad():
        for name, delta in added.items():
            modules[name].weight.add_(delta)
    return changed
