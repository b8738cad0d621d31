"""Settings: which source counts, and what is said of a value that is not acceptable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backends.wire import MAX_PAYLOAD
from gateway.settings.client import ClientSettings, client_settings
from gateway.settings.errors import ConfigurationError
from gateway.settings.schema import Settings
from gateway.settings.sources import load, unknown_variables
from gateway.settings.urls import hide_password
from gateway.sizes import parse_size


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "tensorgate.toml"


def test_without_any_source_the_defaults_of_the_contract_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    made = load()
    assert (made.host, made.http_port, made.grpc_port) == ("127.0.0.1", 8000, 8001)
    assert made.data_dir == Path("/data/tensorgate")
    assert made.database == "sqlite:////data/tensorgate/registry.db"
    assert made.model_repository == ()
    assert made.max_body_bytes == 1 << 30 <= MAX_PAYLOAD


def test_a_relative_xdg_data_home_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("HOME", "/home/someone")
    assert load().data_dir == Path("/home/someone/.local/share/tensorgate")


@pytest.mark.parametrize(
    ("flag", "variable", "key", "expected"),
    [(1, "2", 3, 1), (None, "2", 3, 2), (None, "", 3, 3), (None, None, 3, 3), (None, None, None, 8000)],
)
def test_flags_come_before_environment_before_file_before_default(
    monkeypatch: pytest.MonkeyPatch, toml: Path, flag: int | None, variable: str | None, key: int | None, expected: int
) -> None:
    if variable is not None:
        monkeypatch.setenv("TENSORGATE_HTTP_PORT", variable)
    toml.write_text("" if key is None else f"http_port = {key}")
    assert load({"http_port": flag}, toml).http_port == expected


def test_settings_made_directly_read_neither_environment_nor_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORGATE_HTTP_PORT", "99")
    assert Settings().http_port == 8000


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().host = "elsewhere"


def test_the_database_follows_the_data_folder_and_may_be_named_apart(tmp_path: Path) -> None:
    made = load({"data_dir": tmp_path})
    assert made.database == f"sqlite:///{tmp_path}/registry.db"
    assert made.admin_key_path == tmp_path / "admin.key"
    apart = load({"data_dir": tmp_path, "database": f"sqlite:///{tmp_path}/else/r.db"})
    assert apart.admin_key_path == tmp_path / "else" / "admin.key"
    elsewhere = load({"data_dir": tmp_path, "database": "postgresql://host/db"})
    assert elsewhere.admin_key_path == tmp_path / "admin.key"


def test_folders_become_absolute_and_the_environment_separates_repositories_with_a_colon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("TENSORGATE_MODEL_REPOSITORY", f"models:~/more:{tmp_path}/models")
    assert load().model_repository == (tmp_path / "models", Path("/home/someone/more"))
    assert load({"model_repository": ["b"]}).model_repository == (tmp_path / "b",)


def test_interpreters_of_file_and_environment_are_joined(monkeypatch: pytest.MonkeyPatch, toml: Path) -> None:
    toml.write_text('[interpreters]\nonnx = "/file/python"\necho = "/file/python"')
    monkeypatch.setenv("TENSORGATE_INTERPRETERS__ONNX", "/environment/python")
    assert load({}, toml).interpreters == {"onnx": Path("/environment/python"), "echo": Path("/file/python")}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("http_port", "80a", "80a"),
        ("http_port", 65536, "less than or equal to 65535"),
        ("grpc_port", -1, "greater than or equal to 0"),
        ("grpc_port", 8000, "http_port is the same"),
        ("log_format", "xml", "'text' or 'json'"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("load_timeout_s", 0, "greater than 0"),
        ("load_timeout_s", "nan", "finite"),
        ("drain_timeout_s", "inf", "at most 86400"),
        ("heartbeat_timeout_s", 0.5, "beats every 1 s"),
        ("max_waiting", 0, "1 to 1000000"),
        ("max_json_bytes", "12 pounds", "such as 64MiB"),
        ("max_body_bytes", "-1", "such as 1GiB"),
        ("arena_bytes", "4KiB", "1MiB or more"),
        ("frontends", 2, "this release runs one frontend only"),
        ("database", "somewhere.db", "sqlite:////var/lib/tensorgate/registry.db"),
    ],
)
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_bad_value_is_answered_with_key_source_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, toml: Path, key: str, value: Any, said: str, source: str
) -> None:
    flags: dict[str, object] = {}
    place = {
        "flag": f"flag --{key.replace('_', '-')}",
        "environment": f"environment variable TENSORGATE_{key.upper()}",
        "file": f"file {toml}, key {key}",
    }[source]
    if source == "flag":
        flags[key] = value
    elif source == "environment":
        monkeypatch.setenv(f"TENSORGATE_{key.upper()}", str(value))
    toml.write_text(f"{key} = {value!r}" if source == "file" else "")
    with pytest.raises(ConfigurationError) as caught:
        load(flags, toml)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{key} = {value} ({place}): ")
    assert said in line
    assert str(Settings.model_fields[key].description) in line


def test_an_empty_host_is_refused_and_not_taken_for_every_address() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 character"):
        load({"host": ""})


@pytest.mark.parametrize(("path", "said"), [("~no_such_user/x", "no such user: ~no_such_user"), ("a\0b", "no NUL")])
def test_a_path_that_cannot_be_one_is_told(path: str, said: str) -> None:
    for key in ("data_dir", "model_repository"):
        with pytest.raises(ConfigurationError, match=said):
            load({key: [path] if key == "model_repository" else path})


def test_every_bad_value_is_told_at_once(toml: Path) -> None:
    toml.write_text("http_port = 'x'\nmax_waiting = 0\ndata_dir = 5")
    with pytest.raises(ConfigurationError) as caught:
        load({}, toml)
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["http_port", "data_dir", "max_waiting"]


def test_a_bad_database_url_is_told_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({"database": "Postgresql://user:secret@host/db"})
    assert "secret" not in str(caught.value)
    assert hide_password("postgresql://user:secret@host/db") == "postgresql://user:***@host/db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http_prot = 1", "unknown key 'http_prot' (did you mean 'http_port'?)"),
        ("quite_else = 1", "unknown key 'quite_else'. Keys: host, "),
        ("http_port =", "is not TOML"),
        ("[interpreters]\nonxn = '/x'", "'onxn' is no framework (did you mean 'onnx'?)"),
    ],
)
def test_a_slip_in_the_file_is_named(toml: Path, text: str, said: str) -> None:
    toml.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load({}, toml)
    assert str(toml) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        load({}, tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot read"):
        load({}, tmp_path / "binary.toml")
    with pytest.raises(ConfigurationError, match="cannot read"):
        load({}, tmp_path)


def test_interpreters_that_are_no_json_are_told_with_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORGATE_INTERPRETERS", "{onnx")
    with pytest.raises(ConfigurationError, match="TENSORGATE_INTERPRETERS__ONNX=/path/to/python"):
        load()


@pytest.mark.parametrize("host", ["192.0.2.7", "::", "models.example.org"])
def test_a_host_that_others_reach_needs_insecure_said_aloud(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure"):
        load({"host": host})
    assert load({"host": host, "insecure": True}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_a_loopback_host_needs_nothing_more(host: str) -> None:
    assert load({"host": host}).host == host


@given(st.integers(0, 1 << 20), st.sampled_from(["", "B", "KB", "kb", "KiB", "MB", "MiB", "gib"]), st.booleans())
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, spaced: bool) -> None:
    factor = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 10**6, "mib": 1 << 20, "gib": 1 << 30}[unit.lower()]
    assert parse_size(f"{number}{' ' if spaced and unit else ''}{unit}") == number * factor


@given(st.text().filter(lambda text: not text.strip().isdecimal()))
def test_a_size_that_is_not_understood_is_never_guessed(text: str) -> None:
    parsed = parse_size(text)
    assert parsed == text or (isinstance(parsed, int) and text.strip()[-1] in "bB")


def test_variables_that_nothing_reads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROT", "HTTP_PORT", "http_port", "URL", "API_KEY", "INTERPRETERS__ONNX", "ZZZ"):
        monkeypatch.setenv(f"TENSORGATE_{name}", "1")
    assert unknown_variables() == [
        "environment variable TENSORGATE_HTTP_PROT is read by nothing (did you mean 'TENSORGATE_HTTP_PORT'?)",
        "environment variable TENSORGATE_ZZZ is read by nothing",
    ]


def test_the_client_takes_a_flag_before_the_environment_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_settings() == ClientSettings("http://127.0.0.1:8000", "")
    monkeypatch.setenv("TENSORGATE_URL", "http://other:1/")
    monkeypatch.setenv("TENSORGATE_API_KEY", " key\n")
    assert client_settings() == ClientSettings("http://other:1", "key")
    assert client_settings("http://flag:2").url == "http://flag:2"
