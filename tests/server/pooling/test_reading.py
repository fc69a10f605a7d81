"""Texts become the tokens that the tokenizers library itself would make of them, cut as it cuts them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stentor.engine.model_config.encoders.sentence import SentenceModules
from stentor.engine.model_config.spec.encoder import EncoderConfig
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.pooling.common import PoolingFields
from stentor.server.pooling.pairs import PairRules, cut_longest, read_pairs
from stentor.server.pooling.purposes import adapter_of, prompt_of
from stentor.server.pooling.reading import LengthLimit, read_texts
from stentor.tests.server.pooling.pooler import (
    CLS,
    LENGTH,
    SEP,
    WORDS,
    A,
    Adapted,
    FakePooler,
    backend,
    config,
    model_of,
    scores,
)

pytestmark = pytest.mark.anyio

SIDES = ("left", "right")


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS[5:31]) for _ in range(words))


async def test_a_text_is_cut_between_its_special_tokens_as_the_library_cuts_it() -> None:
    rng = random.Random(7)
    model = model_of(FakePooler(), config())
    for side in SIDES:
        for most in (3, 5, 9, LENGTH):
            theirs = backend()
            theirs.enable_truncation(most, direction=side)
            texts = [text(rng, words) for words in (0, 1, most - 2, most - 1, most, 40)]
            room = LengthLimit(most, "left" if side == "left" else "right")
            found = await read_texts(model, texts, room, "input")
            assert [each.ids for each in found] == [each.ids for each in theirs.encode_batch(texts)]


@pytest.mark.parametrize("roberta", [False, True])
async def test_a_pair_is_joined_and_cut_as_the_library_does_it(roberta: bool) -> None:
    rng = random.Random(11)
    model = model_of(FakePooler(), config(score=scores("fits")), roberta=roberta)
    theirs = backend(roberta=roberta)
    theirs.enable_truncation(LENGTH, strategy="longest_first")
    for _ in range(100):
        query = text(rng, rng.randrange(20))
        documents = [text(rng, rng.randrange(30)) for _ in range(3)]
        rules = PairRules(LengthLimit(LENGTH, "right"))
        found = await read_pairs(model, [query], documents, rules, ("query", "documents"))
        for pair, document in zip(found, documents, strict=True):
            wanted = theirs.encode(query, document)
            assert pair.ids == wanted.ids
            assert pair.second == (wanted.type_ids.index(1) if 1 in wanted.type_ids else 0)
            assert bool(pair.second) != roberta


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 60))
def test_the_longer_of_two_texts_is_cut_first(first: int, second: int, most: int) -> None:
    left, right = cut_longest([*range(first)], [*range(second)], most)
    assert left == [*range(len(left))]
    assert right == [*range(len(right))]
    assert len(left) + len(right) == min(most, first + second)
    if first + second > most:
        assert len(left) == first or len(right) == second or abs(len(left) - len(right)) <= 1


async def test_what_is_too_long_is_refused_unless_it_may_be_cut() -> None:
    model = model_of(FakePooler(), config())
    long = " ".join("a" * 20)
    with pytest.raises(BadRequest) as refused:
        await read_texts(model, ["a", long], LengthLimit.of(model, PoolingFields()), "input")
    assert (refused.value.param, refused.value.code) == ("input[1]", "context_length_exceeded")
    assert "has 22 tokens; the model takes at most 16" in refused.value.message
    for wanted, kept in ((-1, LENGTH), (5, 5)):
        room = LengthLimit.of(model, PoolingFields(truncate_prompt_tokens=wanted))
        (cut,) = await read_texts(model, [long], room, "input")
        assert cut.ids == [CLS, *[A] * (kept - 2), SEP]
    for wanted in (17, 2):
        with pytest.raises(BadRequest) as refused:
            await read_texts(
                model, [long], LengthLimit.of(model, PoolingFields(truncate_prompt_tokens=wanted)), "input"
            )
        assert refused.value.param == "truncate_prompt_tokens"


async def test_the_engine_and_the_operator_bound_what_a_text_may_have() -> None:
    assert LengthLimit.of(model_of(FakePooler(max_model_len=10), config()), PoolingFields()).most == 10
    assert LengthLimit.of(model_of(FakePooler(), config()), PoolingFields(), 7).most == 7
    modules = SentenceModules(("mean",), max_length=12)
    assert LengthLimit.of(model_of(FakePooler(), config(modules=modules)), PoolingFields()).most == 12


async def test_token_ids_are_taken_as_they_are_and_those_of_another_model_are_told() -> None:
    model = model_of(FakePooler(), config())
    room = LengthLimit.of(model, PoolingFields())
    assert [each.ids for each in await read_texts(model, [[5, 6], [7]], room, "input")] == [[5, 6], [7]]
    with pytest.raises(BadRequest, match="check_embedding_ctx_length=False") as refused:
        await read_texts(model, [[5], [6, len(WORDS)]], room, "input")
    assert refused.value.param == "input[1]"
    assert f"`input[1][1]`: token id {len(WORDS)} is outside" in refused.value.message
    with pytest.raises(BadRequest, match="at least one token"):
        await read_texts(model, [[]], room, "input")


async def test_a_prompt_goes_before_texts_and_is_pooled_only_where_the_model_does_so() -> None:
    for include, skip in ((True, 0), (False, 3)):
        modules = SentenceModules(("mean",), include, prompts={"query": "query a "})
        model = model_of(FakePooler(), config(modules=modules))
        (found,) = await read_texts(
            model, ["b"], LengthLimit(16), "input", prompt=prompt_of(model.config, "search_query", "task")
        )
        assert found.ids == [CLS, WORDS.index("query"), A, A + 1, SEP]
        assert found.skip == skip


async def test_texts_are_written_small_where_the_model_only_knows_those() -> None:
    model = model_of(FakePooler(), config(modules=SentenceModules(("mean",), lower_case=True)))
    (found,) = await read_texts(model, ["A Title"], LengthLimit(16), "input")
    assert found.ids == [CLS, A, WORDS.index("title"), SEP]


def test_purposes_have_the_names_of_all_protocols() -> None:
    modules = SentenceModules(("mean",), prompts={"query": "Q: ", "passage": "P: "}, default_prompt="passage")
    made = config(modules=modules)
    assert prompt_of(made, None) == "P: "
    for name in ("query", "search_query", "retrieval.query"):
        assert prompt_of(made, name, "task") == "Q: "
    for name in ("document", "search_document", "passage"):
        assert prompt_of(made, name, "task") == "P: "
    assert prompt_of(made, "clustering", "task") == "", "it has none, and needs none"
    with pytest.raises(BadRequest, match="it knows query, passage") as refused:
        prompt_of(made, "poetry", "input_type")
    assert refused.value.param == "input_type"


def test_an_adapter_is_chosen_by_any_name_of_its_purpose() -> None:
    made = config()
    assert adapter_of(made, "query") == ""
    adapted = Adapted(made.backbone, made.modules, made.dimensions)
    for name in ("query", "search_query", "retrieval.query"):
        assert adapter_of(adapted, name) == "retrieval.query"
    assert adapter_of(adapted, "code") == "code"
    assert prompt_of(adapted, "code", "task") == ""
    assert adapter_of(adapted, "passage") == adapter_of(adapted, None) == ""
    with pytest.raises(BadRequest, match=r"it knows retrieval\.query, code"):
        prompt_of(adapted, "poetry", "task")


async def test_a_qwen3_reranker_is_asked_in_its_own_words() -> None:
    model = model_of(FakePooler(), config(score=scores("fits")), pair_form="qwen3")
    rules = PairRules(LengthLimit(400), instruction="title")
    (pair,) = await read_pairs(model, ["a"], ["b c"], rules, ("query", "documents"))
    words = [WORDS[token] for token in pair.ids]
    place = words.index("title")
    assert words[place : place + 2] == ["title", "[UNK]"]
    assert [word for word in words[place:] if word in ("a", "b", "c")] == ["a", "b", "c"]
    (cut,) = await read_pairs(model, ["a"], ["b " * 300], PairRules(LengthLimit(250, "right")), ("query", "documents"))
    assert len(cut.ids) == 250
    assert cut.ids[-5:] == pair.ids[-5:], "the end, on which the answer hangs, stays"


async def test_a_template_with_queries_and_documents_writes_pairs() -> None:
    template = "{% for m in messages %}{{ m.role[:1] }} {{ m.content }} {% endfor %}{# query document #}"
    model = model_of(FakePooler(), config(score=scores("fits")), pair_form="template", template=template)
    rules = PairRules(LengthLimit(LENGTH))
    (pair,) = await read_pairs(model, ["a"], ["b"], rules, ("query", "documents"))
    assert [WORDS[token] for token in pair.ids] == ["q", "a", "d", "b"]
    with pytest.raises(BadRequest, match="together with the query"):
        await read_pairs(model, ["a"], ["b " * 30], rules, ("query", "documents"))


def test_padding_to_the_longest_is_for_models_that_always_pad() -> None:
    padded = PoolingFields(padding="max_length")
    backbone = config().backbone
    assert isinstance(backbone, EncoderConfig)
    filled = config(backbone=replace(backbone, filled=True))
    assert LengthLimit.of(model_of(FakePooler(), filled), padded).most == LENGTH
    with pytest.raises(BadRequest, match="`padding: max_length`, of a model whose texts were not padded in training"):
        LengthLimit.of(model_of(FakePooler(), config()), padded)
