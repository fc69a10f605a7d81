"""Templates that model makers publish, read from llama.cpp's source where ``make peers`` has put it."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from stentor.loadtest.peers.places import home
from stentor.server.parsing.output import detected
from stentor.server.text.errors import TemplateError
from stentor.server.text.templates.chat_template import ChatTemplate
from stentor.tests.server.parsing.tools.reading import TOOLS, cut, read

FOLDERS: Final = sorted(home("llama.cpp").glob("source-*/llama.cpp/models/templates"))
FORMATS: Final = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "jamba",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere_command3",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command3",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm47",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat31",
    "LFM2.5-8B-A1B": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm47",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm45",
    "llama-cpp-deepseek-r1": "deepseek_v3",
    "meetkai-functionary-medium-v3.1": "functionary_v3.1",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_array",
    "moonshotai-Kimi-K2": "kimi_k2",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm47",
    "poolside-Laguna-XS-2.1": "glm45",
    "poolside-Laguna-XS.2": "glm45",
    "tencent-Hy3": "hy_v3_opensource",
    "unsloth-Apriel-1.5": "jamba",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar_open",
}
"""Whose calls are parsed back."""
SILENT: Final = {
    "HuggingFaceTB-SmolLM3-3B": "plain",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3",
    "google-gemma-2-2b-it": "plain",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "llama-cpp-rwkv-world": "plain",
    "microsoft-Phi-3.5-mini-instruct": "plain",
}
"""Which leave the calls of a message out."""
ONE_CALL: Final = {
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
}
"""Which render one call a message at most."""
CALLS: Final[list[dict[str, Any]]] = [
    {
        "id": "call00001",
        "type": "function",
        "function": {
            "name": "get_weather",
            "arguments": {
                "city": 'Zü"rich {x} 日本',
                "days": 3,
                "place": {"a": [1, "b"]},
                "hours": [1, 2],
                "rain": True,
            },
        },
    },
    {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}},
]
AS_TEXT: Final = {"place": {"a": ["1", "b"]}, "hours": ["1", "2"]}
"""These where a format tells no type: their schemas do not tell it either."""
DECLARED: Final = [
    {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.parameters or {"type": "object", "properties": {}},
        },
    }
    for tool in TOOLS
]
QUESTION: Final = "Q-U-E-S-T-I-O-N"

pytestmark = pytest.mark.skipif(not FOLDERS, reason="llama.cpp's source is not there; make peers fetches it")


def source(name: str) -> str:
    path: Path = FOLDERS[-1] / f"{name}.jinja"
    if not path.exists():
        pytest.skip("this release has no such template")
    return path.read_text()


def written(template: ChatTemplate, content: str | None, calls: list[dict[str, Any]]) -> str | None:
    """What the model would have written; None where the template refuses. Some want arguments as text."""
    user = {"role": "user", "content": QUESTION}
    for as_text in (False, True):
        copied = json.loads(json.dumps(calls))
        for call in copied if as_text else ():
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        message = {"role": "assistant", "content": content, "tool_calls": copied}
        try:
            text = template.render([user, message], tools=DECLARED)
            prompt = template.render([user], tools=DECLARED, add_generation_prompt=True)
        except TemplateError:
            continue
        shared = text.rfind(QUESTION) + len(QUESTION)
        while text[shared : shared + 1] == prompt[shared : shared + 1] != "":
            shared += 1
        while shared and text[shared - 1] not in ">]\n":
            shared -= 1  # a marker that begins like another one
        return text[shared:]
    return None


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", FORMATS)
def test_a_published_template_round_trips(name: str) -> None:
    template = ChatTemplate(source(name), {"bos_token": "", "eos_token": ""})
    format = detected(source(name))
    calls = CALLS[:1] if name in ONE_CALL else CALLS
    told = AS_TEXT if name == "MiniMax-M3" else {}
    functions = [call["function"] for call in calls]
    wanted = [(each["name"], {key: told.get(key, v) for key, v in each["arguments"].items()}) for each in functions]
    texts = (written(template, content, calls) for content in ("", None))
    text = next(text for text in texts if text is not None and "get_weather" in text)
    for size in (1, 7, len(text)):
        reading = read(format, *cut(text, size))
        assert reading.named == wanted, text
        assert all(call.whole for call in reading.calls)


@pytest.mark.parametrize(("name", "format"), [*FORMATS.items(), *SILENT.items()])
def test_a_published_template_tells_its_format(name: str, format: str) -> None:
    assert detected(source(name)).name == format


@pytest.mark.parametrize("name", SILENT)
def test_a_template_that_knows_no_calls_leaves_them_out(name: str) -> None:
    text = written(ChatTemplate(source(name), {"bos_token": "", "eos_token": ""}), "", CALLS)
    assert text is not None
    assert "get_weather" not in text
