"""The metadata of a model's two files: a projector file (llama.cpp's ``mmproj``) and the text model's."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.model import ModelSpec
from ..speech.whisper import MOST_MEL_BINS
from .fields import Shapes

Values = dict[str, object]
"""Fields of a config.json."""
_SPECIAL: Final = frozenset({2, 3, 4})
"""Token types that are matched as a whole in a text: unknown, control, user-defined."""


class TextFile(msgspec.Struct, frozen=True):
    """The parts of a text model's file that pairing needs."""

    metadata: Mapping[str, object]
    spec: ModelSpec

    @property
    def architecture(self) -> str:
        return Fields(self.metadata).text("general.architecture")

    def first_of(self, names: Sequence[str]) -> int | None:
        """The id of the first of these tokens that is in the vocabulary and is matched as a whole; None if there is
        none."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        types = self.metadata.get("tokenizer.ggml.token_type")
        for name in names:
            if isinstance(tokens, list) and name in tokens:
                id = tokens.index(name)
                if not isinstance(types, list) or types[id : id + 1] in ([kind] for kind in _SPECIAL):
                    return id
        return None


class ProjectorFile(msgspec.Struct, frozen=True):
    """The contents of a projector file."""

    metadata: Mapping[str, object]
    shapes: Shapes
    """In GGUF's order."""

    @property
    def clip(self) -> Fields:
        return Fields(self.metadata, "clip.")

    @property
    def vision(self) -> Fields:
        return Fields(self.metadata, "clip.vision.")

    @property
    def audio(self) -> Fields:
        return Fields(self.metadata, "clip.audio.")

    @property
    def sees(self) -> bool:
        """Whether it has a vision encoder."""
        return self.clip.flag("has_vision_encoder")

    @property
    def hears(self) -> bool:
        """Whether it has an audio encoder."""
        return self.clip.flag("has_audio_encoder")

    @property
    def encoder(self) -> Fields:
        """The keys of its encoder; of the vision encoder if there are two."""
        return self.audio if self.hears and not self.sees else self.vision

    @property
    def kind(self) -> str:
        """The projector's type, or those of both encoders joined by a plus; "" if missing.

        Raises :class:`ConfigError` for another kind of file.
        """
        if Fields(self.metadata).text("general.architecture", "") != "clip":
            raise ConfigError("it is no projector: general.architecture is not 'clip'")
        old = "mlp" if self.clip.flag("has_llava_projector") else ""
        encoders = [*[self.vision] * self.sees, *[self.audio] * self.hears]
        each = [said for encoder in encoders if (said := encoder.text("projector_type", ""))]
        return self.clip.text("projector_type", "+".join(each) or old)

    @property
    def clips(self) -> bool:
        """Whether inputs and outputs of products are clipped."""
        return any(name.endswith(".input_max") for name in self.shapes)

    def outputs(self, tensor: str) -> int:
        """Outputs of this matrix. Raises :class:`ConfigError`."""
        shape = self.shapes.get(tensor, ())
        if len(shape) < 2:
            raise ConfigError(f"the tensor {tensor} is missing")
        return shape[1]

    @property
    def swapped(self) -> bool:
        """Whether the names of the networks' products are swapped, as old converters wrote them."""
        down = self.shapes.get("v.blk.0.ffn_down.weight", ())
        hidden = self.vision.integer("embedding_length")
        return "v.blk.0.ffn_gate.weight" not in self.shapes and len(down) == 2 and down[0] == hidden != down[1]

    @property
    def inner(self) -> int:
        """Inner size of a layer's network; the key is wrong in some files."""
        return self.outputs(f"v.blk.0.ffn_{'down' if self.swapped else 'up'}.weight")

    @property
    def embedding(self) -> int:
        """Size of the tower's embeddings; the key is wrong for LLaVA."""
        return self.outputs("mm.2.weight") if self.kind == "mlp" else self.encoder.integer("projection_dim")

    def whisper(self) -> Values:
        """``audio_config`` of Whisper and its descendants."""
        audio = self.audio
        return {
            "d_model": audio.integer("embedding_length"),
            "encoder_layers": audio.integer("block_count", most=MOST_LAYERS),
            "encoder_attention_heads": audio.integer("attention.head_count"),
            "encoder_ffn_dim": self.outputs("a.blk.0.ffn_up.weight"),
            "num_mel_bins": audio.integer("num_mel_bins", most=MOST_MEL_BINS),
            "max_source_positions": self.outputs("a.position_embd.weight"),
        }

    def tower(self) -> Values:
        """``vision_config`` of most families."""
        vision = self.vision
        return {
            "hidden_size": vision.integer("embedding_length"),
            "intermediate_size": self.inner,
            "num_hidden_layers": vision.integer("block_count", most=MOST_LAYERS),
            "num_attention_heads": vision.integer("attention.head_count"),
            "image_size": vision.integer("image_size"),
            "patch_size": vision.integer("patch_size"),
            "layer_norm_eps": vision.number("attention.layer_norm_epsilon"),
        }

    def activation(self, unsaid: str) -> str:
        """The activation; ``unsaid``: if neither GELU nor SiLU is named."""
        return "gelu" if self.clip.flag("use_gelu") else "silu" if self.clip.flag("use_silu") else unsaid


def decoder(text: TextFile, model_type: str) -> Values:
    """``text_config`` for a transformers class whose decoder is removed: the sizes that its projector needs."""
    one = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"), 1)
    sizes = {"hidden_size": text.spec.hidden_size, "vocab_size": text.spec.vocab_size}
    return {"model_type": model_type, **sizes, **one}
