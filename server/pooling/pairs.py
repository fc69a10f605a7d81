"""A query and a document that are read together: one prompt for each pair."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.openai.media_parts import MEDIA_PARTS
from stentor.protocols.pooling.contents import Content

from ..text.errors import TemplateError
from .model import EmbeddingModel, PairForm
from .reading import (
    WRITTEN_PICTURE,
    LengthLimit,
    Prompt,
    Reading,
    cut,
    encode,
    read_messages,
    read_written,
    taken_apart,
)

DEFAULT_INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
_QWEN3_VL_INSTRUCTION: Final = "Given a search query, retrieve relevant candidates that answer the query."
_QWEN3_JUDGE: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_QWEN3_BEFORE: Final = f"<|im_start|>system\n{_QWEN3_JUDGE}<|im_end|>\n<|im_start|>user\n"
_QWEN3_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The words with which Qwen3-Reranker was trained."""
_BGE_QUESTION: Final = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
"""The prompt of BGE's reranker on Gemma; a request's instruction replaces it."""


_TOGETHER: Final = "together with the query "
_JINA_VL_PICTURE: Final = "<|vision_start|><|image_pad|><|vision_end|>"
_JINA_VL_END: Final = 100
"""The token behind each pair whose hidden state jina-reranker-m0 scores; as its makers' code has it."""
_NEMOTRON_PAIR: Final = "question:{} \n \n passage:{}"
SEEN_PAIRS: Final[frozenset[PairForm]] = frozenset({"qwen3_vl", "jina_vl", "nemotron_vl"})
"""Forms of pairs that may hold pictures."""
_WITHOUT_INSTRUCTION: Final[frozenset[PairForm]] = frozenset({"pair", "jina_vl", "nemotron", "nemotron_vl"})


class PairRules(msgspec.Struct, frozen=True):
    """A request's options for reading pairs."""

    room: LengthLimit
    most_query: int = 0
    """Tokens of each query; longer ones are truncated. 0: no separate limit."""
    most_document: int = 0
    instruction: str | None = None
    template_arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Of the chat template, besides the instruction."""
    activate: bool = True
    """Whether scores go through the model's activation."""
    conversations: Reading | None = None
    """Options for conversations; None without them."""

    @property
    def reading(self) -> Reading:
        assert self.conversations is not None, "a request says how its conversations are read"
        return self.conversations


def check_arguments(model: EmbeddingModel, rules: PairRules) -> None:
    """Raises BadRequest for an instruction, or arguments of the chat template, that would not reach the prompt."""
    templated = model.compares == "together" and model.pair_form == "template"
    if rules.template_arguments and not templated:
        name = min(rules.template_arguments)
        why = f"`{name}` has no effect: the prompt of this model's scores is no chat template; leave it out"
        raise refused("chat_template_kwargs", why, "unsupported")
    reserved = model.pool.chat_template.reserved
    if taken := sorted(name for name in rules.template_arguments if name in reserved or name.startswith("_")):
        raise wrong("chat_template_kwargs", f"must not set `{taken[0]}`")
    takes = model.compares == "list" or (model.compares == "together" and model.pair_form not in _WITHOUT_INSTRUCTION)
    if rules.instruction is not None and not takes:
        raise refused("instruction", "the model takes none; leave it out", "unsupported")


async def read_pairs(
    model: EmbeddingModel,
    queries: Sequence[str],
    documents: Sequence[str],
    rules: PairRules,
    fields: tuple[str, str],
) -> list[Prompt]:
    """One prompt for each document, with the only query or that in its place; ``fields`` are those that have them.

    Raises BadRequest.
    """
    if model.pair_form == "bge":
        return await _questioned(model, queries, documents, rules, fields)
    first = await _bounded(model, queries, rules.most_query)
    second = await _bounded(model, documents, rules.most_document)
    match model.pair_form:
        case "pair":
            return _joined(model, first, second, rules.room, fields[1])
        case "qwen3":
            return await _instructed(model, first, second, rules, fields[1])
        case "nemotron" | "nemotron_vl":
            return await _prefixed(model, await _texts(model, first), await _texts(model, second), rules, fields[1])
        case "qwen3_vl" | "jina_vl":
            queries, documents = await _texts(model, first), await _texts(model, second)
            return [
                await read_pair(
                    model, queries[place if len(queries) > 1 else 0], text, _at(fields[1], place, documents), rules
                )
                for place, text in enumerate(documents)
            ]
        case _:
            return await _templated(model, first, second, rules, fields[1])


async def read_pair(model: EmbeddingModel, query: Content, document: Content, where: str, rules: PairRules) -> Prompt:
    """One pair in the prompt of Qwen3-VL-Reranker, of texts, pictures and both; of jina-reranker-m0, of a text or a
    picture on each side; or of NVIDIA's reranker, of texts and one picture. Raises as :func:`.reading.read_messages`;
    long pairs are refused, since the score depends on the end, but for NVIDIA's of texts."""
    if model.pair_form == "jina_vl":
        return await _read_jina_pair(model, query, document, where, rules)
    if model.pair_form == "nemotron_vl":
        return await _read_nemotron_pair(model, query, document, where, rules)
    instruction = _QWEN3_VL_INSTRUCTION if rules.instruction is None else rules.instruction
    question = [
        _text_part(f"<Instruct>: {instruction}"),
        *(_text_part("<Query>:"), *_parts_of(query)),
        *(_text_part("\n<Document>:"), *_parts_of(document)),
    ]
    messages = [{"role": "system", "content": [_text_part(_QWEN3_JUDGE)]}, {"role": "user", "content": question}]
    fields = msgspec.structs.replace(rules.reading.fields, add_generation_prompt=True)
    reading = replace(rules.reading, fields=fields, room=rules.room.uncut)
    return await read_messages(model, reading, messages, where)


async def _read_jina_pair(
    model: EmbeddingModel, query: Content, document: Content, where: str, rules: PairRules
) -> Prompt:
    written, shown = [], []
    for name, content in (("Document", document), ("Query", query)):
        text, pictures = taken_apart(content)
        if pictures and (text.strip() or len(pictures) > 1):
            raise refused(where, "the model reads a text or one image on each side; send nothing else", "unsupported")
        written.append(f"**{name}**:\n{_JINA_VL_PICTURE if pictures else text}")
        shown += pictures
    whole = "\n".join(written)
    return await read_written(model, rules.reading, shown, whole, where, room=rules.room, end=[_JINA_VL_END])


async def _read_nemotron_pair(
    model: EmbeddingModel, query: Content, document: Content, where: str, rules: PairRules
) -> Prompt:
    (question, asked), (passage, shown) = taken_apart(query), taken_apart(document)
    pictures = [*asked, *shown]
    if len(pictures) > 1:
        raise refused(where, "the model reads one image of a query and a document; send one", "unsupported")
    whole = f"{WRITTEN_PICTURE * len(pictures)}{_NEMOTRON_PAIR.format(question, passage)}"
    return await read_written(model, rules.reading, pictures, whole, where, room=rules.room, special=True)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _parts_of(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_text_part(content or "NULL")]
    return content


async def _bounded(model: EmbeddingModel, texts: Sequence[str], most: int) -> list[list[int]]:
    return [cut(ids, most) if most else ids for ids in await encode(model, texts, special=False)]


def _joined(
    model: EmbeddingModel, queries: Sequence[list[int]], documents: Sequence[list[int]], room: LengthLimit, field: str
) -> list[Prompt]:
    ends = model.pair_ends
    prompts = []
    for place, document in enumerate(documents):
        query = queries[place if len(queries) > 1 else 0]
        length = len(query) + len(document) + ends.length
        if length > room.most:
            if room.cut is None:
                raise room.too_long(length, _at(field, place, documents), _TOGETHER)
            left = room.most - ends.length
            if left < 1:
                raise room.none_left(ends.length)
            query, document = cut_longest(query, document, left)
        before = [*ends.before, *query, *ends.between]
        ids = [*before, *document, *ends.after]
        if not ids:
            raise wrong(field, "must hold at least one token")
        prompts.append(Prompt(ids, second=len(before) if ends.has_type_ids else 0))
    return prompts


def cut_longest(first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
    """Both, of which the longer one loses tokens until they have ``most`` together: as tokenizers do it."""
    short, long = sorted((len(first), len(second)))
    long = short if short > most else max(short, most - short)
    if short + long > most:
        short, long = most // 2, most // 2 + most % 2
    return (first[:short], second[:long]) if len(first) <= len(second) else (first[:long], second[:short])


async def _instructed(
    model: EmbeddingModel, queries: Sequence[list[int]], documents: Sequence[list[int]], rules: PairRules, field: str
) -> list[Prompt]:
    instruction = DEFAULT_INSTRUCTION if rules.instruction is None else rules.instruction
    before, after = await encode(model, [_QWEN3_BEFORE, _QWEN3_AFTER], special=False)
    first, second = await _texts(model, queries), await _texts(model, documents)
    texts = [
        f"<Instruct>: {instruction}\n<Query>: {first[place if len(first) > 1 else 0]}\n<Document>: {document}"
        for place, document in enumerate(second)
    ]
    room = rules.room
    left = room.most - len(before) - len(after)
    prompts = []
    for place, ids in enumerate(await encode(model, texts, special=False)):
        if len(ids) > left:
            if room.cut is None:
                length = len(ids) + len(before) + len(after)
                raise room.too_long(length, _at(field, place, documents), _TOGETHER)
            if left < 1:
                raise room.none_left(len(before) + len(after))
        prompts.append(Prompt([*before, *ids[:left], *after]))
    return prompts


async def _prefixed(
    model: EmbeddingModel, queries: Sequence[str], documents: Sequence[str], rules: PairRules, field: str
) -> list[Prompt]:
    """The words of NVIDIA's rerankers; a long pair loses its end."""
    texts = [
        _NEMOTRON_PAIR.format(queries[place if len(queries) > 1 else 0], document)
        for place, document in enumerate(documents)
    ]
    prompts = []
    for place, ids in enumerate(await encode(model, texts, special=True)):
        if len(ids) > rules.room.most and rules.room.cut is None:
            raise rules.room.too_long(len(ids), _at(field, place, documents), _TOGETHER)
        prompts.append(Prompt(rules.room.within(ids, model.ends, _at(field, place, documents))))
    return prompts


async def _questioned(
    model: EmbeddingModel,
    queries: Sequence[str],
    documents: Sequence[str],
    rules: PairRules,
    fields: tuple[str, str],
) -> list[Prompt]:
    """The parts are tokenized one by one, as in FlagEmbedding; for long pairs the document is truncated."""
    question = _BGE_QUESTION if rules.instruction is None else rules.instruction
    between, asked = await encode(model, ["\n", question], special=False)
    tokenizer = model.pool.tokenizer
    bos = tokenizer.bos_token_id
    begin = [] if bos is None or bos == tokenizer.pad_token_id else [bos]
    first = await encode(
        model, [f"A: {text}" for text in await _shortened(model, queries, rules.most_query)], special=False
    )
    second = await encode(
        model, [f"B: {text}" for text in await _shortened(model, documents, rules.most_document)], special=False
    )
    most = rules.room.most
    prompts = []
    for place, document in enumerate(second):
        query = first[place if len(first) > 1 else 0]
        before, after = [*begin, *query, *between], [*between, *asked]
        left = most - len(before) - len(after)
        if len(document) > left:
            if rules.room.cut is None:
                raise rules.room.too_long(most - left + len(document), _at(fields[1], place, second), _TOGETHER)
            if left < 1:
                raise wrong(
                    fields[0],
                    f"and what the model is asked have {most - left} tokens, which leaves none of {most} for a "
                    "document; shorten it",
                    "context_length_exceeded",
                )
        prompts.append(Prompt([*before, *document[:left], *after]))
    return prompts


async def _shortened(model: EmbeddingModel, texts: Sequence[str], most: int) -> Sequence[str]:
    return await _texts(model, await _bounded(model, texts, most)) if most else texts


async def _templated(
    model: EmbeddingModel, queries: Sequence[list[int]], documents: Sequence[list[int]], rules: PairRules, field: str
) -> list[Prompt]:
    kwargs = {**rules.template_arguments, **({} if rules.instruction is None else {"instruction": rules.instruction})}
    first, second = await _texts(model, queries), await _texts(model, documents)
    prompts = []
    for place, document in enumerate(second):
        query = first[place if len(first) > 1 else 0]
        try:
            ids = await model.pool.render_chat(
                [{"role": "query", "content": query}, {"role": "document", "content": document}],
                add_generation_prompt=True,
                continue_final_message=False,
                template_kwargs=kwargs,
            )
        except TemplateError as error:
            raise BadRequest(str(error), field, "template_error") from None
        if len(ids) > rules.room.most:  # truncation would remove the end, on which the score depends
            raise rules.room.uncut.too_long(len(ids), _at(field, place, documents), _TOGETHER)
        prompts.append(Prompt(ids))
    return prompts


async def bounded_content(model: EmbeddingModel, content: Content, most: int) -> Content:
    """User content with at most ``most`` text tokens, in the order of its parts; 0: all. Pictures stay whole and do not
    count."""
    if not most:
        return content
    parts: list[dict[str, Any]] = []
    for part in [_text_part(content)] if isinstance(content, str) else content:
        if part["type"] in MEDIA_PARTS:
            parts.append(part)
            continue
        text = part[part["type"]]
        (ids,) = await encode(model, [text], special=False)
        if len(ids) > most:
            (text,) = await _texts(model, [ids[:most]])
        if most or not ids:
            parts.append({**part, part["type"]: text})
        most -= min(most, len(ids))
    return parts[0]["text"] if isinstance(content, str) else parts


async def _texts(model: EmbeddingModel, many: Sequence[list[int]]) -> list[str]:
    return [await model.pool.decode(ids, skip_special_tokens=False) for ids in many]


def _at(field: str, place: int, several: Sequence[object]) -> str:
    return f"{field}[{place}]" if len(several) > 1 else field
