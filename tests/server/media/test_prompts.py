"""Prompts with pictures, token for token as transformers writes them, and the places of the pictures in them."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from msgspec.structs import replace
from PIL import Image
from safetensors.numpy import load

from stentor.protocols.common.errors import BadRequest
from stentor.server.app.media import spec_in
from stentor.server.media.chat_media import ChatMedia, ConversationMedia, PlacedMedia
from stentor.server.media.decoding.decode_video import DecodedVideo, VideoFacts
from stentor.server.media.processed_cache import ProcessedMedia
from stentor.server.media.processors.images.minicpm import MiniCPMOcrImages
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.server.text.errors import TemplateError
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.templates.placeholders import MediaText
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.server.media.families import LAID_OUT, PROCESSED
from stentor.tests.server.media.opened import open_media
from stentor.tests.server.media.pictures import picture
from stentor.tests.support.vision_models import BOS

transformers: Any = untyped_transformers

Message = dict[str, Any]

SEEN = {"a": picture(40, 30, 1), "b": picture(17, 90, 2), "c": picture(64, 64, 3)}
CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "no picture": [("user", "hello")],
    "one": [("user", "[a]What is this?")],
    "behind the text": [("user", "What is this? [b]")],
    "several of mixed sizes": [("user", "[a][b]Compare [c]them.")],
    "in the middle of history": [
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "[b]and this?"),
        ("assistant", "a picture"),
        ("user", "sure?"),
    ],
    "two turns": [("user", "[a]one"), ("assistant", "ok"), ("user", "[c]two")],
}


class Family(NamedTuple):
    """One family as the server has it, less the process that runs its processor."""

    processor: ModelProcessor
    pool: TokenizerPool
    media: ChatMedia
    folder: Path

    def conversation_media(self, pictures: Sequence[Image.Image]) -> ConversationMedia:
        made = []
        for number, one in enumerate(pictures):
            inputs = self.processor.image(one, {}, alone=len(pictures) == 1)
            written = self.processor.written["image"]
            digest = bytes([number]) * 16
            made.append(ProcessedMedia("image", digest, inputs.payload, written, inputs.replacement, inputs.grid))
        return ConversationMedia(made, [f"messages[0].content[{number}]" for number in range(len(made))])

    def prompt(self, messages: Sequence[Message], pictures: Sequence[Image.Image]) -> tuple[list[int], PlacedMedia]:
        return self.written(messages, self.conversation_media(pictures))

    def written(self, messages: Sequence[Message], media: ConversationMedia) -> tuple[list[int], PlacedMedia]:
        text = media.text
        tokens = asyncio.run(
            self.pool.render_chat(messages, add_generation_prompt=True, add_special_tokens=True, media=text)
        )
        order = [] if text is None else text.order
        return tokens, self.media.place(tokens, media, order, self.pool.tokenizer)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    kept: dict[str, Family] = {}

    def make(name: str) -> Family:
        if name not in kept:
            folder = tmp_path_factory.mktemp(name)
            {**PROCESSED, **LAID_OUT}[name](folder)
            kept[name] = family_in(folder)
        return kept[name]

    return make


def family_in(folder: Path) -> Family:
    spec = spec_in(folder)
    assert spec is not None
    return Family(ModelProcessor(folder), TokenizerPool(load_tokenizer(folder)), open_media(folder, spec), folder)


def parts_of(text: str) -> list[str]:
    """Texts, and names of pictures in brackets."""
    return [piece for piece in text.replace("[", "\0[").replace("]", "]\0").split("\0") if piece]


def ours(conversation: Sequence[tuple[str, str]]) -> tuple[list[Message], list[Image.Image]]:
    messages, pictures = [], []
    for role, text in conversation:
        content = []
        for piece in parts_of(text):
            if piece.startswith("["):
                pictures.append(SEEN[piece[1:-1]])
                content.append({"type": "image"})
            else:
                content.append({"type": "text", "text": piece})
        messages.append({"role": role, "content": content})
    return messages, pictures


def reference(family: Family, conversation: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What transformers makes of it: ``input_ids`` and tensors."""
    messages = []
    for role, text in conversation:
        content = [
            {"type": "image", "image": SEEN[piece[1:-1]]} if piece.startswith("[") else {"type": "text", "text": piece}
            for piece in parts_of(text)
        ]
        messages.append({"role": role, "content": content})
    found: dict[str, Any] = family.processor._processor.apply_chat_template(
        messages,
        chat_template=family.pool.tokenizer.template_source,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="np",
    )
    return found


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", PROCESSED)
def test_prompts_are_those_of_transformers(name: str, conversation: str, family: Callable[[str], Family]) -> None:
    one = family(name)
    messages, pictures = ours(CONVERSATIONS[conversation])
    tokens, placed = one.prompt(messages, pictures)
    assert tokens == reference(one, CONVERSATIONS[conversation])["input_ids"][0].tolist()
    ids = set(one.media._ids.values())
    assert len(placed.spans) == len(pictures)
    own = ids | one.media._marks
    ends = 0
    for span in placed.spans:
        assert span.start >= ends, "they follow each other"
        ends = span.start + span.length
        assert tokens[span.start] in own
        assert tokens[ends - 1] in own
        of_runs = [token for first, end in span.runs for token in tokens[span.start + first : span.start + end]]
        within = tokens[span.start : ends]
        assert of_runs == ([] if own.issuperset(within) else [token for token in within if token in own])
    stand_for = [token for token in tokens if token in ids]
    assert placed.tokens == ({"image": len(stand_for)} if pictures else {})
    assert sum(token in ids for span in placed.spans for token in tokens[span.start : span.start + span.length]) == len(
        stand_for
    )


def test_a_medium_of_which_the_model_makes_nothing_is_refused_by_its_field(family: Callable[[str], Family]) -> None:
    one = family("gemma3")
    media = one.conversation_media([picture(8, 8)])
    nothing = ConversationMedia([replace(media.made[0], replacement="")], media.fields)
    with pytest.raises(BadRequest, match="makes nothing of it") as refused:
        one.media.place([1, 2], nothing, ["image"], one.pool.tokenizer)
    assert refused.value.param == "messages[0].content[0]"


def test_a_prompt_of_paligemmas_is_its_pictures_and_a_text_between_marks(family: Callable[[str], Family]) -> None:
    one = family("paligemma")
    for seen in ("a", "ab"):
        messages, pictures = ours([("user", f"{''.join(f'[{each}]' for each in seen)}caption en")])
        tokens, placed = one.prompt(messages, pictures)
        found = one.processor._processor(pictures, "<image>" * len(pictures) + "caption en", return_tensors="np")
        assert tokens == found["input_ids"][0].tolist()
        assert [span.length for span in placed.spans] == [16] * len(pictures)


def test_a_prompt_of_blip_2_is_its_picture_before_the_text_as_its_processor_writes_it(
    family: Callable[[str], Family],
) -> None:
    one = family("blip2")
    theirs = transformers.Blip2Processor(
        one.processor._processor.image_processor, one.processor._processor.tokenizer, num_query_tokens=5
    )
    messages, pictures = ours([("user", "[a]Question: what? Answer:")])
    tokens, placed = one.prompt(messages, pictures)
    assert tokens == theirs(pictures, f"{BOS}Question: what? Answer:")["input_ids"][0]
    assert [(span.start, span.length) for span in placed.spans] == [(0, 5)]


@pytest.mark.parametrize("seen", "abc")
def test_a_prompt_of_fuyu_is_the_picture_and_the_text_that_its_processor_writes(
    seen: str, family: Callable[[str], Family]
) -> None:
    one = family("fuyu")
    own = one.processor._processor.image_processor
    images = transformers.FuyuImageProcessorPil(size=own.size, patch_size=own.patch_size)
    cut = images.patchify_image  # of arrays, where its processor gives it tensors
    images.patchify_image = lambda image, patch_size: torch.from_numpy(cut(image.numpy(), patch_size))
    theirs = transformers.FuyuProcessor(images, transformers.AutoTokenizer.from_pretrained(one.folder))
    theirs._check_special_mm_tokens = lambda *_, **_named: None  # it drops the first, the published tokenizer's space
    messages, pictures = ours([("user", f"[{seen}]What is this?")])
    tokens, placed = one.prompt(messages, pictures)
    found = theirs(text=" What is this?", images=pictures, return_legacy_image_output=False)
    assert tokens == [theirs.image_token_id, *found["input_ids"][0].tolist()]
    made = load(one.processor.image(pictures[0], {}, alone=True).payload)["pixel_values"]
    assert placed.tokens == {"image": len(made)}
    np.testing.assert_allclose(made, np.asarray(found["pixel_values"], np.float32), atol=1e-6)


def test_a_prompt_of_got_ocr_is_the_one_that_its_processor_writes(family: Callable[[str], Family]) -> None:
    one = family("got_ocr2")
    theirs = transformers.GotOcr2Processor(one.processor._processor.image_processor, one.processor._processor.tokenizer)
    messages, pictures = ours([("user", "[a] OCR with format: ")])
    tokens, placed = one.prompt(messages, pictures)
    found = theirs(pictures, format=True, num_image_tokens=16, return_tensors="np")
    assert tokens == found["input_ids"][0].tolist()
    assert placed.tokens == {"image": 16}
    messages, pictures = ours([("user", "[a][b]OCR: "), ("assistant", "a"), ("user", "[c]OCR: ")])
    _, placed = one.prompt(messages, pictures)
    assert [span.length for span in placed.spans] == [16] * 3


def test_a_prompt_of_chameleon_ends_with_the_separator_that_its_processor_writes(tmp_path: Path) -> None:
    LAID_OUT["chameleon"](tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sep_token": "<|im_end|>"}))
    one = family_in(tmp_path)
    made = one.processor._processor
    theirs = transformers.ChameleonProcessor(made.image_processor, made.tokenizer, image_seq_length=16)
    messages, pictures = ours([("user", "[a]What is [b]this?")])
    tokens, placed = one.prompt(messages, pictures)
    found = theirs(pictures, f"{BOS}<image>What is <image>this?", return_tensors="np")
    assert tokens == found["input_ids"][0].tolist()
    assert placed.tokens == {"image": 32}


@pytest.mark.parametrize(
    "text", ["[a]What is this?", "See [b]", "[a][b]Compare [c]them.", "[c] [a]\n[b]<x>", "[b]<|im_end|>a"]
)
def test_pictures_of_idefics2_share_marks_and_are_apart_from_words(text: str, family: Callable[[str], Family]) -> None:
    one = family("idefics2")
    messages, pictures = ours([("user", text)])
    tokens, _ = one.prompt(messages, pictures)
    written = "".join("<image>" if piece.startswith("[") else piece for piece in parts_of(text))
    start = "<|im_start|>User:" + ("" if text.startswith("[") else " ")
    theirs = transformers.Idefics2Processor(
        one.processor._processor.image_processor, one.processor._processor.tokenizer, image_seq_len=4
    )
    found = theirs(pictures, f"{start}{written}<end_of_utterance>\nAssistant:", return_tensors="np")
    assert tokens == found["input_ids"][0].tolist()


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [("minicpmv4_6", "V4_6", "16x"), ("minicpmv4_7", "V4_7", "16x"), ("minicpm_ocr", "Ocr", "4x")],
)
def test_pictures_of_minicpm_are_numbered_and_their_slices_stand_behind_them(
    name: str, kind: str, mode: str, family: Callable[[str], Family]
) -> None:
    one = family(name)
    whole = getattr(transformers, f"MiniCPM{kind}Processor")
    like = SimpleNamespace(slice_mode=True, downsample_mode=mode)
    made = type(whole.__name__, (whole,), {"check_argument_for_proper_class": lambda *_: None})
    theirs = made(one.processor._processor.image_processor, like, one.processor._processor.tokenizer)
    messages, pictures = ours([("user", "[a][b]Compare [c]them.")])
    tokens, placed = one.prompt(messages, pictures)
    pad = "<|image_pad|>\n"
    text = f"<|im_start|>user\n{pad}{pad}Compare {pad}them.<|im_end|>\n<|im_start|>assistant\n"
    assert tokens == theirs(pictures, text, return_tensors="np")["input_ids"][0].tolist()
    assert len(placed.spans) == 3
    assert placed.spans[1].length > placed.tokens["image"] / 3, "one has slices"


def _theirs_of_nemotron(one: Family) -> Any:
    kind = transformers.NemotronH_Omni_Reasoning_V3Processor
    made = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    video = SimpleNamespace(model_input_names=[], patch_size=4, downsample_ratio=0.5)
    sounds = transformers.ParakeetFeatureExtractor(feature_size=8)
    tokenizer = transformers.AutoTokenizer.from_pretrained(one.folder)
    return made(one.processor._processor.image_processor, video, tokenizer, sounds)


def test_pictures_of_nemotron_3_nano_omni_are_those_of_transformers_processor(family: Callable[[str], Family]) -> None:
    one = family("nemotron_omni")
    messages, pictures = ours([("user", "[a][b]Compare [c]them.")])
    tokens, placed = one.prompt(messages, pictures)
    text = "<|im_start|>user\n<image><image>Compare <image>them.<|im_end|>\n<|im_start|>assistant\n"
    found = _theirs_of_nemotron(one)(pictures, text, return_tensors="np")
    assert tokens == found["input_ids"][0].tolist()
    assert placed.tokens == {"image": int(found["image_grid_hw"].prod(-1).sum()) // 4}


def test_a_video_of_nemotron_3_nano_omni_is_a_picture_of_each_two_frames_behind_their_times(
    family: Callable[[str], Family],
) -> None:
    one = family("nemotron_omni")
    frames, facts = np.zeros((3, 12, 20, 3), np.uint8), VideoFacts(90, 29.97, 20, 12)
    found = one.processor.video(DecodedVideo(frames, [0, 45, 89], facts))
    stated = SimpleNamespace(fps=29.97, frames_indices=[0, 45, 89])
    pairs = np.zeros((1, 2, 3, 4 * 4, 6 * 4))  # as transformers arranges them
    given = {"num_frames": [3], "video_metadata": [stated], "pixel_values_videos": pairs}
    expected = _theirs_of_nemotron(one).replace_video_token(given, 0)
    assert found.replacement == expected
    assert load(bytes(found.payload))["pixel_values_videos"].shape == (3, 3, 4 * 4, 6 * 4)


@pytest.mark.parametrize("seconds", [0.021, 0.5, 2.345])
def test_a_sound_of_nemotron_3_nano_omni_has_the_features_of_transformers(
    seconds: float, family: Callable[[str], Family]
) -> None:
    one = family("nemotron_omni")
    heard = np.sin(np.arange(int(seconds * 16_000)) / 7).astype(np.float32)
    heard *= np.linspace(0.1, 1, len(heard), dtype=np.float32)
    found = one.processor.audio(heard)
    features, mask, (count,) = _theirs_of_nemotron(one)._process_audio([heard], {})
    tensors = load(bytes(found.payload))
    assert tensors["input_features_mask"].tolist() == mask.tolist()
    assert tensors["input_features"] == pytest.approx(features.numpy(), abs=2e-3), "by numpy, and there by torch"
    assert found.replacement == f"<so_start>{'<so_embedding>' * count}<so_end>"


def test_a_video_of_molmo_2_is_squares_behind_their_times(family: Callable[[str], Family]) -> None:
    one = family("molmo2")
    facts = VideoFacts(90, 29.97, 20, 12)
    chosen = one.processor.choose_frames({})(facts)
    assert chosen == [0, 15, 30, 45, 60, 75], "two a second, from the first on"
    assert len(one.processor.choose_frames({})(VideoFacts(9000, 30.0, 20, 12))) == 64
    assert one.processor.choose_frames({"fps": 1.0})(facts) == [0, 30, 60]
    found = one.processor.video(DecodedVideo(np.zeros((2, 12, 20, 3), np.uint8), [0, 45], facts))
    frame = f"<frame_start>{'<im_patch>' * 4}<frame_end>"
    assert found.replacement == f"0.0 {frame} 1.5 {frame}"
    tensors = load(bytes(found.payload))
    assert tensors["video_grids"].tolist() == [[2, 2, 2]]
    assert tensors["pixel_values_videos"].shape == (2, 16, 48)
    assert tensors["video_token_pooling"].max() == 31


def test_a_video_of_perception_lm_is_frames_of_one_tile(family: Callable[[str], Family]) -> None:
    one = family("perception_lm")
    found = one.processor.video(DecodedVideo(np.zeros((3, 12, 20, 3), np.uint8), [0, 1, 2], VideoFacts(3, 1.0, 20, 12)))
    assert found.replacement == "<video>" * 12
    assert load(bytes(found.payload))["pixel_values"].shape == (1, 3, 3, 16, 16)


def test_pictures_of_minicpm_that_are_enlarged_by_their_glyphs_are_refused() -> None:
    with pytest.raises(ValueError, match="small_image_upsize is 'adaptive', expected 'always'"):
        MiniCPMOcrImages(small_image_upsize="adaptive")


def test_a_picture_of_mistrals_is_rows_that_end(family: Callable[[str], Family]) -> None:
    """Its processor is our own: transformers' cannot be imported without torchvision."""
    found = family("mistral3").processor.image(picture(32, 24), {}, alone=True)
    assert found.replacement == ("[IMG]" * 4 + "[IMG_BREAK]") * 2 + "[IMG]" * 4 + "[IMG_END]"


def test_pictures_that_share_a_conversation_are_seen_as_transformers_shows_them(
    family: Callable[[str], Family],
) -> None:
    one = family("llava_onevision")
    media = one.conversation_media([SEEN["a"], SEEN["b"]])
    found = reference(one, [("user", "[a][b]?")])
    for index, made in enumerate(media.made):
        assert (load(bytes(made.payload))["pixel_values"][0] == found["pixel_values"][index]).all()


def test_a_template_that_prints_content_gets_the_placeholder_in_front_of_the_text(tmp_path: Path) -> None:
    PROCESSED["qwen2_5_vl"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    one = family_in(tmp_path)
    messages, pictures = ours([("user", "hi [a]there")])
    tokens, placed = one.prompt(messages, pictures)
    text = asyncio.run(one.pool.decode(tokens, skip_special_tokens=False))
    assert text == "user: " + "<|image_pad|>" * placed.tokens["image"] + "\nhi \nthere\n"


def test_a_template_that_knows_no_videos_gets_the_placeholder_where_one_stands(
    family: Callable[[str], Family],
) -> None:
    """The text is transformers' own, which replaces SmolVLM's template by one that knows videos."""
    one = family("smolvlm")
    inputs = one.processor.video(DecodedVideo(np.zeros((2, 8, 8, 3), np.uint8), [0, 1], VideoFacts(2, 1.0, 8, 8)))
    made = ProcessedMedia("video", bytes(16), inputs.payload, "<video>", inputs.replacement, None)
    text = ConversationMedia([made]).text
    content = [{"type": "text", "text": "See "}, {"type": "video"}, {"type": "text", "text": "?"}]
    render = one.pool.render_chat([{"role": "user", "content": content}], add_special_tokens=True, media=text)
    rendered = asyncio.run(one.pool.decode(asyncio.run(render), skip_special_tokens=False))
    assert rendered == f"<|im_start|>User: See {inputs.replacement}?<end_of_utterance>\n"


def test_each_frame_of_cosmos_3_edge_has_the_marks_that_a_template_writes_around_a_video(
    family: Callable[[str], Family],
) -> None:
    one = family("cosmos3_edge")
    processor = one.processor._processor
    inputs = one.processor.video(DecodedVideo(np.zeros((2, 8, 8, 3), np.uint8), [0, 3], VideoFacts(4, 2.0, 8, 8)))
    made = ProcessedMedia("video", bytes(16), inputs.payload, one.processor.written["video"], inputs.replacement, None)
    content = [{"type": "text", "text": "See "}, {"type": "video"}]
    render = one.pool.render_chat([{"role": "user", "content": content}], media=ConversationMedia([made]).text)
    rendered = asyncio.run(one.pool.decode(asyncio.run(render), skip_special_tokens=False))
    written = "<|im_start|>user\nSee <|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
    (expected,), _ = processor.get_text_with_replacements([written], videos_replacements=[inputs.replacement])
    assert rendered == expected
    assert [piece[-11:] for piece in expected.split("><|vision_start|>")[:-1]] == ["0.0 seconds", "1.5 seconds"]


@pytest.mark.parametrize(
    ("conversation", "why"),
    [
        ([("user", "<|image_pad|>[a]")], "holds `<|image_pad|>` 2 times"),
        ([("system", "you"), ("assistant", "<|image_pad|>"), ("user", "[a]")], "holds `<|image_pad|>` 2 times"),
    ],
)
def test_a_placeholder_that_a_client_writes_is_refused(
    conversation: list[tuple[str, str]], why: str, family: Callable[[str], Family]
) -> None:
    messages, pictures = ours(conversation)
    with pytest.raises(TemplateError) as error:
        family("qwen2_5_vl").prompt(messages, pictures)
    assert why in str(error.value)


def test_a_placeholder_that_only_replacements_hold_is_refused_too(family: Callable[[str], Family]) -> None:
    messages, pictures = ours([("user", "<image_soft_token>[a]")])
    with pytest.raises(BadRequest, match="a text holds a token that stands for images"):
        family("gemma3").prompt(messages, pictures)


def test_without_media_a_placeholder_is_a_text_like_any_other(family: Callable[[str], Family]) -> None:
    tokens, placed = family("qwen2_5_vl").prompt(*ours([("user", "what is <|image_pad|>?")]))
    assert tokens
    assert placed == PlacedMedia()


def test_a_template_that_leaves_a_picture_out_is_told() -> None:
    text = MediaText({"image": "<image>"}, {"image": ["<image>" * 3]})
    with pytest.raises(TemplateError, match="writes `<image>` 0 times for 1 pieces of image input"):
        text.expand("nothing")


def test_a_prompt_that_is_cut_keeps_whole_pictures(family: Callable[[str], Family]) -> None:
    messages, pictures = ours([("user", "[a]one"), ("assistant", "ok"), ("user", "[c]two")])
    tokens, placed = family("qwen2_5_vl").prompt(messages, pictures)
    first, second = placed.spans
    assert placed.within(0, len(tokens)).spans == placed.spans
    behind = first.start + first.length
    assert [span.start for span in placed.within(behind, len(tokens)).spans] == [second.start - behind]
    assert placed.within(0, second.start).spans == [first]
    for begin, end in ((first.start + 1, len(tokens)), (0, second.start + 1)):
        with pytest.raises(BadRequest, match="cuts through"):
            placed.within(begin, end)
