"""The templates that models are published with, where ``make peers`` has fetched llama.cpp's collection of them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stentor.server.parsing.interface import Content, Parser, Thought
from stentor.server.parsing.output import OutputFormat, settle_output
from stentor.server.text.errors import TemplateError
from stentor.server.text.templates.chat_template import ChatTemplate
from stentor.tests.server.parsing.pieces import check_every_split, of_kind

FOLDERS = sorted((Path.home() / ".cache/stentor/peers/llama.cpp").glob("source-*/llama.cpp/models/templates"))
EXPECTED = {
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "qwen3",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere_command4",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command3",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm45",
    "HuggingFaceTB-SmolLM3-3B": "qwen3",
    "Kimi-K2-Instruct": None,
    "Kimi-K2-Thinking": "kimi_k2",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_v3",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": None,
    "Qwen-QwQ-32B": "qwen3",
    "Qwen-Qwen2.5-7B-Instruct": None,
    "Qwen-Qwen3-0.6B": "qwen3",
    "Qwen3-Coder": None,
    "Qwen3.5-4B": "qwen3",
    "StepFun3.5-Flash": "qwen3",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v3",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite_3_3",
    "ibm-granite-granite-4.0": None,
    "meta-llama-Llama-3.1-8B-Instruct": None,
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": None,
    "openai-gpt-oss-120b": "gpt_oss",
    "tencent-Hy3": "hy_v3_opensource",
}
"""Of each template the format that it says its model reasons in."""
SPECIAL = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
USER = [{"role": "user", "content": "Why?"}]
THOUGHT, ANSWER = "Let me\n\nsee: é.", "Because 😀."
FIELDS = ("reasoning_content", "thinking", "reasoning")

pytestmark = pytest.mark.skipif(not FOLDERS, reason="make peers has not fetched llama.cpp")


def source_of(name: str) -> str:
    file = FOLDERS[-1] / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"this llama.cpp has no {name}")
    return file.read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_template_says_which_format_its_model_reasons_in(name: str) -> None:
    reasoning = settle_output("auto", "auto", source_of(name), "").reasoning
    assert (None if reasoning is None else reasoning.name) == EXPECTED[name]


def parser_of(output: OutputFormat, opened: bool) -> Parser:
    parser = output.parser((), opened=opened)
    assert parser is not None
    return parser


def answers(template: ChatTemplate, kwargs: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompts, and what follows them where the model thinks and answers as the template writes it."""
    found = []
    prompt = template.render(USER, add_generation_prompt=True, template_kwargs=kwargs)
    for field in FIELDS:
        turn = {"role": "assistant", "content": ANSWER, field: THOUGHT}
        try:
            whole = template.render([*USER, turn], template_kwargs=kwargs)
        except TemplateError:
            continue
        if THOUGHT in whole and whole.startswith(prompt):
            found.append((prompt, whole[len(prompt) :]))
    return found


WRITES_IT = (
    *("Bielik-11B-v3.0-Instruct", "ByteDance-Seed-OSS", "Cohere2MoE", "GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2"),
    *("MiniMax-M3", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "StepFun3.5-Flash"),
    *("deepseek-ai-DeepSeek-V3.2", "openai-gpt-oss-120b"),
)
"""Templates that write the last turn's reasoning as the model does, in front of what they write of its answer."""


@pytest.mark.parametrize("name", WRITES_IT)
def test_what_a_published_template_writes_is_read_back(name: str) -> None:
    source = source_of(name)
    output = settle_output("auto", "auto", source, "")
    kwargs = {"enable_thinking": True, "thinking": True}
    found = answers(ChatTemplate(source, SPECIAL, max_seconds=60), kwargs)
    assert found
    for prompt, text in found:
        opened = output.thinking_opened(prompt[-200:], wanted=True)
        pieces = check_every_split(partial(parser_of, output, opened), text)
        assert of_kind(pieces, Thought) == THOUGHT
        content = of_kind(pieces, Content)
        assert content.startswith(ANSWER)
        assert "think" not in content


CAN_TURN_IT_OFF = (
    *("Bielik-11B-v3.0-Instruct", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "GLM-4.6", "GLM-4.7-Flash"),
    *("HuggingFaceTB-SmolLM3-3B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-QwQ-32B", "Qwen-Qwen3-0.6B"),
    *("Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "google-gemma-4-31B-it"),
)


@pytest.mark.parametrize("name", CAN_TURN_IT_OFF)
def test_an_answer_without_thinking_is_all_content(name: str) -> None:
    source = source_of(name)
    output = settle_output("auto", "auto", source, "")
    prompt = ChatTemplate(source, SPECIAL, max_seconds=60).render(
        USER, add_generation_prompt=True, template_kwargs={"enable_thinking": False, "thinking": False}
    )
    opened = output.thinking_opened(prompt[-200:], wanted=False)
    pieces = check_every_split(partial(parser_of, output, opened), ANSWER)
    assert of_kind(pieces, Content) == ANSWER
    assert not of_kind(pieces, Thought)
