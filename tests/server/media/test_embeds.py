"""Embeddings that clients bring themselves: which files of tensors are read, and what the model is given of them."""

import base64
import io
import zipfile
from collections.abc import Callable
from typing import Any, Final

import anyio
import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from safetensors.torch import save as save_torch

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.common.errors import BadRequest
from stentor.server.config.media import MediaConfig
from stentor.server.media.chat_media import ChatMedia
from stentor.server.media.collect import Accepted, collect_media
from stentor.server.media.embeds import dot, made_of_embeds
from stentor.server.media.parts import Embeds, MediaPart
from stentor.server.media.processed_cache import ProcessedMedia
from stentor.server.media.refusal import Refusal
from stentor.server.media.tensor_files import read_tensor

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
PLAIN = ProcessedMedia("image", b"", b"", "<image>", "<a><image><image><b>")
GRIDDED = ProcessedMedia("image", b"", b"", "<image>", "<image>", (1, 1, 1))


def told(data: bytes) -> str:
    return base64.b64encode(data).decode()


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def of_torch(values: torch.Tensor) -> bytes:
    return save_torch({"x": values})


def saved_by_torch(made: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(made, file, **options)
    return file.getvalue()


TENSOR: Final = torch.from_numpy(VALUES)


@pytest.mark.parametrize(
    "data",
    [
        npy(VALUES),
        npy(VALUES.astype(np.float16)),
        npy(VALUES.astype(np.float64)),
        save({"x": VALUES}),
        save({"x": VALUES}, {"made": "by hand"}),
        of_torch(TENSOR.half()),
        of_torch(TENSOR.bfloat16()),
        saved_by_torch(TENSOR),
        saved_by_torch(TENSOR, pickle_protocol=4),
        saved_by_torch(TENSOR.bfloat16()),
        saved_by_torch(torch.cat((TENSOR, TENSOR)).half()[3:]),
        saved_by_torch(torch.nn.Parameter(TENSOR.double())),
    ],
)
def test_a_tensor_of_safetensors_npy_or_torch_is_read(data: bytes) -> None:
    found = read_tensor(told(data), whole=False)
    assert found.dtype == np.float32
    assert np.array_equal(found, VALUES)


class _Runs:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (pytest.fail, ("a client's pickle was run",))


def deflated() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved_by_torch(TENSOR))) as archive, zipfile.ZipFile(file, "w", 8) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    return file.getvalue()


def many_entries() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(1500):
            archive.writestr(f"a/data/{number}", b"")
    return file.getvalue()


RUN: Final = b"c_pytest.outcomes\nfail\n(V" + b"a client's pickle was run\ntR."
"""The rest of a pickle that fails the test that reads it."""


def header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (saved_by_torch({"x": TENSOR}), "torch.save's file cannot be read: it holds more or other than a tensor"),
        (saved_by_torch(_Runs()), "it asks for NEWOBJ, which is more than tensors need"),
        (saved_by_torch(TENSOR.T), r"send `tensor\.contiguous\(\)`"),
        (saved_by_torch(TENSOR.long()), "the tensor is of I64; expected one of F32"),
        (saved_by_torch(TENSOR)[:-40], "cannot be read"),
        (saved_by_torch(TENSOR, _use_new_zipfile_serialization=False), "never read"),
        (deflated(), "is compressed or encrypted"),
        (many_entries(), "its list of entries is too long"),
        (b"PK\x03\x04" + bytes(99), "cannot be read: (File is not a zip file|its list of entries is too long)"),
        (b"\x80\x02" + RUN, "it is a pickle, which is never read; send base64 of a safetensors file"),
        (b"\x80\x05" + RUN, "never read"),
        (npy(np.array([_Runs()], dtype=object)), r"the tensor is of \|O; expected one of <f4"),
        (npy(VALUES)[:-4], r"a tensor of shape \[3, 4\] does not have 44 bytes"),
        (npy(VALUES).replace(b"(3, 4)", b"(9**9,"), "its .npy header cannot be read"),
        (npy(VALUES).replace(b"(3, 4), }", b"(3, 4444444444), }")[:-9], "cannot be read|does not have"),
        (npy(np.asfortranarray(VALUES)), "expected a tensor of numbers by rows"),
        (npy(VALUES.astype(">f4")), "the tensor is of >f4"),
        (npy(np.array(["a"])), "the tensor is of <U1"),
        (b"\x93NUMPY\x09\x00" + bytes(99), "its .npy header cannot be read"),
        (b"", "neither safetensors nor .npy"),
        (b"\xff" * 64, "neither safetensors nor .npy"),
        (header(b"[" * 4000), "does not describe one tensor"),
        (header(b"{}"), "does not describe one tensor"),
        (save({"x": VALUES, "y": VALUES}), "does not describe one tensor"),
        (save({"x": VALUES.astype(np.int64)}), "the tensor is of I64; expected one of F32, F16, BF16, F64"),
        (header(b'{"x":{"dtype":"F32","shape":[1,-4],"data_offsets":[0,0]}}'), "the tensor has no shape"),
        (header(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "does not lie where its header says"),
        (
            header(b'{"x":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}', bytes(4)),
            "does not have 4 bytes",
        ),
    ],
)
def test_whatever_else_comes_is_refused_and_never_run(data: bytes, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        read_tensor(told(data), whole=False)


def test_what_is_no_base64_is_refused() -> None:
    with pytest.raises(Refusal, match="it is no base64"):
        read_tensor("no base64!", whole=False)


@pytest.mark.parametrize("values", [VALUES, VALUES[None]])
def test_embeddings_stand_where_a_picture_of_as_many_would(values: Any) -> None:
    made = made_of_embeds(Embeds(told(npy(values))), 4, PLAIN, "<image>")
    assert made.replacement == "<a>" + "<image>" * 3 + "<b>"
    assert (made.modality, made.written, made.grid) == ("image", "<image>", None)
    assert np.array_equal(load(bytes(made.payload))["image_embeds"], VALUES)
    other = made_of_embeds(Embeds(told(npy(values + 1))), 4, PLAIN, "<image>")
    assert len({made.digest, other.digest}) == 2


def test_where_they_lie_is_told_beside_them() -> None:
    values = told(npy(np.zeros((6, 4), np.float32)))
    grid = told(save({"g": np.array([[1, 4, 6]])}))
    made = made_of_embeds(Embeds(values, grid), 4, GRIDDED, "<image>")
    assert (made.grid, made.replacement) == ((1, 2, 3), "<image>" * 6)
    wrong = told(npy(np.array([1, 4, 5])))
    for given, why in (
        ("", "give `image_grid_thw`"),
        (wrong, "1 x 4 x 5 is not that of 6"),
        (values, "expected whole"),
    ):
        with pytest.raises(Refusal, match=why):
            made_of_embeds(Embeds(values, given), 4, GRIDDED, "<image>")


@pytest.mark.parametrize(
    ("values", "sample", "why"),
    [
        (VALUES[:, :3], PLAIN, r"has shape \[3, 3\]; the model takes \[embeddings, 4\]"),
        (VALUES[:0], PLAIN, r"has shape \[0, 4\]"),
        (np.full((3, 4), np.inf, np.float32), PLAIN, "not finite"),
        (VALUES, ProcessedMedia("image", b"", b"", "<image>", "<image>\n<image>"), "of several parts"),
    ],
)
def test_what_the_model_cannot_take_is_refused(values: Any, sample: ProcessedMedia, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        made_of_embeds(Embeds(told(npy(values))), 4, sample, "<image>")


def test_any_picture_will_do_to_see_what_a_processor_writes() -> None:
    assert dot().startswith(b"\x89PNG")


def test_they_are_taken_where_the_operator_has_opened_them() -> None:
    spec = MediaSpec({"image": 5})
    part = {"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_grid_thw": "BBBB"}}
    messages = [{"role": "user", "content": [part]}]
    told, (found,) = collect_media(messages, Accepted.of(spec, MediaConfig(mm_embeds=True)))
    assert told[0]["content"] == [{"type": "image"}]
    assert found.embeds == Embeds("AAAA", "BBBB")
    assert found.param == "messages[0].content[0].image_embeds.image_embeds"
    with pytest.raises(BadRequest, match="--enable-mm-embeds") as refused:
        collect_media(messages, Accepted.of(spec, MediaConfig()))
    assert refused.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("spec", "hidden"), [(MediaSpec({"image": 5}), 0), (MediaSpec({"image": 5}, layers=(1, 2)), 8)]
)
def test_a_model_that_reads_more_of_a_picture_takes_none(spec: MediaSpec, hidden: int) -> None:
    """Llama 3.2 Vision, whose layers attend to pictures, and models that add its features to several layers."""
    unused: Any = object()
    media = ChatMedia(unused, unused, unused, spec, hidden)
    part = MediaPart("image", "", "messages[0].content[0]", embeds=Embeds("AAAA", ""))
    with pytest.raises(BadRequest, match="takes more of a picture than its embeddings") as refused:
        anyio.run(media._take, part, Embeds("AAAA", ""), None, unused)
    assert refused.value.param == "messages[0].content[0]"
