"""Media encoders that run transformers' modules: a model's tower and projector.

A transformers model class has one method for each modality (``get_image_features``), from the processor's output to
embeddings. The class is made without values, its decoder and head are removed, and the rest is loaded by name.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import torch

from ...layers.linear.parts import BeforePart
from ...layers.linear.weights import WeightMap
from ...model_config.config_fields import ConfigError, Fields
from ...model_config.hf.deepseek_ocr import with_known_tower
from ...model_config.hf.fun_asr import TRUNCATED, embeddings_of, name_of_transformers, with_tower_of_fun_asr
from ...model_config.hf.nemotron_omni import in_transformers_form
from ...model_config.hf.phi4mm import with_tower_of_phi4
from ...model_config.hf.step_vl import with_tower_of_step
from ...model_config.hf.thinker import thinker
from ...model_config.towers.media_spec import TWO_TOWERS, check_canvas, lacks_timm
from ...model_config.transformers_config import configuration, first_line
from ..towers.payload import Encoded, Payload
from .names import module_tensors


class _Nothing(torch.nn.Module):
    """Replaces a model's decoder."""

    def forward(self, *_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("the tower of a model has called its decoder")


_PROJECTED_LATER: Final = ("Llama4ForConditionalGeneration",)
"""Classes whose methods leave out the projector, which the forward calls."""
_UNLISTED: Final[Mapping[str, str]] = {
    "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
    "musicflamingo": "MusicFlamingoForConditionalGeneration",
    "qwen2_5_omni_thinker": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Classes by model type that transformers does not list as multimodal."""
_VISION_TOWER: Final = ("model.vision_tower.",)
"""Prefix of the vision tower's tensor names."""
_UNHEARD: Final[Mapping[str, tuple[str, ...]]] = {
    "fun_asr_nano": ("ctc.", "ctc_decoder."),
    "nemo_speechlm": (
        "ctc_timestamp.",
        "perception.preprocessor.",
        "perception.encoder.diarization_model.preprocessor.",
        "perception.encoder.diarization_model.sortformer_modules.hidden_to_spks.",
    ),
    "phi4_multimodal": ("model.embed_tokens_extend.audio_embed.",),
}
"""Prefixes of parts that are not used, by model type."""
_IN_FLOAT32: Final = ("nemo_speechlm",)
"""Model types whose encoders compute in float32, whatever the model's type is."""
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "phi4_multimodal": {
        **{"image_embed.img_projection.0.": "image_embed.img_projection_up."},
        **{"image_embed.img_projection.2.": "image_embed.img_projection_down."},
        **{"image_embed.glb_GN": "image_embed.global_img_feature_extensor"},
        **{"image_embed.sub_GN": "image_embed.sub_img_feature_extensor"},
    },
    "qwen3_asr": {
        **{f"thinker.audio_tower.proj{part}.": f"model.multi_modal_projector.linear_{part}." for part in (1, 2)},
        "thinker.audio_tower.": "model.audio_tower.",
    },
}
"""Parts of published names that transformers' classes call otherwise, by model type."""
_JOINED: Final = ".qkv_proj."
"""In the name of a tensor of queries, keys and values."""
_OF_TEXTS: Final = ("text_model", "text_projection")
_MADE: Final = ("position_ids", "rotary_emb.inv_freq", "rotary_pos_emb.inv_freq", "_extra_state")
"""Endings of tensors that modules make themselves, or that are of training."""
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


class TransformersTower:
    """Encodes payloads, one medium each."""

    def __init__(
        self, described: Mapping[str, object], dtype: torch.dtype, device: torch.device, *, shapes_only: bool = False
    ) -> None:
        """``described``: the config.json. ``shapes_only``: without memory for weights.

        Raises :class:`...model_config.config_fields.ConfigError`.
        """
        self.dtype, self._device = dtype, device
        try:
            self._make(described, shapes_only)
        except ConfigError:
            raise
        except Exception as error:  # another library's code may raise anything
            raise ConfigError(
                f"transformers cannot make what sees of its config.json: {type(error).__name__}, {first_line(error)}"
            ) from error

    def _make(self, described: Mapping[str, object], shapes_only: bool) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.initialization import no_init_weights

        described = with_tower_of_step(in_transformers_form(with_known_tower(thinker(described))))
        described = with_tower_of_fun_asr(with_tower_of_phi4(described))
        check_canvas(described)
        made = configuration(described)
        if getattr(made, "has_lora_adapter", False):
            raise ConfigError(
                "has_lora_adapter is true: its decoder has other weights (LoRA) where a prompt has audio, and here it "
                "has one set, expected a checkpoint without an adapter"
            )
        self._unseen = _UNHEARD.get(made.model_type, ())
        self._renamed = _RENAMED.get(made.model_type, {})
        self._named: Callable[[str], str] | None = None
        if getattr(made, TRUNCATED, False):
            layers = made.audio_config.num_hidden_layers
            blocks = layers - made.audio_config.num_timestamp_prediction_layers
            self._named = partial(name_of_transformers, blocks=blocks, layers=layers)
        if lacks_timm(described):
            self._unseen = _VISION_TOWER
            leave_out_pictures(made)
        with ExitStack() as stack:
            stack.enter_context(no_init_weights())
            stack.enter_context(torch.device("meta"))
            model = _class_of(described)._from_config(made, dtype=self.dtype)
        self._conversions: Sequence[Any] = get_model_conversion_mapping(model)
        _take_out_decoder(model)
        _see_both_ways(model)
        model.eval().requires_grad_(False)
        if not shapes_only:
            _materialise(model, self._device)
        self._model = model
        self._tensors: Mapping[str, torch.Tensor] = model.state_dict()
        self.weights = WeightMap()
        unstored = _unstored(model)
        for name, tensor in self._tensors.items():
            add = self.weights.offer if any(each.search(name) for each in unstored) else self.weights.add
            add(name, tensor)

    def before_parts(self, pause: BeforePart) -> None:
        """Call ``pause`` before each of its products."""

        def before(*_: object) -> None:
            pause(math.inf)

        for module in self._model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(before)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its weights by transformers' names."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a checkpoint's tensors outside of the decoder. Raises :class:`...layers.linear.weights.WeightError`."""
        seen = (each for each in tensors if not each[0].startswith(self._unseen)) if self._unseen else tensors
        usual = (part for each in seen for part in self._usual(*each))
        named = module_tensors(self._model, self._conversions, self._tensors, usual)
        self.weights.load(named, ignore=_MADE)

    def _usual(self, stored: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for part, usual in self._renamed.items():
            stored = stored.replace(part, usual)
        name = stored if self._named is None else self._named(stored)
        if self._named is not None and _JOINED in name:
            for letter, part_of in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace(_JOINED, f".{letter}_proj."), part_of
        else:
            yield name, tensor

    @torch.inference_mode()
    def words(self) -> dict[int, torch.Tensor]:
        """Embeddings [hidden] that the tower provides for text tokens, by id: those around media of Ovis 2 and Gemma
        3n."""
        if self._model.config.model_type == "gemma3n":
            return _gemma3n_words(self._model.model, self._device)
        ids = getattr(self._model.config, "visual_indicator_token_ids", ())
        if not ids:
            return {}
        inner = self._model.model
        last = torch.arange(inner.visual_vocab_size - len(ids), inner.visual_vocab_size, device=self._device)
        return dict(zip(ids, inner.visual_embeddings_table(last), strict=True))

    @torch.inference_mode()
    def encode(self, payload: Payload) -> Encoded:
        """Encode a payload. Raises ValueError if the model has no method for it, or the method refuses it."""
        own = _METHODS.get((type(self._model).__name__, payload.modality))
        name = f"get_{payload.modality}_features"
        inner = getattr(self._model, "model", None)  # some classes have methods for videos only there
        method = getattr(self._model, name, None) or getattr(inner, name, None)
        if method is None and own is None:
            raise ValueError(f"the model has no encoder for {payload.modality}s")
        given = {name: self._moved(tensor) for name, tensor in payload.tensors.items()}
        try:
            if own is not None:
                made = own(self._model, **given)
                return Encoded(made) if made.is_floating_point() else Encoded(made.new_empty(0), tokens=made)
            assert method is not None
            found = method(**given, return_dict=True)
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            what = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in payload.tensors.items())
            why = first_line(error)
            raise ValueError(f"the model's encoder of {payload.modality}s cannot take {what}: {why}") from error
        if type(self._model).__name__ in _PROJECTED_LATER:
            return Encoded(self._model.multi_modal_projector(_rows(found.last_hidden_state)))
        return _read(found)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if self._model.config.model_type in _IN_FLOAT32 else self.dtype
        return tensor.to(self._device, dtype) if tensor.dtype in _FLOATS else tensor.to(self._device)


def _class_of(described: Mapping[str, object]) -> Any:
    """The transformers class named by a config.json, or that of its model type."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    fields = Fields(described)
    kind = fields.text("model_type", "")
    several: dict[str, Any] = {**auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **_UNLISTED}
    known: Mapping[str, Any] = auto.MODEL_MAPPING_NAMES if kind in TWO_TOWERS else several
    for name in (*(fields.texts("architectures") or ()), known.get(kind, "")):
        if name in known.values() and hasattr(transformers, name):
            return getattr(transformers, name)
    raise ConfigError(f"transformers has no model of type {kind!r} that takes media")


def _take_out_decoder(model: Any) -> None:
    """Remove the decoder, or a text tower beside a vision tower."""
    texts = [module for name, module in model.named_children() if name in _OF_TEXTS]
    inner = model.model if hasattr(model, "model") else model
    if model.config.model_type == "chameleon":  # its encoder is a part of its decoder
        texts = [inner.embed_tokens, inner.layers, inner.norm, model.get_output_embeddings()]
    if model.config.model_type == "phi4_multimodal":  # likewise
        sounds = inner.embed_tokens_extend.audio_embed
        texts = [inner.embed_tokens, inner.layers, inner.norm, sounds, model.get_output_embeddings()]
    if model.config.model_type == "nemo_speechlm":  # beside what times words
        texts = [inner.language_model, model.get_output_embeddings()]
        texts += [inner.word_timestamp_encoder, model.word_timestamp_head]
    for module in texts or (model.get_decoder(), model.get_output_embeddings()):
        path = next((path for path, each in model.named_modules() if each is module and path), "")
        if module is None or not path:
            continue
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, _Nothing())


def _see_both_ways(model: Any) -> None:
    """Correct a class whose vision tower calls itself causal, and is so where torch's attention gets no mask."""
    if model.config.model_type == "phi4_multimodal":
        for module in model.model.embed_tokens_extend.image_embed.modules():
            if getattr(module, "is_causal", False):
                module.is_causal = False


def _unstored(model: Any) -> list[re.Pattern[str]]:
    """Patterns of the names of tensors that files may leave out; these keep their initial values."""
    return [
        re.compile(pattern)
        for module in model.modules()
        for pattern in getattr(module, "_keys_to_ignore_on_load_missing", None) or ()
    ]


def _materialise(model: Any, device: torch.device) -> None:
    """Allocate the tensors, and initialise buffers that checkpoints do not hold."""
    unstored = _unstored(model)
    kept = {name for name in model.state_dict() if not any(each.search(name) for each in unstored)}
    model.to_empty(device=device)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in kept:
            tensor._is_hf_initialized = True
    model.initialize_weights()


def _read(found: Any) -> Encoded:
    """The output of a transformers method, for one medium: rows, or a list of them."""
    if type(found).__name__ == "Granite4VisionImageFeaturesOutput":
        return _before_layers(dict(found.deepstack_features))
    behind: dict[int, torch.Tensor] = {}
    for layer, features in enumerate(getattr(found, "deepstack_features", None) or ()):
        behind[layer] = _rows(features)
    return Encoded(_rows(found.pooler_output), behind)


def _before_layers(features: Mapping[int, Any]) -> Encoded:
    """Features that are added before layers; an embedding is what comes before the first, otherwise 0."""
    behind = {layer - 1: _rows(each) for layer, each in features.items()}
    first = behind.pop(-1, None)
    return Encoded(torch.zeros_like(next(iter(behind.values()))) if first is None else first, behind)


def _rows(features: Any) -> torch.Tensor:
    parts = [features] if isinstance(features, torch.Tensor) else list(features)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _qwen2_audio(model: Any, input_features: torch.Tensor, feature_attention_mask: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of sounds padded to one window each; padding is masked."""
    from transformers.masking_utils import create_bidirectional_mask

    inner = model.model
    tower = inner.audio_tower
    steps, counts = tower._get_feat_extract_output_lengths(feature_attention_mask.sum(-1))
    seen = _first(steps, (input_features.shape[-1] - 2) // 2 + 1)
    # only its shape is used
    like = input_features.new_zeros(*seen.shape, 1)
    mask = create_bidirectional_mask(config=tower.config, inputs_embeds=like, attention_mask=seen.long())
    found = inner.multi_modal_projector(tower(input_features, attention_mask=mask).last_hidden_state)
    kept: torch.Tensor = found[_first(counts, found.shape[1])]
    return kept


def _gemma4_sounds(model: Any, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden], without the padding of sounds."""
    found = model.model.get_audio_features(input_features, input_features_mask, return_dict=True)
    kept: torch.Tensor = found.pooler_output[found.attention_mask]
    return kept


def _gemma3n_sounds(model: Any, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> torch.Tensor:
    """Encode Gemma 3n's sounds, [embeddings, hidden]; padding is replaced by the embedding of the last token."""
    inner, config = model.model, model.config
    found = inner.get_audio_features(input_features, ~input_features_mask, return_dict=True)
    last = torch.full((1, 1), config.text_config.vocab_size - 1, device=input_features.device)
    filler = inner.embed_audio(input_ids=last)
    audio = found.pooler_output.where(~found.audio_mel_mask[..., None], filler)
    left = config.audio_soft_tokens_per_image - audio.shape[1]
    return torch.cat([audio, filler.expand(len(audio), left, -1)], dim=1).flatten(0, 1)


def _gemma3n_words(model: Any, device: torch.device) -> dict[int, torch.Tensor]:
    """Embeddings of all tokens behind those of text, except the two placeholders of media, by id."""
    found: dict[int, torch.Tensor] = {}
    for embedder in (model.embed_vision, model.embed_audio):
        ids = torch.arange(embedder.vocab_offset, embedder.vocab_offset + embedder.vocab_size, device=device)
        found |= dict(zip(ids.tolist(), embedder(input_ids=ids), strict=True))
    media = model.config.image_token_id, model.config.audio_token_id
    return {token: embedding for token, embedding in found.items() if token not in media}


def _fun_asr(model: Any, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of one sound: all that the class makes, or the first ones."""
    found = _rows(model.get_audio_features(input_features, input_features_mask, return_dict=True).pooler_output)
    return found[: embeddings_of(len(found))] if getattr(model.config, TRUNCATED, False) else found


def _music_flamingo(model: Any, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of one sound's windows. The class reads in the prompt how many embeddings a sound has."""
    inner = model.model
    _, counts = inner.audio_tower._get_feat_extract_output_lengths(input_features_mask.sum(-1).long())
    tokens = torch.full((1, int(counts.sum())), model.config.audio_token_id, device=input_features.device)
    found = inner.get_audio_features(input_features, input_features_mask, input_ids=tokens, return_dict=True)
    return _rows(found.pooler_output)


def leave_out_pictures(config: Any) -> None:
    """Have transformers make a module without weights in place of this model's vision tower; affects the process."""
    from transformers import AutoModel, PreTrainedModel

    kind = type(config.vision_config)
    AutoModel.register(kind, type("Unseen", (PreTrainedModel,), {"config_class": kind}), exist_ok=True)


def _deepseek_ocr(
    model: Any,
    pixel_values: torch.Tensor,
    num_local_patches: torch.Tensor,
    patches_grid: torch.Tensor,
    pixel_values_local: torch.Tensor | None = None,
) -> torch.Tensor:
    """[embeddings, hidden] of one picture: its tiles row by row, then the whole."""
    counts, grid = num_local_patches.tolist(), patches_grid.tolist()
    return _rows(model.get_image_features(pixel_values, pixel_values_local, counts, grid).pooler_output)


def _mllama(
    model: Any, pixel_values: torch.Tensor, aspect_ratio_ids: torch.Tensor, aspect_ratio_mask: torch.Tensor
) -> torch.Tensor:
    """States [states, hidden] of one picture's tiles without those that fill it up. The class has no such method."""
    inner = model.model
    found = inner.vision_model(pixel_values, aspect_ratio_ids, aspect_ratio_mask).last_hidden_state
    states: torch.Tensor = inner.multi_modal_projector(found[0, 0])
    return states[: int(aspect_ratio_mask.sum())].flatten(0, 1)


def _chameleon(model: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    """int64 [embeddings]: the tokens of a picture."""
    return _one(model.get_image_tokens(pixel_values))


def _emu3(model: Any, pixel_values: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
    """int64 [embeddings]: the tokens of a picture, with one at the end of each row."""
    return _one(model.model.get_image_tokens(pixel_values, image_sizes))


def _apertus(model: Any, pixel_values: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
    """int64 [embeddings]: the tokens of a picture."""
    (tokens,) = model.model.get_image_tokens(pixel_values, image_sizes)
    return _one(tokens)


def _apertus_sounds(model: Any, input_values: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
    """int64 [embeddings]: the tokens of a sound."""
    (tokens,) = model.model.get_audio_tokens(input_values, padding_mask)
    return _one(tokens)


def _one(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.flatten().long()


def _fuyu(model: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of the squares of pixels of a picture, [squares, side · side · channels]."""
    made: torch.Tensor = model.model.vision_embed_tokens(pixel_values)
    return made


def _phi4(
    model: Any, image_pixel_values: torch.Tensor, image_sizes: torch.Tensor, image_attention_mask: torch.Tensor
) -> torch.Tensor:
    """[embeddings, hidden] of one picture: its tiles as one, then the whole. The class puts them in place of tokens."""
    encoder, vision = model.model.embed_tokens_extend.image_embed, model.config.vision_config
    rows, columns = (image_sizes[0] // vision.crop_size).tolist()
    kept = image_attention_mask[0, 1 : 1 + rows * columns, ::2, ::2]
    side = kept.shape[-1]
    joined = kept.view(rows, columns, side, side).transpose(1, 2).reshape(rows * side, columns * side)
    height, width = int(joined[:, 0].sum()), int(joined[0].sum())
    count = height * (width + 1) + 1 + side * (side + 1)
    tokens = torch.full((1, count), vision.image_token_id, device=kept.device)
    nothing = image_pixel_values.new_zeros(1, count, model.config.hidden_size)
    found: torch.Tensor = encoder(tokens, nothing, image_pixel_values, image_sizes, image_attention_mask)
    return found[0]


def _video_llama_3(model: Any, video_compression_mask: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of what the mask, bool [squares of all frames], keeps of a video."""
    found: torch.Tensor = _rows(model.model.get_video_features(**given, return_dict=True).pooler_output)
    return found[video_compression_mask]


def _vibevoice_sounds(model: Any, input_values: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of a sound. Without the noise that the class adds to its encoder's output, so that a prompt
    that is computed again, after a crash or for another request, is the same."""
    return _rows(model.model.get_audio_features(input_values, sample=False, return_dict=True).pooler_output)


def _first(counts: torch.Tensor, length: int) -> torch.Tensor:
    """bool [rows, length]: True for the first ``counts`` of each row."""
    return torch.arange(length, device=counts.device) < counts[:, None]


_METHODS: Final[Mapping[tuple[str, str], Callable[..., torch.Tensor]]] = {
    ("Apertus1p5ForConditionalGeneration", "audio"): _apertus_sounds,
    ("Apertus1p5ForConditionalGeneration", "image"): _apertus,
    ("ChameleonForConditionalGeneration", "image"): _chameleon,
    ("Emu3ForConditionalGeneration", "image"): _emu3,
    ("FunAsrNanoForConditionalGeneration", "audio"): _fun_asr,
    ("FuyuForCausalLM", "image"): _fuyu,
    ("Gemma3nForConditionalGeneration", "audio"): _gemma3n_sounds,
    ("Gemma4ForConditionalGeneration", "audio"): _gemma4_sounds,
    ("Gemma4UnifiedForConditionalGeneration", "audio"): _gemma4_sounds,
    ("MllamaForConditionalGeneration", "image"): _mllama,
    ("MusicFlamingoForConditionalGeneration", "audio"): _music_flamingo,
    ("Phi4MultimodalForCausalLM", "image"): _phi4,
    ("Qwen2AudioForConditionalGeneration", "audio"): _qwen2_audio,
    ("VibeVoiceAsrForConditionalGeneration", "audio"): _vibevoice_sounds,
    ("VideoLlama3ForConditionalGeneration", "video"): _video_llama_3,
    ("UnlimitedOcrForConditionalGeneration", "image"): _deepseek_ocr,
}
"""Encoder functions, by class name and modality, for classes without a method, with a method that omits a step, or with
one that takes the decoder's embeddings: embeddings, or the tokens that have them."""
