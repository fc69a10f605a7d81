"""Codecs sound as their definitions do, whole and in stretches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts import process
from stentor.engine.tts.backend import CannotSpeak, CodecDecoder, Stop, Stopped
from stentor.engine.tts.codecs import Codec, frame_order, read_codec
from stentor.engine.tts.snac import SnacDecoder
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace
from stentor.tests.engine.tts.tiny_codecs import SNAC, Noise, Snac, write_snac, write_vocos

transformers: Any = untyped_transformers
FRAMES = 23
LSB = 1
"""Samples are rounded to 16 bits, so equal ones may differ by the last."""


def loaded(folder: Path) -> tuple[Codec, CodecDecoder]:
    """Loaded as the speech process loads it."""
    codec = read_codec(folder)
    made = process.load(StartSpeech(codec.backend, (VoicePlace("voice", str(folder)),), 1, "error"))
    assert isinstance(made, CodecDecoder)
    return codec, made


def samples(pcm: bytes) -> Any:
    return np.frombuffer(pcm, "<i2").astype(np.int64)


@pytest.fixture(scope="module", params=["neucodec", "xcodec2"])
def vocos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, write_vocos(tmp_path_factory.mktemp("codec"), request.param)


def test_codes_of_neucodec_and_xcodec2_sound_as_in_transformers(vocos: tuple[str, Path]) -> None:
    kind, folder = vocos
    codec, decoder = loaded(folder)
    rate, hop = (24000, 60) if kind == "neucodec" else (16000, 40)
    assert codec == Codec(codec.backend, rate, hop, 1, 16, None)
    model = getattr(transformers, {"neucodec": "NeuCodecModel", "xcodec2": "Xcodec2Model"}[kind])
    theirs = model.from_pretrained(folder).eval()
    codes = torch.randint(0, 16, (FRAMES,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wave = theirs.decode(codes.view(1, 1, -1)).audio_values.flatten().numpy()
    wanted = np.clip(wave * 32767, -32767, 32767)
    assert np.abs(wanted).max() > 500
    made = samples(decoder.decode(codes.tolist(), 0, 0, FRAMES, Stop()))
    assert made.shape == wanted.shape == (FRAMES * hop,)
    assert np.abs(made - wanted).max() <= 2
    part = samples(decoder.decode(codes.tolist(), 0, 3, 5, Stop()))
    assert (part == made[3 * hop : 8 * hop]).all()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"noise": False, "depthwise": False},
        {"decoder_rates": [5, 3], "vq_strides": [2, 1]},
        {"decoder_rates": [4], "vq_strides": [1]},
    ],
)
def test_codes_of_snac_sound_as_torch_s_layers_make_them_and_stretches_join_to_the_whole(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    folder = write_snac(tmp_path / "snac", **changed)
    config = {**SNAC, **changed}
    codec, decoder = loaded(folder)
    assert isinstance(decoder, SnacDecoder)
    order = frame_order(config["vq_strides"])
    codes = torch.randint(0, 16, (FRAMES, len(order)), generator=torch.Generator().manual_seed(2))
    theirs = Snac(config)
    theirs.load_state_dict(load_file(folder / "model.safetensors"))
    for number, noise in enumerate(each for each in theirs.modules() if isinstance(each, Noise)):
        steps = FRAMES * config["vq_strides"][0] * int(np.prod(config["decoder_rates"][: number + 1]))
        noise.drawn = decoder._drawn(steps, number, 0)
    levels = [
        codes[:, [at for at, (its, _) in enumerate(order) if its == level]].flatten()
        for level in range(len(config["vq_strides"]))
    ]
    with torch.no_grad():
        wave = theirs(levels).numpy()
    wanted = wave * 32767
    assert np.abs(wanted).max() > 500
    whole = samples(decoder.decode(codes.flatten().tolist(), 0, 0, FRAMES, Stop()))
    assert whole.shape == wanted.shape == (FRAMES * codec.frame_samples,)
    assert np.abs(whole - wanted).max() <= 2
    assert codec.context is not None
    joined = [stretch(decoder, codes, begin, min(4, FRAMES - begin), codec.context) for begin in range(0, FRAMES, 4)]
    assert np.abs(np.concatenate(joined) - whole).max() <= LSB


def stretch(decoder: CodecDecoder, codes: torch.Tensor, begin: int, keep: int, context: int) -> Any:
    first = max(0, begin - context)
    given = codes[first : begin + keep + context].flatten().tolist()
    return samples(decoder.decode(given, first, begin - first, keep, Stop()))


def test_less_context_than_told_is_heard_at_the_cuts(tmp_path: Path) -> None:
    codec, decoder = loaded(write_snac(tmp_path / "snac"))
    assert codec.context == 3
    codes = torch.randint(0, 16, (FRAMES, codec.frame_codes), generator=torch.Generator().manual_seed(2))
    whole = samples(decoder.decode(codes.flatten().tolist(), 0, 0, FRAMES, Stop()))
    part = stretch(decoder, codes, 8, 4, 1)
    assert np.abs(part - whole[8 * codec.frame_samples : 12 * codec.frame_samples]).max() > LSB


def test_a_frame_of_orpheus_has_each_coarse_code_before_its_finer_ones() -> None:
    assert frame_order([4, 2, 1]) == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (2, 2), (2, 3)]
    assert frame_order([1]) == [(0, 0)]


def test_decoding_that_is_cancelled_stops(tmp_path: Path, vocos: tuple[str, Path]) -> None:
    for folder in (write_snac(tmp_path / "snac"), vocos[1]):
        codec, decoder = loaded(folder)
        stop = Stop()
        stop.set()
        with pytest.raises(Stopped):
            decoder.decode([0] * codec.frame_codes * 2, 0, 0, 2, stop)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "encodec"}, "expected NeuCodec or XCodec2"),
        ({**SNAC, "attn_window_size": 32}, "attn_window_size"),
        ({**SNAC, "vq_strides": [4, 3, 1]}, "each a multiple of the next"),
        ({**SNAC, "vq_strides": [4, 2]}, "down to 1"),
        ({**SNAC, "decoder_rates": "8"}, "decoder_rates"),
        ({**SNAC, "decoder_rates": [8, 2.5]}, "whole numbers"),
        ({**SNAC, "sampling_rate": None}, "sampling_rate"),
        ({"model_type": "xcodec2", "downsampling_ratios": [0]}, "downsampling_ratios"),
    ],
)
def test_a_codec_that_cannot_be_decoded_is_refused_with_the_reason(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=said):
        read_codec(tmp_path)


def test_a_folder_without_a_codec_or_with_other_weights_than_described_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_codec(tmp_path)
    folder = write_snac(tmp_path / "snac")
    (folder / "config.json").write_text(json.dumps({**SNAC, "decoder_rates": [8, 8, 4, 2, 2]}))
    with pytest.raises(CannotSpeak, match="weights that its config"):
        loaded(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CannotSpeak, match="safetensors"):
        loaded(folder)
