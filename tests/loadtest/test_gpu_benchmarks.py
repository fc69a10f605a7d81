"""The benchmarks of ``make gpu-bench``, on a small model and the CPU: that they run and say what they measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from stentor import kernels as kernel_operations
from stentor.kernels.tuning import timing
from stentor.loadtest import model_speed
from stentor.loadtest.gpu.checks import benchmarks
from stentor.loadtest.kernels import command as kernels
from stentor.loadtest.kernels.cases import OPERATIONS, library_attention

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for sizes in (timing._COPY_BYTES, timing._MATMUL_SIDE):
        monkeypatch.setitem(sizes, "cpu", 128)
    return tmp_path


def test_every_operation_is_timed_and_its_figures_fit_each_other(model: Path) -> None:
    files = ["--save", str(model / "out.json")]
    arguments = ["2q1kv20_q5kv9", "--model", str(model), "--block-size", "16", "--seconds", "0", "--device", "cpu"]
    assert kernels.main([*arguments, *files]) == 0
    content = json.loads((model / "out.json").read_text())
    results = content["results"]
    assert {result["operation"] for result in results} == set(OPERATIONS)
    assert content["ceilings"]["bytes_per_second"] > 0
    for result in results:
        assert result["low"] <= result["microseconds"] <= result["high"]
        seconds = result["microseconds"] / 1e6
        of_memory = 1e9 * result["gigabytes"] / content["ceilings"]["bytes_per_second"] / seconds
        of_products = 1e9 * result["gigaflops"] / content["ceilings"]["flops_per_second"] / seconds
        assert result["share"] == pytest.approx(max(of_memory, of_products))
    attention = next(result for result in results if result["operation"] == "attention")
    pairs, heads, dim = 2 * 20 + 5 * 4 + 15, 4, 64
    assert attention["gigaflops"] == pytest.approx(4 * pairs * heads * dim / 1e9)


def test_a_librarys_attention_of_a_whole_prompt_is_what_ours_is_compared_with() -> None:
    q, k, v = (torch.randn(9, heads, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    starts = torch.tensor([0, 9], dtype=torch.int32)
    ours = kernel_operations.varlen_attention(q, k, v, starts, starts, 9, 9, scale=0.3, causal=True)
    found = library_attention(q, k, v, 0.3, SDPBackend.MATH)
    torch.testing.assert_close(found[0].transpose(0, 1), ours)


@pytest.mark.parametrize("arguments", [["8x"], ["q1", "--model", "/nowhere"]])
def test_what_cannot_be_timed_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main([*arguments, "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="times the GPU there")
def test_the_steps_of_a_model_are_timed(model: Path) -> None:
    shapes = ["--decode", "1", "--decode", "3", "--prefill", "40"]
    sizes = ["--steps", "8", "--block-size", "16", "--kv-cache-memory", str(1 << 22)]
    assert model_speed.main([str(model), *shapes, *sizes, "--save", str(model / "out.json")]) == 0
    figures = json.loads((model / "out.json").read_text())["figures"]
    assert [figure["work"] for figure in figures] == ["decode of 1", "decode of 3", "prefill of 40"]
    for figure, tokens in zip(figures, (1, 3, 40), strict=True):
        assert figure["tokens_per_second"] == pytest.approx(1e3 * tokens / figure["milliseconds"])


def test_the_benchmarks_of_a_gpu_name_commands_that_take_their_arguments(tmp_path: Path) -> None:
    saved = set()
    for check in benchmarks(tmp_path):
        _, command, *arguments = check.command
        parser = {"kernels": kernels._parser, "model": model_speed._parser}[command]()
        parsed = parser.parse_args(arguments)
        assert (parsed.model / "config.json").is_file()
        assert parsed.rows == tmp_path / "rows.jsonl"
        saved.add(parsed.save)
    assert len(saved) == len(benchmarks(tmp_path))
