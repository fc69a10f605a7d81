"""NeuCodec's and XCodec2's decoders by transformers' modelling code, in float32 on the CPU.

Only the quantizer and the decoder are made: the encoders are three quarters of the weights. The decoder attends to all
frames and normalises over them, so a sentence is decoded as a whole.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stentor.protocols.ipc.speech import CodecBackend

from ..loading.errors import CheckpointError
from .backend import CannotSpeak, Stop, Stopped
from .codec_weights import CodecWeights, pcm_of

_QUANTIZER, _DECODER = "quantizer.", "acoustic_decoder."


class VocosDecoder:
    """One codec."""

    def __init__(self, backend: CodecBackend, folder: Path, threads: int) -> None:
        """Load the weights. Raises :class:`CannotSpeak`."""
        torch.set_num_threads(threads)
        try:
            config, quantizer, decoder = _classes(backend)
            described = config.from_pretrained(folder, local_files_only=True)
            described._attn_implementation = "sdpa"
            self._quantizer, self._decoder = quantizer(described), decoder(described)
            tensors = CodecWeights(folder, (_QUANTIZER, _DECODER)).tensors
            for module, prefix in ((self._quantizer, _QUANTIZER), (self._decoder, _DECODER)):
                own = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
                module.load_state_dict(own)
                module.eval()
        except CheckpointError as error:
            raise CannotSpeak(str(error)) from error
        except Exception as error:  # the library raises errors of many types for broken files
            raise CannotSpeak(f"{folder} cannot be loaded: {' '.join(str(error).split())}") from error
        self._stop = Stop()
        for module in self._decoder.modules():
            module.register_forward_pre_hook(self._look)

    def decode(self, codes: Sequence[int], first: int, skip: int, keep: int, stop: Stop) -> bytes:
        """As :meth:`.backend.CodecDecoder.decode`."""
        self._stop = stop
        with torch.inference_mode():
            latents = self._quantizer.from_codes(torch.tensor(codes).view(1, -1, 1))
            samples = self._decoder(latents).flatten()
        frame = len(samples) // len(codes)
        return pcm_of(samples[skip * frame : (skip + keep) * frame])

    def _look(self, _module: torch.nn.Module, _inputs: object) -> None:
        if self._stop.is_set:
            raise Stopped


def _classes(backend: CodecBackend) -> tuple[Any, Any, Any]:
    """Configuration, quantizer and decoder."""
    if backend == "neucodec":
        from transformers import NeuCodecConfig
        from transformers.models.neucodec import modeling_neucodec as neucodec

        return NeuCodecConfig, neucodec.NeuCodecQuantizer, neucodec.NeuCodecDecoder
    from transformers import Xcodec2Config
    from transformers.models.xcodec2 import modeling_xcodec2 as xcodec2

    return Xcodec2Config, xcodec2.Xcodec2Quantizer, xcodec2.Xcodec2Decoder
