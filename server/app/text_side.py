"""Opens the text side of a model: tokenizer, chat template, parsers."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.generation_config import GenerationConfig, generation_config_from_hf
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.seq2seq.text import TextToTextConfig

from ..config.limits import TemplateLimits
from ..config.models import ModelConfig
from ..generation.chat_model import GenerationDefaults
from ..parsing.output import OutputFormat, settle_output
from ..text.errors import TokenizerError
from ..text.pool import TokenizationBudget, TokenizerPool
from ..text.renderers.choose import choose_renderer
from ..text.renderers.interface import Renderer
from ..text.renderers.mistral import RendererError
from ..text.renderers.plain import CodedRenderer
from ..text.tokenizers.grammar_tokens import special_tokens_of
from ..text.tokenizers.loading import check_same_tokens, has_tokenizer, load_tokenizer, number_tokenizer
from ..text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class TextSide(msgspec.Struct, frozen=True):
    """The text side of one chat model."""

    pool: TokenizerPool
    renderer: Renderer
    output: OutputFormat
    defaults: GenerationDefaults


def open_text_side(
    config: ModelConfig,
    checkpoint: Checkpoint,
    defaults: GenerationDefaults,
    limits: TemplateLimits,
    room: TokenizationBudget,
    draft: Path | None = None,
) -> TextSide:
    """Reads the tokenizer: some 100 ms, so call it in a thread. ``room`` bounds the texts that are being tokenized,
    ``draft`` is a model that proposes tokens and must have the same. The pool must be closed.

    Raises :class:`CheckpointError`.
    """
    try:
        tokenizer = _tokenizer(config, checkpoint)
        if draft is not None:
            check_same_tokens(tokenizer, draft)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    pool = TokenizerPool(
        tokenizer,
        render_seconds=limits.timeout,
        render_chars=limits.max_rendered_chars,
        max_foreign=limits.max_waiting,
        room=room,
    )
    try:
        renderer = choose_renderer(config.renderer, pool, checkpoint.folder, config.harmony_vocabulary)
    except RendererError as error:
        raise CheckpointError(str(error)) from error
    marks = renderer.marks if isinstance(renderer, CodedRenderer) else tokenizer.template_source
    output = settle_output(
        config.reasoning_parser,
        config.tool_call_parser,
        marks or " ".join(tokenizer.added_texts),  # markers show where no template does
        checkpoint.config.architecture,
        " ".join(tokenizer.added_texts),
    )
    spec = checkpoint.config
    about_pictures = isinstance(spec, TextToTextConfig) and spec.pictures is not None
    if not marks and not about_pictures:
        logger.info("the model has no chat template: it completes texts; for chat give --chat-template")
    if taken := sorted(config.default_chat_template_kwargs.keys() & pool.chat_template.reserved):
        raise CheckpointError(f"--default-chat-template-kwargs: the server sets {', '.join(taken)}; leave it out.")
    ending = with_turn_ends(defaults, tokenizer, output.turn_ends, checkpoint.defaults.implied_eos_token_ids)
    return TextSide(pool, renderer, output, ending)


def with_turn_ends(
    defaults: GenerationDefaults, tokenizer: Tokenizer, texts: Iterable[str], implied: Sequence[int] = ()
) -> GenerationDefaults:
    """The defaults in which special tokens with these texts end a turn too. Where no token would, as in models whose
    files name none: the tokenizer's end of a text, and of ``implied``, those of the text part or of the model's class,
    the special tokens, or all of them if the tokenizer has no end of a text."""
    specials = special_tokens_of(tokenizer)
    ended = defaults.ending(specials[text] for text in texts if text in specials)
    if ended.eos_token_ids:
        return ended
    if tokenizer.eos_token_id is None:
        return ended.ending(implied)
    return ended.ending((tokenizer.eos_token_id, *{*implied} & {*tokenizer.special_ids}))


def _tokenizer(config: ModelConfig, checkpoint: Checkpoint) -> Tokenizer:
    source = checkpoint.files[0] if checkpoint.format == "gguf" else checkpoint.folder
    override = None if config.tokenizer is None else Path(config.tokenizer)
    if checkpoint.format == "dummy" and override is None and not has_tokenizer(source):
        return number_tokenizer(checkpoint.config.vocab_size)
    return load_tokenizer(source, override=override, chat_template_file=config.chat_template)


def generation_defaults(config: ModelConfig, checkpoint: Checkpoint) -> GenerationDefaults:
    """Sampling defaults from the model, from another file, or with ``none`` only its EOS tokens; the operator's
    overrides take precedence.

    Raises :class:`CheckpointError`.
    """
    model, source = checkpoint.defaults, config.generation_config
    if source == "none":
        model = GenerationConfig(eos_token_ids=model.eos_token_ids)
    elif source != "auto":
        file = Path(source)
        if file.is_dir():
            file = file / "generation_config.json"
        try:
            given = generation_config_from_hf({}, read_json(file))
        except ConfigError as error:
            raise CheckpointError(f"Cannot use {file}: {error}.") from error
        eos = tuple(sorted({*model.eos_token_ids, *given.eos_token_ids}))
        model = msgspec.structs.replace(given, eos_token_ids=eos)
    if model.unused:
        logger.warning("the model's generation_config.json sets %s, which has no effect", ", ".join(model.unused))
    said = {name: getattr(model, name, None) for name in GenerationDefaults.__struct_fields__}
    said |= msgspec.to_builtins(config.override_generation_config)
    said["most_tokens"] = said.pop("max_new_tokens", None)
    return GenerationDefaults(**{name: value for name, value in said.items() if value is not None})
