"""Tiny random Parakeets of transformers' own making, whose transcripts differ from position to position."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from stentor.tests.parity.test_whisper import sound
from stentor.tests.parity.transcribers import CONFORMER, enlarged, transformers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ("<unk>", *LETTERS, *(f"▁{letter}" for letter in LETTERS), ".", "?", ",", "▁", "<pad>", "<blank>")
"""The last is the blank."""
BLANK = len(PIECES) - 1


def tiny_ctc(encoder: Mapping[str, Any] | None = None) -> Any:
    """transformers' model in float32; ``encoder``: changes of its encoder."""
    torch.manual_seed(8)  # with it no position of the tests' sounds has two tokens that are nearly as likely
    config = transformers.ParakeetCTCConfig(
        encoder_config=_encoder(encoder), vocab_size=len(PIECES), pad_token_id=BLANK, attn_implementation="eager"
    )
    model = enlarged(transformers.ParakeetForCTC(config).float().eval())
    with torch.no_grad():
        _spread(model, model.ctc_head)
        model.ctc_head.bias[BLANK] += 1.5
    return model


def tiny_rnnt(encoder: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    return _transducer(transformers.ParakeetRNNTConfig, transformers.ParakeetForRNNT, _encoder(encoder), changes, 14.0)


def tiny_nemotron(encoder: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """A position of it sees little of its window: chunks of three, and one chunk before its own."""
    kinds = transformers.NemotronAsrStreamingConfig, transformers.NemotronAsrStreamingForRNNT
    return _transducer(*kinds, _causal(encoder), changes, 14.0)


def tiny_nemotron_3_5(encoder: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """It is told one of eight languages, and detects it by the last number."""
    prompts = {"num_prompts": 8, "prompt_intermediate_size": 40, "default_prompt_id": 7}
    kinds = transformers.Nemotron3_5AsrConfig, transformers.Nemotron3_5AsrForRNNT
    return _transducer(*kinds, _causal(encoder), {**prompts, **changes}, 14.0)


def tiny_tdt(encoder: Mapping[str, Any] | None = None, none: float = -60.0, **changes: Any) -> Any:
    """``none``: bias of the duration of no position."""
    return _transducer(
        transformers.ParakeetTDTConfig, transformers.ParakeetForTDT, _encoder(encoder), changes, 8.0, none
    )


def _encoder(changes: Mapping[str, Any] | None) -> Any:
    return transformers.ParakeetEncoderConfig(**{**CONFORMER, **(changes or {})}, attn_implementation="eager")


def _causal(changes: Mapping[str, Any] | None) -> Any:
    sizes = {**CONFORMER, "sliding_window": 6, "default_num_lookahead_tokens": 2, **(changes or {})}
    return transformers.NemotronAsrStreamingEncoderConfig(**sizes, attn_implementation="eager")


def _transducer(
    config: Any,
    kind: Any,
    encoder: Any,
    changes: Mapping[str, Any],
    blank: float,
    none: float = 0.0,
) -> Any:
    """``blank``: bias of the blank."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(PIECES),
        "blank_token_id": BLANK,
        "pad_token_id": BLANK - 1,
        "decoder_hidden_size": 32,
    }
    sizes["max_symbols_per_step"] = 3
    model = enlarged(kind(config(encoder_config=encoder, **{**sizes, **changes})).float().eval())
    with torch.no_grad():
        _spread(model, model.encoder_projector)
        model.decoder.embedding.weight.normal_(0, 2.0)
        head = model.joint.head
        head.weight.normal_(0, 1.0)
        head.weight.sub_(head.weight.mean(1, keepdim=True))  # joined values are positive: one token would win
        head.bias.zero_()
        head.bias[BLANK] = blank
        # lower than any token, because transformers draws among durations too; that of none is rarer
        head.weight[len(PIECES) :] *= 0.2
        head.bias[len(PIECES) :] = -40
        head.bias[len(PIECES) : len(PIECES) + 1] = none
    return model


def _spread(model: Any, head: Any) -> None:
    """Gives outputs of ``head`` a mean of 0 and a deviation of 2: positions of a random encoder are much alike."""
    encoded = model.encoder(**features(model, sound(5.0, 0))).last_hidden_state[0]
    if hasattr(model, "prompt_projector"):
        told = torch.eye(model.config.num_prompts)[model.config.default_prompt_id].expand(len(encoded), -1)
        encoded = model.prompt_projector(torch.cat([encoded, told], dim=1))
    encoded = encoded[len(encoded) // 3 :]  # the first ones are unlike the rest, where silence is not near 0
    head.weight.normal_(0, 1.0)
    head.bias.zero_()
    made = encoded @ head.weight.view(len(head.bias), -1).T
    factor = 2 / made.std(0).mean()
    head.weight.mul_(factor)
    head.bias.copy_(made.mean(0) * -factor)


def features(model: Any, pcm: bytes) -> dict[str, torch.Tensor]:
    """The features of the model's own processor, of audio filled with silence to a tenth of a second."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    causal = "nemotron" in model.config.model_type
    kind = transformers.NemotronAsrStreamingFeatureExtractor if causal else transformers.ParakeetFeatureExtractor
    extract = kind(feature_size=model.config.encoder_config.num_mel_bins)
    found = extract(np.pad(samples, (0, max(0, 1600 - len(samples)))), sampling_rate=16_000, return_tensors="pt")
    return {name: found[name] for name in ("input_features", "attention_mask")}


def write_framewise(folder: Path, make: Callable[..., Any] = tiny_tdt, **changes: Any) -> Path:
    """A folder with a model and a tokenizer of letters, some of which begin a word."""
    make(**changes).save_pretrained(folder)
    backend = Backend(BPE({piece: id for id, piece in enumerate(PIECES)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = Metaspace()
    backend.decoder = decoders.Metaspace()
    marks = ("<unk>", "<pad>", "<blank>")
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in marks])
    backend.save(str(folder / "tokenizer.json"))
    return folder
