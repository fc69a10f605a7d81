"""Tiny random checkpoints of models that see, whole as the published ones are: weights, tokenizer with the special
tokens of their pictures, processor and chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers as untyped_transformers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from stentor.server.text.tokenizers.pieces import byte_alphabet

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

VOCAB: Final = 320
PAD: Final = "<pad>"
BOS: Final = "<s>"
EOS: Final = "</s>"
SPECIAL: Final = (
    *(PAD, BOS, EOS, "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<image>", "<video>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"),
    *("<img>", "</img>", "<IMG_CONTEXT>"),
)
"""In the order of their ids, behind the 256 bytes."""
PATCH: Final = 4
"""Pixels on each side."""
SIDE: Final = 16
"""Pixels on each side of the square that towers of one size see."""

Maker = Callable[[Path], Any]


def token(text: str) -> int:
    """The id of a special token."""
    return 256 + SPECIAL.index(text)


CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}IMAGE"
    "{% elif content['type'] == 'video' or 'video' in content %}VIDEO"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN: Final = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>").replace(
    "VIDEO", "<|vision_start|><|video_pad|><|vision_end|>"
)
INTERN: Final = CHATML.replace("IMAGE", "<IMG_CONTEXT>\n").replace("VIDEO", "<video>\n")
IDEFICS: Final = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
LLAVA: Final = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
ONEVISION: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\n' + content['text'] }}{% endfor %}{{ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for item in message['content'] %}{% if item['type'] == 'image' %}<start_of_image>"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST]"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for block in message['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
    "{% elif block['type'] in ['image', 'image_url'] %}[IMG]{% endif %}{% endfor %}{% endif %}[/INST]"
    "{% elif message['role'] == 'assistant' %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for block in message['content'] %}{{ block['text'] }}{% endfor %}{% endif %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)

SIZES: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT: Final[Mapping[str, Any]] = {
    **SIZES,
    "vocab_size": VOCAB,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": token(BOS),
    "eos_token_id": token(EOS),
    "pad_token_id": token(PAD),
}
_SQUARE: Final = {"height": SIDE, "width": SIDE}


def qwen2_5_vl(folder: Path) -> Any:
    vision = {
        **{"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
        **{"patch_size": PATCH, "window_size": 4 * PATCH, "fullatt_block_indexes": [1]},
    }
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_qwen_tokens())
    write_processor(folder, "Qwen2_5_VLProcessor", _qwen_images(), QWEN)
    _write_videos(folder)
    return _write_model(folder, config)


def qwen3_vl(folder: Path) -> Any:
    vision = {
        **{"depth": 3, "hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "num_heads": 4},
        **{"patch_size": PATCH, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **_qwen_tokens())
    write_processor(folder, "Qwen3VLProcessor", _qwen_images(), QWEN)
    _write_videos(folder)
    return _write_model(folder, config)


def _qwen_tokens() -> dict[str, int]:
    return {
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
    }


def _write_videos(folder: Path) -> None:
    size = {"shortest_edge": 4 * 64, "longest_edge": 64 * 64}
    _change(folder / "video_preprocessor_config.json", size=size, fps=2, min_frames=2, max_frames=8)


def _qwen_images() -> Any:
    size = {"shortest_edge": 4 * 64, "longest_edge": 64 * 64}
    return transformers.Qwen2VLImageProcessorPil(patch_size=PATCH, temporal_patch_size=2, merge_size=2, size=size)


def idefics3(folder: Path) -> Any:
    return _idefics(folder, transformers.Idefics3Config, transformers.Idefics3ImageProcessorPil, "Idefics3Processor")


def smolvlm(folder: Path) -> Any:
    return _idefics(folder, transformers.SmolVLMConfig, transformers.SmolVLMImageProcessorPil, "SmolVLMProcessor")


def _idefics(folder: Path, config_class: Any, image_processor_class: Any, processor: str) -> Any:
    vision = {**SIZES, "image_size": SIDE, "patch_size": PATCH}
    config = config_class(
        text_config={**TEXT, "model_type": "llama"},
        vision_config=vision,
        image_token_id=token("<image>"),
        scale_factor=2,
        pad_token_id=token(PAD),
    )
    images = image_processor_class(size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE})
    write_processor(folder, processor, images, IDEFICS, image_seq_len=4)
    return _write_model(folder, config)


def llava(folder: Path) -> Any:
    vision = {"model_type": "clip_vision_model", **SIZES, "num_hidden_layers": 3, "projection_dim": 32}
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={**vision, "image_size": SIDE, "patch_size": PATCH},
        image_token_index=token("<image>"),
        image_seq_length=16,
    )
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    settings: dict[str, Any] = {
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    write_processor(folder, "LlavaProcessor", images, LLAVA, bos=True, **settings)
    return _write_model(folder, config)


def llava_onevision(folder: Path) -> Any:
    pinpoints = [[rows * SIDE, columns * SIDE] for rows in (1, 2) for columns in (1, 2, 3)]
    config = transformers.LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={"model_type": "siglip_vision_model", **SIZES, **_tower(), "vision_use_head": False},
        image_token_index=token("<image>"),
        video_token_index=token("<video>"),
        image_grid_pinpoints=pinpoints,
    )
    images = transformers.LlavaOnevisionImageProcessorPil(size=_SQUARE, image_grid_pinpoints=pinpoints)
    settings: dict[str, Any] = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    write_processor(folder, "LlavaOnevisionProcessor", images, ONEVISION, **settings)
    return _write_model(folder, config)


def gemma3(folder: Path) -> Any:
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 32}
    config = transformers.Gemma3Config(
        text_config={**text, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        vision_config={**SIZES, **_tower(), "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
    )
    images = transformers.Gemma3ImageProcessorPil(size=_SQUARE)
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    write_processor(folder, "Gemma3Processor", images, GEMMA, names=names, bos=True, image_seq_length=4)
    return _write_model(folder, config)


def pixtral(folder: Path) -> Any:
    config = transformers.LlavaConfig(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 16, "sliding_window": None},
        vision_config={"model_type": "pixtral", **SIZES, **_tower(2 * SIDE)},
        image_token_index=token("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    write_processor(folder, "PixtralProcessor", _pixtral_images(), MISTRAL, bos=True, patch_size=PATCH)
    return _write_model(folder, config)


def mistral3(folder: Path) -> Any:
    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 16, "sliding_window": None},
        vision_config={"model_type": "pixtral", **SIZES, **_tower(2 * SIDE)},
        image_token_index=token("[IMG]"),
        spatial_merge_size=2,
    )
    settings: dict[str, Any] = {"patch_size": PATCH, "spatial_merge_size": 2}
    write_processor(folder, "PixtralProcessor", _pixtral_images(), MISTRAL, bos=True, **settings)
    return _write_model(folder, config)


def _pixtral_images() -> Any:
    return transformers.PixtralImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, patch_size={"height": PATCH, "width": PATCH}
    )


def internvl(folder: Path) -> Any:
    vision = {**SIZES, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH], "attention_bias": True}
    config = transformers.InternVLConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config=vision,
        image_token_id=token("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    images = transformers.GotOcr2ImageProcessorPil(size=_SQUARE, crop_to_patches=True, max_patches=6)
    names = {
        **{"start_image_token": "<img>", "end_image_token": "</img>"},
        **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
    }
    write_processor(folder, "InternVLProcessor", images, INTERN, names=names, image_seq_length=4)
    return _write_model(folder, config)


def _tower(side: int = SIDE) -> dict[str, int]:
    return {"image_size": side, "patch_size": PATCH}


FAMILIES: Final[Mapping[str, Maker]] = {
    maker.__name__: maker
    for maker in (
        *(qwen2_5_vl, qwen3_vl, idefics3, smolvlm, llava, llava_onevision, gemma3, pixtral, mistral3, internvl),
    )
}
"""By name. Each saves a checkpoint into a folder and returns transformers' model in float32."""


def _write_model(folder: Path, config: Any) -> Any:
    model = randomised(config.model_type, lambda: transformers.AutoModelForImageTextToText.from_config(config))
    model.save_pretrained(folder)
    return model


def randomised(name: str, make: Callable[[], Any]) -> Any:
    """A model in float32, with the random values of its ``name``."""
    torch.manual_seed(sum(map(ord, name)))
    model = make().float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            of_norm = "norm" in parameter_name and parameter_name.endswith("weight")
            if of_norm or parameter_name.endswith("norm.scale"):
                parameter.add_(torch.empty_like(parameter).uniform_(-0.4, 0.4))
            else:
                parameter.normal_(0, 0.15)  # at transformers' 0.02 every logit is nearly equal
    return model


def write_processor(
    folder: Path,
    processor: str,
    images: Any,
    template: str,
    *,
    names: Mapping[str, str] | None = None,
    bos: bool = False,
    special: Sequence[str] = SPECIAL,
    **settings: Any,
) -> None:
    """``names``: of the tokenizer's special tokens, of which ``special`` are all; ``bos``: whether it begins texts with
    one."""
    images.save_pretrained(folder)
    _change(folder / "preprocessor_config.json", processor_class=processor)
    _change(folder / "processor_config.json", processor_class=processor, **settings)
    write_tokenizer(folder, template, names=names, bos=bos, special=special, processor_class=processor)


def write_tokenizer(
    folder: Path,
    template: str,
    *,
    names: Mapping[str, str] | None = None,
    bos: bool = False,
    special: Sequence[str] = SPECIAL,
    **settings: Any,
) -> None:
    """Writes the tokenizer and the template; arguments as in :func:`write_processor`."""
    (folder / "chat_template.jinja").write_text(template)
    _tokenizer(special, bos).save(str(folder / "tokenizer.json"))
    _change(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        **settings,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=dict(names or {}),
        clean_up_tokenization_spaces=False,
    )


def _change(file: Path, **fields: object) -> None:
    there = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**there, **fields}, indent=2))


def _tokenizer(special: Sequence[str], bos: bool) -> Backend:
    """Bytes, whose ids are their values, and special tokens."""
    backend = Backend(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    if bos:
        backend.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, token(BOS))])
    return backend


def qwen2_vl(folder: Path) -> Any:
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": PATCH}
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **_qwen_tokens())
    write_processor(folder, "Qwen2VLProcessor", _qwen_images(), QWEN)
    _write_videos(folder)
    return _write_model(folder, config)
