"""Artifacts and their digests: the same content has the same digest, whatever leads to it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import artifacts
from registry.artifacts import Artifact, resolve
from support.artifacts import refusal, write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that is an artifact."""
    return write(tmp_path / "model", {"model.onnx": "weights", "data/a.bin": "a", "data/b.bin": "bb"})


# --- digests ---------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_documented_manifest(model: Path) -> None:
    def entry(name: str, text: str) -> list[object]:
        return [name, len(text), hashlib.sha256(text.encode()).hexdigest()]

    write(model, {f"shards/{number}": "" for number in range(40)})  # no file system lists so many in order by chance
    shards = [entry(f"shards/{number}", "") for number in range(40)]
    files = [entry("data/a.bin", "a"), entry("data/b.bin", "bb"), entry("model.onnx", "weights"), *shards]
    manifest = sorted(files, key=lambda file: str(file[0]))
    text = json.dumps(manifest, separators=(",", ":"))
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert resolve(str(model)) == Artifact(str(model), digest, 10)


def test_a_copy_has_the_same_digest_whatever_its_times_and_modes(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, copy_function=shutil.copyfile)
    os.utime(copy / "model.onnx", (1, 1))
    (copy / "model.onnx").chmod(0o755)
    (copy / "empty").mkdir()
    assert resolve(str(copy)).digest == resolve(str(model)).digest


def test_a_file_and_a_folder_that_holds_only_it_have_the_same_digest(tmp_path: Path) -> None:
    write(tmp_path / "alone", {"model.onnx": "weights"})
    file, folder = resolve(str(tmp_path / "alone" / "model.onnx")), resolve(str(tmp_path / "alone"))
    assert (file.digest, file.size_bytes) == (folder.digest, folder.size_bytes)
    assert file.path == f"{folder.path}/model.onnx"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "model.onnx").write_text("Weights"),
        lambda model: (model / "model.onnx").rename(model / "other.onnx"),
        lambda model: (model / "data" / "a.bin").rename(model / "a.bin"),
        lambda model: (model / "data" / "a.bin").unlink(),
        lambda model: (model / "empty.txt").write_text(""),
    ],
    ids=["content", "name", "folder", "removed", "added"],
)
def test_every_change_of_content_changes_the_digest(model: Path, change: Callable[[Path], object]) -> None:
    before = resolve(str(model)).digest
    change(model)
    assert resolve(str(model)).digest != before


def test_a_large_file_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_CHUNK_BYTES", 1000)
    write(tmp_path, {"large.bin": "x" * 12_345})
    digest = hashlib.sha256(b"x" * 12_345).hexdigest()
    manifest = json.dumps([["large.bin", 12_345, digest]], separators=(",", ":"))
    found = resolve(str(tmp_path / "large.bin"))
    assert found.digest == f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"
    assert found.size_bytes == 12_345


@pytest.mark.parametrize(
    "name",
    [".git/HEAD", ".DS_Store", "data/.DS_Store", "model.onnx~", ".model.onnx.swp", "__pycache__/a.pyc", ".idea/x.xml"],
)
def test_droppings_of_tools_are_no_content(model: Path, name: str) -> None:
    before = resolve(str(model))
    write(model, {name: "whatever"})
    assert resolve(str(model)) == before


@pytest.mark.parametrize("name", [".hidden", ".gitattributes", "model.onnx.bak", "git", "a.swp"])
def test_nothing_else_is_left_out(model: Path, name: str) -> None:
    before = resolve(str(model))
    write(model, {name: "whatever"})
    assert resolve(str(model)).digest != before.digest


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."} and len(name.encode()) < 200
)


@given(tree=st.dictionaries(names, st.binary(max_size=50), min_size=1, max_size=4))
def test_names_and_contents_make_the_digest_and_nothing_else_does(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, bytes]
) -> None:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for folder, order in ((one, 1), (two, -1)):
        for name, content in list(tree.items())[::order]:
            (folder / name).write_bytes(content)
    (one / "same").write_bytes(b"")
    (two / "same").write_bytes(b"")
    assert resolve(str(one)).digest == resolve(str(two)).digest
    (two / "same").write_bytes(b"not")
    assert resolve(str(one)).digest != resolve(str(two)).digest


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_link_inside_the_folder_counts_as_what_it_points_to(model: Path, tmp_path: Path) -> None:
    (model / "link.onnx").symlink_to("model.onnx")
    (model / "same").symlink_to(model / "data")
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, symlinks=False)
    assert resolve(str(copy)).digest == resolve(str(model)).digest


def test_a_link_to_the_folder_is_the_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("model")
    assert resolve(str(tmp_path / "latest")) == resolve(str(model))


def test_a_link_to_a_file_keeps_the_name_that_was_given(model: Path, tmp_path: Path) -> None:
    (model / "model.onnx").rename(tmp_path / "blob")
    (model / "model.onnx").symlink_to(tmp_path / "blob")
    found = resolve(str(model / "model.onnx"))
    assert (found.path, found.size_bytes) == (str(model / "model.onnx"), 7)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside.bin", "/", "..", "../model-2/x.bin"])
def test_a_link_that_leaves_the_folder_is_refused(model: Path, target: str) -> None:
    write(model.parent, {"outside.bin": "x", "model-2/x.bin": "x"})
    (model / "data" / "link").symlink_to(model / target)
    told = refusal(model)
    assert f"link {model}/data/link leaves the artifact's folder" in told
    assert "cp -rL" in told


@pytest.mark.parametrize("target", ["missing.bin", "link", "model.onnx/x"])
def test_a_link_that_leads_nowhere_is_refused(model: Path, target: str) -> None:
    (model / "link").symlink_to(target)
    assert f"link {model}/link leads nowhere: restore {target}" in refusal(model)


@pytest.mark.parametrize("target", [".", "data", "data/.."])
def test_a_link_to_a_folder_above_it_is_refused(model: Path, target: str) -> None:
    (model / "data" / "again").symlink_to(model / target)
    assert f"link {model}/data/again leads back" in refusal(model)
