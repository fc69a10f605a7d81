"""What tiny models that hear bring besides their weights: tokenizers, processors and chat templates."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.server.text.tokenizers.pieces import byte_alphabet

transformers: Any = untyped_transformers

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}AUDIO{% elif content['type'] == 'image' %}IMAGE"
    "{% elif content['type'] == 'video' %}VIDEO"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHATML_TOKENS: Final = ("<pad>", "</s>", "<|im_start|>", "<|im_end|>")
_TEKKEN_NAMES: Final = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
_WORDS: Final = (b"la", b"lan", b"lang", b":e", b":en", b" a", b"xa", b"ax", b"xax", b" the")


def qwen3_asr(folder: Path, *more: str) -> None:
    """``more``: further special tokens."""
    special = (*_CHATML_TOKENS, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", *more)
    named = {"audio_bos_token": special[4], "audio_eos_token": special[5], "audio_token": special[6]}
    template = CHATML.replace("AUDIO", "<|audio_start|><|audio_pad|><|audio_end|>")
    write_tokenizer(folder, special, template, named, plain=("<asr_text>",))
    write_extractor(folder, "Qwen3ASRProcessor", transformers.Qwen3ASRFeatureExtractor(feature_size=8))


def voxtral(folder: Path) -> None:
    """Its tokenizer is Mistral's file, and it has no chat template."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    write_extractor(folder, "VoxtralProcessor", extractor)
    names = dict(enumerate(_TEKKEN_NAMES.split())) | {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}
    words = [bytes([byte]) for byte in range(256)] + list(_WORDS)
    file = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
            "num_vocab_tokens": len(words),
            "default_vocab_size": 40 + len(words),
            "default_num_special_tokens": 40,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for rank, word in enumerate(words)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": names.get(rank, f"<SPECIAL_{rank}>"), "is_control": True} for rank in range(40)
        ],
        "audio": {
            "sampling_rate": 16000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 8, "hop_length": 160, "window_size": 400},
            "chunk_length_s": 30.0,
        },
    }
    (folder / "tekken.json").write_text(json.dumps(file))


def qwen2_audio(folder: Path) -> None:
    special = (*_CHATML_TOKENS, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    template = CHATML.replace("AUDIO", "<|audio_bos|><|AUDIO|><|audio_eos|>\n")
    write_tokenizer(folder, special, template)
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=4)
    write_extractor(folder, "Qwen2AudioProcessor", extractor)


def write_tokenizer(
    folder: Path,
    special: Sequence[str],
    template: str,
    named: Mapping[str, str] | None = None,
    plain: Sequence[str] = (),
    first: Sequence[str] = (),
) -> None:
    """Special tokens that are the ``first``; bytes, whose ids are their values behind these; special tokens, of which
    some have names; and others that are told."""
    pieces = {text: id for id, text in enumerate(first)}
    backend = Backend(BPE({**pieces, **{text: len(first) + byte for byte, text in byte_alphabet().items()}}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    named_pieces = (*first, *special)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in named_pieces])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
    }
    config |= {"extra_special_tokens": dict(named or {}), "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)


def write_extractor(folder: Path, processor: str, extractor: Any, **settings: object) -> None:
    extractor.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": processor, **settings}))


def audio_flamingo(folder: Path) -> None:
    write_tokenizer(folder, (*_CHATML_TOKENS, "<sound>"), CHATML.replace("AUDIO", "<sound>"))
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=4)
    write_extractor(folder, "AudioFlamingo3Processor", extractor)


def music_flamingo(folder: Path) -> None:
    special = (*_CHATML_TOKENS, "<sound>", "<|sound_bos|>", "<|sound_eos|>")
    write_tokenizer(folder, special, CHATML.replace("AUDIO", "<sound>"))
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=4)
    write_extractor(folder, "MusicFlamingoProcessor", extractor)


def glm_asr(folder: Path) -> None:
    special = (*_CHATML_TOKENS, "<|begin_of_audio|>", "<|pad|>", "<|end_of_audio|>")
    write_tokenizer(folder, special, CHATML.replace("AUDIO", "<|begin_of_audio|><|pad|><|end_of_audio|>"))
    write_extractor(folder, "GlmAsrProcessor", transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=4))


def fun_asr_nano(folder: Path) -> None:
    """Without transformers' feature extractor, which needs torchaudio."""
    special = (*_CHATML_TOKENS, "<|object_ref_start|>")
    write_tokenizer(folder, special, CHATML.replace("AUDIO", special[-1]))
    files = {
        "processor_config.json": {"processor_class": "FunAsrNanoProcessor"},
        "preprocessor_config.json": {
            **{"feature_extractor_type": "FunAsrNanoFeatureExtractor", "feature_size": 8, "window": "hamming"},
            **{"num_frames_lfr": 5, "stride_lfr": 4},
        },
        "config.json": {"model_type": "fun_asr_nano", "audio_token_id": 260},
    }
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields))


def funasr(folder: Path) -> None:
    """Fun-ASR-Nano's files for vLLM."""
    special = (*_CHATML_TOKENS, "<|AUDIO|>")
    write_tokenizer(folder, special, CHATML.replace("AUDIO", special[-1]))
    front = {"fs": 16_000, "window": "hamming", "n_mels": 80, "frame_length": 25, "frame_shift": 10, "lfr_m": 7}
    extractor = {"frontend_conf": {**front, "lfr_n": 6, "cmvn_file": None}, "processor_class": "FunASRProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    config = {"architectures": ["FunASRForConditionalGeneration"], "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(config))


def moss(folder: Path) -> None:
    special = (*_CHATML_TOKENS, "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
    write_tokenizer(folder, special, CHATML.replace("AUDIO", "<|audio_start|><|audio_pad|><|audio_end|>"))
    extractor = transformers.MossTranscribeDiarizeFeatureExtractor(feature_size=8, chunk_length=4)
    write_extractor(folder, "MossTranscribeDiarizeProcessor", extractor)


def vibevoice(folder: Path) -> None:
    special = (*_CHATML_TOKENS, "<|object_ref_start|>", "<|box_start|>", "<|object_ref_end|>")
    template = CHATML.replace("AUDIO", "<|object_ref_start|><|box_start|><|object_ref_end|>\n")
    write_tokenizer(folder, special, template)
    extractor = transformers.VibeVoiceAcousticTokenizerFeatureExtractor()
    write_extractor(folder, "VibeVoiceAsrProcessor", extractor, audio_token="<|box_start|>")


def gemma3n(folder: Path) -> None:
    """One file describes audio and images, as published."""
    special = ("<audio_soft_token>", "<start_of_audio>", "<end_of_audio>")
    images = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")
    named = dict(zip(("audio_token", "boa_token", "eoa_token"), special, strict=True))
    named |= dict(zip(("image_token", "boi_token", "eoi_token"), images, strict=True))
    template = CHATML.replace("AUDIO", special[0]).replace("IMAGE", images[0])
    write_tokenizer(folder, (*_CHATML_TOKENS, *special, *images), template, named)
    parts = transformers.Gemma3nAudioFeatureExtractor(), transformers.SiglipImageProcessorPil()
    heard, seen = (json.loads(part.to_json_string()) for part in parts)
    said = {**heard, **seen, "return_attention_mask": False}
    (folder / "preprocessor_config.json").write_text(json.dumps({**said, "processor_class": "Gemma3nProcessor"}))
    settings = {"processor_class": "Gemma3nProcessor", "audio_seq_length": 188, "image_seq_length": 256}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3n", "audio_config": {}}))


def granite_speech(folder: Path) -> None:
    """Without transformers' feature extractor, which needs torchaudio."""
    write_tokenizer(folder, (*_CHATML_TOKENS, "<|audio|>"), CHATML.replace("AUDIO", "<|audio|>"))
    mel = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 8, "sample_rate": 16_000}
    files = {
        "processor_config.json": {"processor_class": "GraniteSpeechProcessor", "audio_token": "<|audio|>"},
        "preprocessor_config.json": {
            **{"feature_extractor_type": "GraniteSpeechFeatureExtractor", "melspec_kwargs": mel},
            **{"projector_window_size": 6, "projector_downsample_rate": 3},
        },
    }
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields))


def qwen3_omni(folder: Path) -> None:
    """Also of pictures and videos."""
    named = {
        **{"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>"},
        **{"audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"},
        **{"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
    }
    template = CHATML.replace("AUDIO", "<|audio_start|><|audio_pad|><|audio_end|>")
    for kind in ("image", "video"):
        template = template.replace(kind.upper(), f"<|vision_start|><|{kind}_pad|><|vision_end|>")
    write_tokenizer(folder, (*_CHATML_TOKENS, *named.values()), template, named)
    size = {"shortest_edge": 4 * 64, "longest_edge": 64 * 64}
    images = transformers.Qwen2VLImageProcessorPil(patch_size=4, temporal_patch_size=2, merge_size=2, size=size)
    images.save_pretrained(folder)
    seen = json.loads((folder / "preprocessor_config.json").read_text())
    write_extractor(folder, "Qwen3OmniMoeProcessor", transformers.WhisperFeatureExtractor(feature_size=8))
    heard = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**heard, **seen}))
    videos = {"size": size, "fps": 2, "min_frames": 2, "max_frames": 8}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))
    (folder / "config.json").write_text(json.dumps({"thinker_config": {"position_id_per_seconds": 13}}))


def omniasr(folder: Path) -> None:
    """With tokens of three languages, and that of none."""
    names = ("auto", "eng_latn", "deu_latn", "zza_latn")
    special = (*_CHATML_TOKENS, "<extra_id_0>", "<extra_id_1>", "<s>", *(f"<|lang:{name}|>" for name in names))
    write_tokenizer(folder, special, "")
    convolutions = {"conv_dim": [16, 16], "conv_kernel": [40, 10], "conv_stride": [20, 16]}
    config = {"model_type": "omniasr", "audio_token_id": 261, "audio_config": convolutions}
    (folder / "config.json").write_text(json.dumps(config))
    write_extractor(folder, "OmniASRProcessor", transformers.OmniASRFeatureExtractor())


def nemotron_transcribe(folder: Path) -> None:
    """The token of sounds is behind the text model's vocabulary; a template thinks unless it is told not to."""
    template = CHATML.replace("AUDIO", "<|audio|>").replace(
        "<|im_start|>assistant\n{% endif %}",
        "<|im_start|>assistant\n{{ '<think>' if enable_thinking | default(true) }}{% endif %}",
    )
    write_tokenizer(folder, (*_CHATML_TOKENS, "<|audio|>"), template, first=("<unk>",))
    encoder = {"num_mel_bins": 8}
    config = {"model_type": "nemo_speechlm", "audio_token_id": 261, "audio_config": {"asr_config": encoder}}
    config["text_config"] = {"vocab_size": 261}
    (folder / "config.json").write_text(json.dumps(config))
    extractor = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=8, mel_filters_dtype="bfloat16")
    write_extractor(folder, "Nemotron3_5TranscribeProcessor", extractor)
