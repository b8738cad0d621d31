"""The URIs of artifacts: paths, ``file://`` and ``pkg://``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.artifacts import resolve
from support.artifacts import refusal, write


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
