"""Falcon's attention for transformers' modules, whose own looks no attention function up.

Falcon's layers choose a class of attention by the configured name, and hand on ``past_key_values`` alone.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from .transformers_attention import PAGED, PROBED, Attends

FALCON: Final = "FalconForCausalLM"


@dataclass(frozen=True)
class HandedAsCache:
    """What a pass attends over, in the place of transformers' cache: one that is empty before each pass."""

    over: Attends

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, tokens: int, layer: int = 0) -> tuple[int, int]:
        return tokens, 0


@cache
def register_falcon() -> None:
    """Makes the attention known to transformers' Falcon, once a process."""
    from transformers.models.falcon import modeling_falcon as falcon

    class PagedFalconAttention(falcon.FalconAttention):
        """Queries, keys and values as Falcon makes them, over what the pass attends to."""

        def forward(  # type: ignore[override]  # the cache is ours
            self,
            hidden_states: torch.Tensor,
            alibi: torch.Tensor | None,
            attention_mask: Any,
            position_ids: torch.Tensor | None = None,
            layer_past: HandedAsCache | None = None,
            use_cache: bool = False,
            output_attentions: bool = False,
            position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
            **_asked: Any,
        ) -> tuple[torch.Tensor, None]:
            assert layer_past is not None
            fused = self.query_key_value(hidden_states)
            q, k, v = (each.transpose(1, 2) for each in self._split_heads(fused))
            if self.new_decoder_architecture:  # Falcon repeats those of a group for each of its heads
                repeats = self.num_heads // (self.num_kv_heads or self.num_heads)
                k, v = k[:, ::repeats], v[:, ::repeats]
            if alibi is None:
                assert position_embeddings is not None
                q, k = falcon.apply_rotary_pos_emb(q, k, *position_embeddings)
            asked = {"scaling": self.inv_norm_factor, "position_bias": alibi}
            found = layer_past.over.attend(self, q, k, v, attention_mask, asked)
            return self.dense(found.flatten(2)), None

    for name in (PAGED, PROBED):
        falcon.FALCON_ATTENTION_CLASSES[name] = PagedFalconAttention
