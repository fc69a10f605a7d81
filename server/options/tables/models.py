"""Models of other kinds than the chat model, on the same port."""

from typing import Final, get_args

from stentor.engine.model_config.sentence_config import PoolingMode
from stentor.engine.sharing.lease import MAX_WEIGHT
from stentor.protocols.ipc.config import DType

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "transcription-model",
        "transcription.model",
        kinds.text(),
        "a Whisper (Hugging Face's or CTranslate2's form) or a Voxtral Realtime, named as MODEL is; otherwise none",
        "models",
    ),
    Option(
        "transcription-model-name",
        "transcription.served_as",
        kinds.texts(),
        "a name that clients use for it; may be repeated",
        "models",
    ),
    Option(
        "transcription-memory-share",
        "transcription.memory_share",
        kinds.part(),
        "its part of the memory that models take: of a GPU's --gpu-memory-fraction, or of what a CPU has for KV caches",
        "models",
    ),
    Option(
        "transcription-weight",
        "transcription.share",
        kinds.integer(1, MAX_WEIGHT),
        "its part of the device's time while it and the chat model both have work, against --chat-weight",
        "models",
        aliases=("asr-weight", "transcription-share"),
    ),
    Option(
        "embedding-model",
        "embedding.model",
        kinds.text(),
        "an embedder, reranker or classifier, named as MODEL is; otherwise none is served",
        "models",
    ),
    Option(
        "embedding-model-name",
        "embedding.served_as",
        kinds.texts(),
        "a name that clients use for it; may be repeated",
        "models",
    ),
    Option(
        "embedding-memory-share",
        "embedding.memory_share",
        kinds.part(),
        "its part of the memory that models take, as --transcription-memory-share",
        "models",
    ),
    Option(
        "embedding-weight",
        "embedding.share",
        kinds.integer(1, MAX_WEIGHT),
        "its part of the device's time while it and others have work, against --chat-weight",
        "models",
        aliases=("embedding-share",),
    ),
    Option(
        "embedding-dtype",
        "embedding.dtype",
        kinds.choice(get_args(DType)),
        "type of its activations, as --dtype is of the chat model's",
        "models",
    ),
    Option(
        "pooler",
        "embedding.pooler",
        kinds.choice(get_args(PoolingMode)),
        "how its hidden states become one vector, instead of what the model's files say",
        "models",
    ),
    Option(
        "pooling-plugin",
        "embedding.plugin",
        kinds.text(),
        "an installed plugin for `task: plugin` of `/pooling`; otherwise that is refused",
        "models",
    ),
    Option(
        "speech-model",
        "speech.model",
        kinds.text(),
        "a voice, named as MODEL is; otherwise none is served",
        "models",
    ),
    Option(
        "speech-model-name",
        "speech.served_as",
        kinds.texts(),
        "a name that clients use for it; may be repeated",
        "models",
    ),
    Option(
        "speech-threads",
        "speech.threads",
        kinds.integer(0, 256),
        "threads that speak; 0 takes half of the cores, but no more than four",
        "models",
    ),
    Option(
        "chat-weight",
        "engine.worker.lease_weight",
        kinds.integer(1, MAX_WEIGHT),
        "the chat model's part of the device's time while others on it have work too",
        "models",
        aliases=("share",),
    ),
    Option(
        "demo",
        "demo",
        kinds.switch(),
        "serve the demo model of every kind that no other is named for",
        "models",
    ),
)
