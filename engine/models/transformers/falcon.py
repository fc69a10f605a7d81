"""Falcon's attention for transformers' modules, which do not look up attention functions.

Falcon's layers choose an attention class by the configured name, and pass on only the cache that they get.
"""

from functools import cache
from typing import Any, Final

import msgspec
import torch

from .attention import PAGED, PROBED, PassAttention

FALCON: Final = "FalconForCausalLM"


class AttentionAsCache(msgspec.Struct, frozen=True):
    """The pass's attention in place of transformers' cache, which reports being empty."""

    attention: PassAttention

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, tokens: int, layer: int = 0) -> tuple[int, int]:
        return tokens, 0


@cache
def register_falcon() -> None:
    """Register the attention in transformers' Falcon, once a process."""
    from transformers.models.falcon import modeling_falcon as falcon

    class PagedFalconAttention(falcon.FalconAttention):
        """Falcon's projections with the pass's attention."""

        def forward(  # type: ignore[override]  # the cache is ours
            self,
            hidden_states: torch.Tensor,
            alibi: torch.Tensor | None,
            attention_mask: Any,
            position_ids: torch.Tensor | None = None,
            layer_past: AttentionAsCache | None = None,
            use_cache: bool = False,
            output_attentions: bool = False,
            position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
            **_asked: Any,
        ) -> tuple[torch.Tensor, None]:
            assert layer_past is not None
            fused = self.query_key_value(hidden_states)
            q, k, v = (each.transpose(1, 2) for each in self._split_heads(fused))
            if self.new_decoder_architecture:  # Falcon repeats keys and values for each head of a group
                repeats = self.num_heads // (self.num_kv_heads or self.num_heads)
                k, v = k[:, ::repeats], v[:, ::repeats]
            if alibi is None:
                assert position_embeddings is not None
                q, k = falcon.apply_rotary_pos_emb(q, k, *position_embeddings)
            asked = {"scaling": self.inv_norm_factor, "position_bias": alibi}
            found = layer_past.attention.attend(self, q, k, v, attention_mask, asked)
            return self.dense(found.flatten(2)), None

    for name in (PAGED, PROBED):
        falcon.FALCON_ATTENTION_CLASSES[name] = PagedFalconAttention
