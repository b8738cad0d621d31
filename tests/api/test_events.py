"""The stream of events of a real server, and the command line that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from support import onnx_models
from support.admin import admin_client
from support.server import PATIENCE_S, Server, running
from support.shell import Shell


class Told(NamedTuple):
    """One event as it came."""

    id: str
    kind: str
    data: dict[str, Any]


class Following:
    """An open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[Told]:
        fields: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif "data" in fields:
                yield Told(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
                fields = {}

    def until(self, kind: str, **wanted: Any) -> list[Told]:
        """All events up to the first of that kind with those fields."""
        seen: list[Told] = []
        for told in self:
            seen.append(told)
            if told.kind == kind and wanted.items() <= told.data.items():
                return seen
        raise AssertionError(f"the stream ended without {kind} {wanted}: {seen}")


class Admin(NamedTuple):
    server: Server
    http: httpx.Client

    @contextmanager
    def follow(self, last: str = "") -> Iterator[Following]:
        headers = {"Last-Event-ID": last} if last else {}
        with self.http.stream("GET", "/events", headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            following = Following(response)
            assert next(following._lines) == ": following"
            yield following

    def register(self, model: str, **fields: Any) -> None:
        body = {"artifact": "echo:", **fields}
        answer = self.http.post(f"/models/{model}/versions", json=body, params={"wait": PATIENCE_S})
        assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    data = tmp_path_factory.mktemp("events-data")
    with running(data) as server, admin_client(server, data) as http:
        yield Admin(server, http)


def test_registering_a_model_is_told_from_its_trial_to_the_ready_version(admin: Admin) -> None:
    with admin.follow() as stream:
        admin.register("told")
        events = stream.until("state", state="ready")
    assert [(e.kind, e.data.get("state") or e.data.get("event") or e.data.get("stage")) for e in events] == [
        ("progress", "reading the model"),
        ("worker", "ready"),
        ("state", "loading"),
        ("progress", "reading the model"),
        ("worker", "ready"),
        ("state", "ready"),
    ]
    for event in events:
        assert (event.data["model"], event.data["version"]) == ("told", 1)
        assert event.data["id"] == event.id
        assert event.data["time"] > 1.7e9
    assert events[0].data["worker"].startswith("probe-")
    assert events[3].data["worker"] == "told:1-0"


def test_a_death_of_a_worker_and_what_follows_from_it_are_told(admin: Admin) -> None:
    admin.register("dies")
    with admin.follow() as stream:
        admin.server.worker("dies").kill()
        events = stream.until("state", state="ready", model="dies")
    told = [(e.kind, e.data.get("state") or e.data.get("event")) for e in events if e.kind != "progress"]
    assert ("worker", "died") in told
    assert ("state", "restarting") in told
    assert told[-2:] == [("worker", "ready"), ("state", "ready")]


def test_who_comes_back_with_the_last_id_misses_nothing(admin: Admin) -> None:
    with admin.follow() as stream:
        admin.register("first")
        last = stream.until("state", state="ready")[-1]
    admin.register("second")
    with admin.follow(last.id) as stream:
        events = stream.until("state", state="ready")
    assert {event.data["model"] for event in events} == {"second"}
    assert events[0].data["stage"] == "reading the model"


def test_following_needs_the_key_and_an_id_of_sensible_length(admin: Admin) -> None:
    bare = httpx.get(f"{admin.server.url}/admin/v1/events", trust_env=False)
    assert (bare.status_code, bare.headers["content-type"]) == (401, "application/problem+json")
    assert admin.http.get("/events", headers={"Last-Event-ID": "x" * 65}).status_code == 400


def test_a_stream_ends_when_the_server_stops_and_does_not_keep_it(tmp_path: Path) -> None:
    with running(tmp_path) as server, admin_client(server, tmp_path) as http:
        other = Admin(server, http)
        with other.follow() as stream:
            assert server.stop() == 0
            assert list(stream) == []
    assert "Cancel" not in server.log


def test_the_workers_tell_what_their_load_took(admin: Admin) -> None:
    admin.register("took", config={"parameters": {
        "fault_injection": {"string_value": "true"}, "load_bytes": {"string_value": str(32 << 20)}
    }})  # fmt: skip
    (worker,) = (w for w in admin.http.get("/workers").json()["workers"] if w["model"] == "took")
    load = worker["load"]
    assert load["total_s"] >= load["read_s"] > 0
    assert 28 << 20 < load["model_bytes"] < load["memory_bytes"] <= load["peak_bytes"]
    (shown,) = admin.http.get("/models/took/versions/1").json()["workers"]
    assert shown["load"] == load


# --- the command line ---


def test_a_command_that_waits_shows_each_stage_on_standard_error(shell: Shell) -> None:
    folder = onnx_models.save(onnx_models.add_one(), shell.home / "staged")
    done = shell("model", "register", "staged", "staged/model.onnx")
    assert re.fullmatch(r"registered staged:1 \(onnx, \d+ B\): ready\n", done.out), done.err
    assert done.stages() == [
        "staged:1, on trial: importing the framework (1 of 2)",
        "staged:1, on trial: reading the model (2 of 2)",
        "staged:1: importing the framework (1 of 2)",
        "staged:1: reading the model (2 of 2)",
    ]
    assert done.err.splitlines() == done.stages()
    shell("model", "unload", "staged:1")
    loaded = shell("model", "load", "staged:1", "--json")
    assert loaded.json()["state"] == "ready"
    assert loaded.stages() == done.stages()[2:]
    (row,) = (line for line in shell("worker", "list").out.splitlines() if line.startswith("staged:1-0"))
    assert re.search(r" [\d.]+ MiB +[\d.]+ [KM]?i?B +\d+\.\d\d s ", row), row
    assert re.search(r"loaded in \d+\.\d\d s, [\d.]+ MiB \(", shell("model", "show", "staged").out)
    assert folder.exists()


def test_the_devices_of_the_server_are_listed_or_why_there_are_none(shell: Shell, admin: Admin) -> None:
    answer = admin.http.get("/devices").json()
    assert bool(answer["devices"]) != bool(answer["reason"])
    listed = shell("device", "list")
    if answer["devices"]:
        assert answer["devices"][0]["uuid"] in listed.out
    else:
        assert listed.err == f"no GPU: {answer['reason']}\n"
    assert shell("device", "list", "--json").json() == answer["devices"]
