"""Pictures and sounds of Apertus 1.5. Run in the child."""

from typing import Any

import numpy as np
import soxr
import transformers as untyped_transformers

transformers: Any = untyped_transformers


class ApertusProcessor(getattr(transformers, "Apertus1p5Processor", object)):  # type: ignore[misc]  # 5.17 has none
    """transformers', for sounds of any rate."""

    def _process_audio(self, audio: Any, sampling_rate: int, **arguments: Any) -> Any:
        rate = self.feature_extractor.sampling_rate
        waves = [soxr.resample(np.asarray(samples, np.float32), sampling_rate, rate) for samples in audio]
        return super()._process_audio(waves, sampling_rate=rate, **arguments)
