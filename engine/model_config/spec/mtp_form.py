"""How checkpoints store heads for multi-token prediction (arXiv:2412.19437). Torch-free."""

from typing import Final

import msgspec
from msgspec.structs import replace


class MTPForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a checkpoint's first head. Names are prefixes of tensors' names, with their last dot."""

    prefix: str = ""
    """Of all heads; "": they are layers behind the model's last."""
    first: str = ""
    """Of the first head, behind :attr:`prefix`; "": the checkpoint has one, or :attr:`prefix` is that of a layer."""
    layer: str = ""
    """Of its layer, behind both, as are the names below."""
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

        ``whole``: prefix of the head's names. ``layer``: the replacement of its layer's prefix.
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


class StagesForm(msgspec.Struct, frozen=True):
    """Layers that draft blocks of tokens (DSpark), which a model's checkpoint has: stages, one behind another."""

    count: int
    taps: tuple[int, ...]
    """The model's layers before which they take its streams' mean."""
    block: int
    """Tokens of a block."""
    mask_token: int
    """Stands for tokens that are to be drafted."""
    markov_rank: int
    """Rank of what the token before adds to logits."""
    prefix: str = "mtp."
    """Of the names of their tensors; their number follows."""

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """As :meth:`MTPForm.renamed`: the first has the projection of what they take, the last what is behind all."""
        first, last = f"{self.prefix}0.", f"{self.prefix}{self.count - 1}."
        parts = (
            (f"{first}main_proj.", "fc."),
            (f"{first}main_norm.", "hidden_norm."),
            (f"{last}norm.", "norm."),
            (f"{last}markov_head.embed.", "markov_head.markov_w1."),
            (f"{last}markov_head.head.", "markov_head.markov_w2."),
            (f"{last}confidence_head.", "confidence_head."),
        )
        return (*parts, *((f"{self.prefix}{number}.", f"layers.{number}.") for number in range(self.count)))


DEEPSEEK: Final = MTPForm(skips_first=True, feeds_normed=False)
DEEPSEEK_V4: Final = replace(
    DEEPSEEK,
    prefix="mtp.",
    first="0.",
    fc="h_proj.",
    embedding_fc="e_proj.",
    norm="norm.",
    narrows=("hc_head_", "hc_head_"),
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
HUNYUAN_V4: Final = replace(HUNYUAN, prefix="model.mtp_layers.", first="0.")
"""Its layer has one stream, though the model has several."""
MIMO: Final = replace(
    HUNYUAN_V4,
    embedding_norm="token_layernorm.",
    hidden_norm="hidden_layernorm.",
    fc="input_proj.",
    hidden_first=True,
    takes_stream=True,
)
MIMO_V2: Final = replace(LING, prefix="model.mtp.", first="layers.0.")
MINIMAX_M3: Final = replace(MIMO_V2, layer="transformer_layer.", skips_first=True, feeds_normed=False)
LONGCAT: Final = MTPForm(
    prefix="model.mtp.",
    layer="layers.0.",
    embedding_norm="layers.0.enorm.m.",
    hidden_norm="layers.0.hnorm.m.",
    fc="layers.0.eh_proj.",
    norm="norm.",
)
NEMOTRON: Final = MTPForm(
    prefix="mtp.",
    first="layers.",
    layer="0.",
    also=("1.", "experts."),
    embedding_norm="0.enorm.",
    hidden_norm="0.hnorm.",
    fc="0.eh_proj.",
    norm="1.final_layernorm.",
)
"""Two layers of the model are the two parts of the head's."""
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
