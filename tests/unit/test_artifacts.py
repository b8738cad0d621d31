"""Artifact URI -> path and digest: the same content has the same digest, and every failure says what to do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import artifacts
from registry.artifacts import Artifact, resolve
from registry.errors import ArtifactError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that is an artifact."""
    return write(tmp_path / "model", {"model.onnx": "weights", "data/a.bin": "a", "data/b.bin": "bb"})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with packages, as on ``sys.path``; running their code fails."""
    site = write(
        tmp_path / "site",
        {
            "net_of_pkg/__init__.py": "raise RuntimeError('imported')",
            "net_of_pkg/models/net.onnx": "weights",
            "net_of_pkg/with space.onnx": "weights",
            "single_module.py": "raise RuntimeError('imported')",
            "net_of_pkg-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: the-net\nVersion: 1\n",
            "net_of_pkg-1.dist-info/top_level.txt": "net_of_pkg",
            "spread/one/a.onnx": "a",
            "../site2/spread/two/b.onnx": "b",
        },
    )
    monkeypatch.setattr(sys, "path", [str(site), str(tmp_path / "site2"), *sys.path])
    yield site
    assert "net_of_pkg" not in sys.modules


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def refusal(uri: str | Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        resolve(str(uri))
    return str(caught.value)


# --- digests ----------------------------------------------------------------------------------------------------------


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


# --- links ------------------------------------------------------------------------------------------------------------


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


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_what_does_not_exist_is_told_with_the_part_that_does(model: Path) -> None:
    told = refusal(model / "deep" / "net.onnx")
    assert f"{model}/deep/net.onnx does not exist (the last part that does is {model})" in told
    assert "does not exist" in refusal(model / "model.onnx" / "x")


def test_a_relative_path_is_told_and_found_as_an_absolute_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert resolve("data/../data/a.bin").path == f"{model}/data/a.bin"
    assert resolve(".").path == str(model)
    assert f"{model}/b.bin does not exist" in refusal("b.bin")


def test_the_home_folder_may_be_written_as_a_tilde(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model))
    assert resolve("~/model.onnx").path == f"{model}/model.onnx"
    assert "no such user" in refusal("~nobody-known/model.onnx")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    assert "has no files: if it is still being copied, wait" in refusal(tmp_path / "model")


def test_a_folder_with_too_many_files_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 2)
    assert f"folder {model} has more than 2 files: name the folder of one model" in refusal(model)


def test_a_socket_is_refused_by_its_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        assert f"{model}/sock is a socket, and an artifact consists of files: remove it" in refusal(model)
        assert f"{model}/sock is a socket, and an artifact is a file or a folder" in refusal(model / "sock")


def test_a_pipe_is_refused_and_not_waited_for(model: Path) -> None:
    os.mkfifo(model / "pipe")
    assert f"{model}/pipe is a named pipe" in refusal(model)


@pytest.mark.parametrize("name", ["model.onnx", "data"])
def test_what_may_not_be_read_is_told_with_the_command_that_allows_it(
    model: Path, name: str, unprivileged_user: Callable[[], None]
) -> None:
    (model / name).chmod(0)
    unprivileged_user()
    assert f"{model}/{name} is not readable for this user" in refusal(model)


@pytest.fixture
def unprivileged_user(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Becomes, when called, a user whom modes bind, and who can reach the test's folder."""
    user = os.geteuid()

    def become() -> None:
        if user == 0:
            for folder in [tmp_path, *tmp_path.parents][:3]:
                folder.chmod(folder.stat().st_mode | 0o011)
            os.seteuid(65534)

    yield become
    os.seteuid(user)
    for name in ("model/model.onnx", "model/data"):
        (tmp_path / name).chmod(0o700)


def test_a_file_that_grows_while_it_is_read_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = model / "model.onnx"
    real = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        """Somebody appends between the first look and the last."""
        found = real(descriptor)
        with growing.open("a") as file:
            file.write("more")
        return found

    monkeypatch.setattr(os, "fstat", grow)
    assert f"file {growing} changed while it was read: wait until it is copied" in refusal(growing)


def test_a_name_that_is_not_utf_8_is_refused(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff.bin")).write_text("x")
    assert "is not valid UTF-8: rename" in refusal(model)
    assert "is not valid UTF-8: rename" in refusal(os.fsdecode(b"/models/\xff"))


# --- schemes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file://{}", "file://localhost{}", "FILE://{}", "{}"])
def test_a_file_uri_is_its_path(model: Path, form: str) -> None:
    assert resolve(form.format(model / "model.onnx")).path == f"{model}/model.onnx"


def test_a_file_uri_is_percent_decoded_and_a_path_is_not(tmp_path: Path) -> None:
    write(tmp_path, {"a b.onnx": "x", "a%20b.onnx": "yy"})
    assert resolve(f"file://{tmp_path}/a%20b.onnx").size_bytes == 1
    assert resolve(f"{tmp_path}/a%20b.onnx").size_bytes == 2


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("", "is empty: give a path, file:///path, or pkg://package/path/inside"),
        ("s3://bucket/model", "'s3' is not supported, give a path, file:///path, or pkg://package/path/inside"),
        ("HTTPS://host/model", "'https' is not supported"),
        ("file://", "is empty"),
        ("file://host/model", "names another machine, 'host'"),
        ("file://model.onnx", "names another machine, 'model.onnx': file:// takes three slashes"),
        ("file:///a%00b", "contains a NUL character"),
        ("a\0b", "contains a NUL character"),
        ("/" + "x" * 5000, "cannot be read (File name too long)"),
    ],
)
def test_what_is_no_artifact_is_told_with_what_is(uri: str, told: str) -> None:
    assert told in refusal(uri)


def test_a_package_s_file_is_found_without_running_its_code(installed: Path) -> None:
    assert resolve("pkg://net_of_pkg/models/net.onnx").path == f"{installed}/net_of_pkg/models/net.onnx"
    assert resolve("pkg://net_of_pkg.models/net.onnx").path == f"{installed}/net_of_pkg/models/net.onnx"
    assert resolve("pkg://net_of_pkg/models/../with%20space.onnx").path == f"{installed}/net_of_pkg/with space.onnx"
    assert resolve("pkg://net_of_pkg/models/").path == f"{installed}/net_of_pkg/models"
    assert resolve("pkg://net_of_pkg").path == f"{installed}/net_of_pkg"


def test_all_parts_of_a_namespace_package_are_searched(installed: Path) -> None:
    assert resolve("pkg://spread/one/a.onnx").path == f"{installed}/spread/one/a.onnx"
    assert resolve("pkg://spread.two/b.onnx").path == f"{installed}2/spread/two/b.onnx"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("pkg://", "is empty"),
        ("pkg:///etc/passwd", "'' is no import name"),
        ("pkg://net_of_pkg/../single_module.py", "leaves the package 'net_of_pkg'"),
        ("pkg://net_of_pkg/models/../../../etc/passwd", "leaves the package"),
        ("pkg://net_of_pkg/%2e%2e/single_module.py", "leaves the package"),
        ("pkg://net_of_pkg.models/../__init__.py", "leaves the package"),
        ("pkg://net_of_pkg//etc/passwd", "net_of_pkg/etc/passwd does not exist"),
        ("pkg://net_of_pkg/a%00b", "contains a NUL character"),
        ("pkg://../x", "'..' is no import name"),
        ("pkg://single_module/x", "'single_module' is a module without a folder: name a package"),
        ("pkg://sys/x", "'sys' is a module without a folder"),
        ("pkg://not_installed_here/x", "no package 'not_installed_here' is installed here: install what has it"),
        ("pkg://the-net/x", "is imported as 'net_of_pkg', so write pkg://net_of_pkg/..."),
        ("pkg://The_Net/x", "is imported as 'net_of_pkg'"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_is_not_in_a_package_is_told_with_the_mend(uri: str, told: str) -> None:
    assert told in refusal(uri)
