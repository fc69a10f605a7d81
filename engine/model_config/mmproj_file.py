"""What the two files of a model say of themselves: a projector file (llama.cpp's ``mmproj``), and the text model's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .config_fields import MOST_LAYERS, ConfigError, Fields
from .gguf_fields import Shapes
from .model_spec import ModelSpec
from .whisper_config import MOST_MEL_BINS

Values = dict[str, object]
"""Of a config.json."""
_SPECIAL: Final = frozenset({2, 3, 4})
"""Types of tokens that are found whole in a text: unknown, control, user-defined."""


@dataclass(frozen=True)
class TextFile:
    """What the pairing asks of the text model's file."""

    metadata: Mapping[str, object]
    spec: ModelSpec

    @property
    def architecture(self) -> str:
        return Fields(self.metadata).text("general.architecture")

    def first_of(self, names: Sequence[str]) -> int | None:
        """The id of the first of these tokens that the vocabulary has, and finds in texts as a whole."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        types = self.metadata.get("tokenizer.ggml.token_type")
        for name in names:
            if isinstance(tokens, list) and name in tokens:
                id = tokens.index(name)
                if not isinstance(types, list) or types[id : id + 1] in ([kind] for kind in _SPECIAL):
                    return id
        return None


@dataclass(frozen=True)
class Projecting:
    """What a projector file says of itself."""

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
        """Whether it has an encoder of pictures."""
        return self.clip.flag("has_vision_encoder")

    @property
    def hears(self) -> bool:
        """Whether it has an encoder of sounds."""
        return self.clip.flag("has_audio_encoder")

    @property
    def encoder(self) -> Fields:
        """What it says of its encoder; of two, of that of pictures."""
        return self.audio if self.hears and not self.sees else self.vision

    @property
    def kind(self) -> str:
        """The projector's type, or those of both its encoders with a plus between them; empty where none is said.
        Raises :class:`ConfigError` for a file of another sort."""
        if Fields(self.metadata).text("general.architecture", "") != "clip":
            raise ConfigError("it is no projector: general.architecture is not 'clip'")
        old = "mlp" if self.clip.flag("has_llava_projector") else ""
        encoders = [*[self.vision] * self.sees, *[self.audio] * self.hears]
        each = [said for encoder in encoders if (said := encoder.text("projector_type", ""))]
        return self.clip.text("projector_type", "+".join(each) or old)

    @property
    def clips(self) -> bool:
        """Whether what goes into products is clipped, and what comes out of them."""
        return any(name.endswith(".input_max") for name in self.shapes)

    def outputs(self, tensor: str) -> int:
        """Of the matrix of this name. Raises :class:`ConfigError`."""
        shape = self.shapes.get(tensor, ())
        if len(shape) < 2:
            raise ConfigError(f"the tensor {tensor} is missing")
        return shape[1]

    @property
    def swapped(self) -> bool:
        """Whether networks have the names of their products the other way round, as old converters wrote them."""
        down = self.shapes.get("v.blk.0.ffn_down.weight", ())
        hidden = self.vision.integer("embedding_length")
        return "v.blk.0.ffn_gate.weight" not in self.shapes and len(down) == 2 and down[0] == hidden != down[1]

    @property
    def inner(self) -> int:
        """Of a layer's network; the key of some files says another size."""
        return self.outputs(f"v.blk.0.ffn_{'down' if self.swapped else 'up'}.weight")

    @property
    def embedding(self) -> int:
        """Columns of what the tower makes; of LLaVA the key says something else."""
        return self.outputs("mm.2.weight") if self.kind == "mlp" else self.encoder.integer("projection_dim")

    def whisper(self) -> Values:
        """``audio_config``, as Whisper and its descendants have it."""
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
        """``vision_config``, as most families have it."""
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
        """``unsaid``: where neither GELU nor SiLU is named."""
        return "gelu" if self.clip.flag("use_gelu") else "silu" if self.clip.flag("use_silu") else unsaid


def decoder(text: TextFile, model_type: str) -> Values:
    """``text_config`` for a class of transformers whose decoder is left out: what its projector asks of it."""
    one = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"), 1)
    sizes = {"hidden_size": text.spec.hidden_size, "vocab_size": text.spec.vocab_size}
    return {"model_type": model_type, **sizes, **one}
