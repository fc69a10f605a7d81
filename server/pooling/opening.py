"""Opens the server's side of a pooling model's folder."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import readable_json
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.engine.model_config.encoders.pooling import (
    JINA_VL,
    NEMOTRON_RERANKER,
    NEMOTRON_VL_RERANKER,
    PoolingConfig,
)
from stentor.engine.model_config.encoders.retrievers import retriever_kind
from stentor.engine.model_config.hf.text_part import COLQWEN3_5, JINA_V4, NEMOTRON_COLEMBED
from stentor.engine.model_config.spec.encoder import EncoderConfig
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.protocols.ipc.config import ModelImpl

from ..config.model_facts import facts_of
from ..config.models import EmbeddingConfig
from ..media.chat_media import ChatMedia
from ..media.collect import TEXT_ONLY, Accepted
from ..text.errors import TokenizerError
from ..text.output.generation import ModelEngine
from ..text.pool import TokenizationBudget, TokenizerPool
from ..text.tokenizers.loading import load_tokenizer
from ..text.tokenizers.tokenizer import Tokenizer
from .affix_tokens import affix_tokens_of, pair_affix_tokens_of
from .metrics import EmbeddingMetrics
from .model import EmbeddingModel, LateInteraction, PairForm
from .plugin import open_plugin

_read: Final = partial(readable_json, most_bytes=1 << 20)
_COLQWEN_PAGE: Final = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
)
_COLQWEN3_PAGE: Final = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image."
_COLQWEN3_END: Final = "<|im_end|><|endoftext|>"
_JINA_PAGE: Final = f"{_COLQWEN3_PAGE}<|im_end|>\n"
_OPS_PAGE: Final = f"{_COLQWEN3_PAGE}<|im_end|><|im_start|>assistant\n<|endoftext|>"
_USER: Final = "<|im_start|>user\n"
_ANSWERED: Final = "<|im_end|>\n<|im_start|>assistant\n"
"""Around the only message of NVIDIA's retriever."""
_TURN_END: Final = "<end_of_utterance>"
_COLMODERNVBERT_PAGE: Final = f"<|begin_of_text|>User:<image>Describe the image.{_TURN_END}\nAssistant:"
_PUNCTUATION: Final = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def open_embedding(
    served: EmbeddingConfig,
    client: ModelEngine,
    folder: Path,
    metrics: EmbeddingMetrics | None = None,
    tokenizer_path: Path | None = None,
    room: TokenizationBudget | None = None,
    model_impl: ModelImpl = "auto",
    media: ChatMedia | None = None,
    accepted: Accepted = TEXT_ONLY,
) -> EmbeddingModel:
    """Reads the configuration, the headers of weights and the tokenizer of ``folder``, or another: some 100 ms, so call
    it in a thread. Texts are encoded in ``room``; ``media`` and ``accepted`` as :class:`.model.EmbeddingModel` has
    them.

    Raises :class:`stentor.engine.loading.errors.CheckpointError`, with one line for the operator.
    """
    checkpoint = open_pooling(folder, served.pooler or "", model_impl)
    config = checkpoint.pooling
    try:
        tokenizer = load_tokenizer(folder, override=tokenizer_path)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    if isinstance(config.backbone, EncoderConfig) and config.backbone.filled and tokenizer.pad_token_id is None:
        raise CheckpointError(
            f"Cannot load {folder}: its tokenizer has no padding token, by which texts are filled up."
        )
    return EmbeddingModel(
        served.served_names,
        client,
        TokenizerPool(tokenizer, room=room),
        config,
        affix_tokens_of(tokenizer),
        pair_affix_tokens_of(tokenizer),
        pair_form_of(config, tokenizer),
        markers_of(folder, config, tokenizer),
        metrics,
        None if served.plugin is None else open_plugin(served.plugin),
        media,
        accepted,
        facts_of(checkpoint),
    )


def pair_form_of(config: PoolingConfig, tokenizer: Tokenizer) -> PairForm:
    """A language model that answers yes or no gets the prompt of its training."""
    if config.score is None or not isinstance(config.backbone, ModelSpec):
        return "pair"
    if config.score.tied_rows and config.architecture.startswith("Qwen3VL"):
        return "qwen3_vl"
    if config.architecture == JINA_VL:
        return "jina_vl"
    if config.architecture == NEMOTRON_VL_RERANKER:
        return "nemotron_vl"
    source = tokenizer.template_source
    if "query" in source and "document" in source:
        return "template"
    if config.architecture == NEMOTRON_RERANKER:
        return "nemotron"
    if config.score.tied_rows and config.architecture.startswith("Qwen3"):
        return "qwen3"
    return "bge" if len(config.score.tied_rows) == 1 and config.architecture.startswith("Gemma") else "pair"


def markers_of(folder: Path, config: PoolingConfig, tokenizer: Tokenizer) -> LateInteraction:
    """For late-interaction models: from the files of PyLate or Stanford, or a multimodal processor."""
    if config.vectors is None or config.vectors.skip_first:
        return LateInteraction()
    if config.backbone.text_part:
        return page_words(_read(folder / "config.json"), _read(folder / "processor_config.json"), tokenizer)
    given = _read(folder / "config_sentence_transformers.json")
    stanford = _read(folder / "artifact.metadata")
    if stanford:
        given = {
            "query_prefix": stanford.get("query_token_id", "[unused0]"),
            "document_prefix": stanford.get("doc_token_id", "[unused1]"),
            "query_length": stanford.get("query_maxlen", 32),
            "document_length": stanford.get("doc_maxlen", 0),
            "do_query_expansion": True,
            "attend_to_expansion_tokens": stanford.get("attend_to_mask_tokens", False),
            "skiplist_words": [*_PUNCTUATION] if stanford.get("mask_punctuation", True) else [],
        }
    # padding tokens that no query token attends to cannot be told from others: left out
    fills = given.get("do_query_expansion", True) is True and given.get("attend_to_expansion_tokens") is True
    words = given.get("skiplist_words", [])
    backend = tokenizer.backend
    skipped = [backend.token_to_id(word) for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return LateInteraction(
        query=_token(tokenizer, given.get("query_prefix")),
        document=_token(tokenizer, given.get("document_prefix")),
        query_length=_length(given.get("query_length")),
        document_length=_length(given.get("document_length")),
        fill=backend.token_to_id("[MASK]") or backend.token_to_id("<mask>") if fills else None,
        skipped=frozenset(token for token in skipped if token is not None),
    )


def page_words(config: Mapping[str, Any], processor: Mapping[str, Any], tokenizer: Tokenizer) -> LateInteraction:
    """Texts around a query and around a page, of transformers' processors, and of the makers' of ColQwen3."""
    kind = retriever_kind(config)
    fill = 10 * (tokenizer.special_tokens.get("pad_token") or "")
    prefixes = {name: value for name, value in processor.items() if isinstance(value, str)}
    if kind == "colmodernvbert":
        page = prefixes.get("visual_prompt_prefix", _COLMODERNVBERT_PAGE)
        return LateInteraction(words=(prefixes.get("query_prefix", ""), 10 * _TURN_END), picture=page, affixed=True)
    if kind == "colqwen3":
        page = prefixes.get("visual_prompt_prefix", _COLQWEN3_PAGE)
        page += prefixes.get("visual_prompt_suffix", _COLQWEN3_END)
        words = (prefixes.get("query_prefix", ""), fill)
        return LateInteraction(words=words, around_document=words, picture=page)
    if kind == COLQWEN3_5:
        return LateInteraction(words=("", fill), picture=_COLQWEN_PAGE)
    if kind == NEMOTRON_COLEMBED:
        asked, told = (f"{prefixes.get(f'{side}_prefix', f'{side}:')} " for side in ("query", "passage"))
        return LateInteraction(
            words=(f"{_USER}Query: {asked}", _ANSWERED),
            around_document=(f"{_USER}{told}", _ANSWERED),
            picture=f"{_USER}<|vision_start|><|image_pad|><|vision_end|>{told}{_ANSWERED}",
        )
    if kind == JINA_V4:
        return LateInteraction(
            words=("Query: ", ""), around_document=("Passage: ", ""), picture=_JINA_PAGE, one_vector=True
        )
    if kind == "ops_colqwen3":
        return LateInteraction(picture=_OPS_PAGE)
    if kind == "colpali":
        begin = tokenizer.bos_token or ""
        query = f"{begin}{prefixes.get('query_prefix', 'Question: ')}"
        page = f"<image>{begin}{prefixes.get('visual_prompt_prefix', 'Describe the image.')}\n"
    else:
        query, page = prefixes.get("query_prefix", "Query: "), prefixes.get("visual_prompt_prefix", _COLQWEN_PAGE)
    return LateInteraction(words=(query, f"{fill}\n"), picture=page)


def _token(tokenizer: Tokenizer, text: object) -> int | None:
    return tokenizer.backend.token_to_id(text) if isinstance(text, str) and text else None


def _length(given: object) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0
