"""How checkpoints store heads for multi-token prediction (arXiv:2412.19437). Torch-free."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, kw_only=True)
class MTPForm:
    """The form of a checkpoint's first head. Names are prefixes of tensors' names, with their last dot."""

    prefix: str = ""
    """Of all names; "": that of a layer behind the model's last."""
    layer: str = ""
    """Of its layer, behind :attr:`prefix`, as are the names below."""
    also: tuple[str, str] | None = None
    """Further parts of the layer, and what they are called within it (Nemotron-H)."""
    embedding_norm: str = "enorm."
    hidden_norm: str = "hnorm."
    fc: str = "eh_proj."
    embedding_fc: str = ""
    """Of a projection of the embedding, which is added to that of each stream by :attr:`fc` (DeepSeek V4); "": the
    latter takes embedding and hidden state together."""
    norm: str = "shared_head.norm."
    """Of the norm behind the layer; "": none (ERNIE)."""
    embedding: str = ""
    """Of its own embeddings, whole (dots.3 note); "": it uses the model's."""
    head: str = ""
    """Of its own output head (Step 3.5); "": it uses the model's."""
    narrows: tuple[str, str] | None = None
    """Of what narrows its streams, and what that of the model is called: its layer has as many streams as the model,
    and takes those of the model in place of a hidden state. None: it has one."""
    norms_whole: bool = False
    """Whether the norm of hidden states is over all streams of the model as one (Qwen4)."""
    hidden_first: bool = False
    """Whether the projection takes the hidden state before the embedding (MiMo)."""
    takes_stream: bool = False
    """Whether it takes hidden states before the model's last norm, not behind it (Kimi K3, MiMo, Step 3.5)."""
    skips_first: bool = False
    """Whether position 0 has no embedding."""
    feeds_normed: bool = True
    """Whether the normed output is fed back for a further token."""

    def renamed(self, whole: str, layer: str) -> tuple[tuple[str, str], ...]:
        """(stored prefix, replacement) pairs of names, in the order in which they apply.

        ``whole``: prefix of all of the head's names. ``layer``: the replacement of its layer's prefix.
        """
        parts = (
            (self.embedding_norm, "embedding_norm."),
            (self.hidden_norm, "hidden_norm."),
            (self.fc, "fc."),
            (self.embedding_fc, "embedding_fc."),
            (self.norm, "norm."),
            (self.head, "lm_head."),
            self.narrows or ("", ""),
        )
        found = [(self.embedding, "embed_tokens.")] if self.embedding else []
        found += [(whole + stored, place) for stored, place in parts if stored]
        found.append((whole + self.layer, layer))
        if self.also is not None:
            found.append((whole + self.also[0], layer + self.also[1]))
        return tuple(found)


DEEPSEEK: Final = MTPForm(skips_first=True, feeds_normed=False)
DEEPSEEK_V4: Final = MTPForm(
    prefix="mtp.",
    layer="0.",
    embedding_norm="0.enorm.",
    hidden_norm="0.hnorm.",
    fc="0.h_proj.",
    embedding_fc="0.e_proj.",
    norm="0.norm.",
    narrows=("0.hc_head_", "hc_head_"),
    skips_first=True,
    feeds_normed=False,
)
KIMI: Final = replace(DEEPSEEK, takes_stream=True)
GLM5: Final = replace(DEEPSEEK, feeds_normed=True)
DOTS: Final = replace(GLM5, embedding="model.mtp.embed_tokens.")
QWEN: Final = MTPForm(
    prefix="mtp.",
    layer="layers.0.",
    embedding_norm="pre_fc_norm_embedding.",
    hidden_norm="pre_fc_norm_hidden.",
    fc="fc.",
    norm="norm.",
)
"""Also EXAONE's and Mellum 2's."""
QWEN4: Final = replace(
    QWEN,
    fc="fc_hidden.",
    embedding_fc="fc_embedding.",
    norm="",
    narrows=("hyper_connection_mixer.", "model.hyper_connection_mixer."),
    norms_whole=True,
    feeds_normed=False,
)
LING: Final = MTPForm(norm="final_layernorm.")
HUNYUAN: Final = replace(LING, skips_first=True)
"""Also Ling 2.5's."""
STEP: Final = MTPForm(
    norm="transformer.shared_head.norm.",
    head="transformer.shared_head.output.",
    takes_stream=True,
    feeds_normed=False,
)
ERNIE: Final = MTPForm(
    prefix="model.mtp_",
    layer="block.0.",
    embedding_norm="emb_norm.0.",
    hidden_norm="hidden_norm.0.",
    fc="linear_proj.0.",
    norm="",
    skips_first=True,
    feeds_normed=False,
)
MIMO: Final = MTPForm(
    prefix="model.mtp_layers.",
    layer="0.",
    embedding_norm="0.token_layernorm.",
    hidden_norm="0.hidden_layernorm.",
    fc="0.input_proj.",
    norm="0.final_layernorm.",
    hidden_first=True,
    takes_stream=True,
    skips_first=True,
)
MIMO_V2: Final = MTPForm(
    prefix="model.mtp.",
    layer="layers.0.",
    embedding_norm="layers.0.enorm.",
    hidden_norm="layers.0.hnorm.",
    fc="layers.0.eh_proj.",
    norm="layers.0.final_layernorm.",
)
MINIMAX_M3: Final = replace(MIMO_V2, layer="layers.0.transformer_layer.", skips_first=True, feeds_normed=False)
HUNYUAN_V4: Final = MTPForm(
    prefix="model.mtp_layers.",
    layer="0.",
    embedding_norm="0.enorm.",
    hidden_norm="0.hnorm.",
    fc="0.eh_proj.",
    norm="0.final_layernorm.",
    skips_first=True,
)
"""Its layer has one stream, though the model has several."""
LONGCAT: Final = replace(MIMO_V2, embedding_norm="layers.0.enorm.m.", hidden_norm="layers.0.hnorm.m.", norm="norm.")
NEMOTRON: Final = replace(MIMO_V2, prefix="mtp.", norm="layers.1.final_layernorm.", also=("layers.1.", "experts."))
"""Two layers of the model are the two parts of the head's."""
