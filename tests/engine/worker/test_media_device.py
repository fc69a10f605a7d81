"""Rows with pictures on a device that runs a step ahead, a fake one, beside the host."""

from pathlib import Path

import pytest
import torch

from stentor.engine.worker.setup.setup import set_up_on
from stentor.kernels import force_variant
from stentor.protocols.ipc.cache_groups import CacheGroup, group_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.parity.pictures import Kind, Prompt, prompt_of
from stentor.tests.parity.seeing import KINDS, MAKERS
from stentor.tests.support.vision_models import FAMILIES

pytestmark = pytest.mark.usefixtures("one_thread")

MIB = 1 << 20


def _prompts(kind: Kind) -> list[Prompt]:
    pictures = [kind.draw(torch.Generator().manual_seed(number), number % 2) for number in range(3)]
    return [
        *(prompt_of(kind, [40 + number], picture, [50, 51], pictures[0]) for number, picture in enumerate(pictures)),
        prompt_of(kind, [*range(60, 80)]),
    ]


def _answers(engine: LocalEngine, prompts: list[Prompt]) -> list[list[int]]:
    params = SamplingParams(max_tokens=12, temperature=0.0)
    rids = [engine.submit(prompt.tokens, params, media=prompt.media) for prompt in prompts]
    engine.run(check=True)
    return [engine.outcomes[rid, 0].tokens for rid in rids]


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "paligemma2", "qwen3_5", "mllama"])
def test_a_device_answers_as_the_host_and_decodes_in_graphs(name: str, tmp_path: Path) -> None:
    {**FAMILIES, **MAKERS}[name](tmp_path)
    prompts = _prompts(KINDS[name])
    config = model_config(tmp_path, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=48)
    with force_variant("reference"):
        expected = _answers(LocalEngine(config), prompts)
        device = FakeDevice()
        setup = set_up_on(config, lambda *_: None, device)
        assert setup.ahead is not None
        while setup.ahead.advance(busy=False) is not None:
            pass
        assert _answers(LocalEngine(config, setup), prompts) == expected
    if name != "mllama":  # where rows attend to pictures, a step is no graph
        assert any(graph.replays for graph in device.graphs)


def test_a_device_leaves_memory_for_encoding_and_for_what_is_encoded(tmp_path: Path) -> None:
    FAMILIES["qwen3_vl"](tmp_path)
    config = model_config(tmp_path, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, kv_cache_memory=None)
    device = FakeDevice(total=1024 * MIB, allocated=64 * MIB)
    with force_variant("reference"):
        ready = set_up_on(config, lambda *_: None, device).ready
    lines = {line.what: line.bytes for line in ready.memory}
    embeddings = 4 * 64
    assert group_of(ready.groups, "cross") == CacheGroup("cross", capacity=embeddings)
    assert lines["encoded media"] == embeddings * 64 * 4 * 3, "features behind two layers beside each"
    assert lines["encoding"] == 1024 * MIB // 20
    assert lines["free"] >= 0.1 * 1024 * MIB - MIB
