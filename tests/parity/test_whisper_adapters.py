"""Transcripts with adapters are those of merged weights, in encoder and decoder, in any batch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as untyped_transformers

from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.tiny_whisper import SOT, window, write_whisper
from stentor.tests.parity.tiny_adapters import merged, save_adapter

transformers: Any = untyped_transformers

TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
COUNT = 8


def features(pcm: bytes) -> torch.Tensor:
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    return torch.as_tensor(extractor(samples, sampling_rate=16000, return_tensors="pt").input_features)


def test_one_recording_is_heard_with_each_adapter_as_merged_weights_hear_it_also_after_a_crash(tmp_path: Path) -> None:
    model = transformers.WhisperForConditionalGeneration.from_pretrained(write_whisper(tmp_path)).float().eval()
    models, refs = {0: model}, {}
    for number, targets in ((1, TARGETS), (2, ("v_proj", "fc1"))):
        folder = tmp_path / str(number)
        models[number] = merged(model, save_adapter(model, folder, number, targets=targets, rank=2, size=0.4))
        refs[number] = AdapterRef(number, str(number), str(folder))
    engine = LocalEngine(model_config(tmp_path, enable_lora=True, max_loras=2, max_lora_rank=2, max_num_seqs=4))
    params, sound = SamplingParams(max_tokens=COUNT, temperature=0.0), window(3, rules=None)
    asked = {engine.submit([SOT, 63], params, audio=sound, adapter=refs.get(number)): number for number in models}
    deaths = iter([False] * 4 + [True])
    engine.run(check=True, dies=lambda: next(deaths, False))
    assert engine.deaths == 1
    heard = set()
    for rid, number in asked.items():
        tokens = engine.outcomes[rid, 0].tokens
        assert len(tokens) == COUNT
        row = torch.tensor([[SOT, 63, *tokens]])
        with torch.inference_mode():
            logits = models[number](features(sound.pcm), decoder_input_ids=row).logits[0, 1:-1]
        behind = logits.max(dim=1).values - logits.gather(1, row[0, 2:, None])[:, 0]
        assert float(behind.max()) < 1e-3, "each token is one that merged weights would draw"
        heard.add(tuple(tokens))
    assert len(heard) == len(models), "adapters that change nothing would hide a mistake"
