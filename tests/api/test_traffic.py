"""Splits, rules, aliases and rollbacks on a real server, as clients of every protocol see them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support import onnx_models
from support.admin import admin_client
from support.clients import PROTOCOLS, TRANSPORTS, Refused, floats, infer
from support.server import PATIENCE_S, Server, running
from support.shell import Shell

WAIT: Final = {"wait": PATIENCE_S}
_names = (f"model-{number}" for number in itertools.count())


class Model:
    """A model of echoes with versions 1, 2, ... on a server, and its administration."""

    def __init__(self, server: Server, http: httpx.Client, name: str) -> None:
        self.server = server
        self.http = http
        self.name = name

    def put(self, weights: dict[str, float] | None, status: int = 200, **fields: Any) -> Any:
        """Share requests anew; the answer's body. Where it is to be refused there is nothing to wait for."""
        wait = WAIT if status == 200 or fields.pop("wait", False) else {"wait": 0}
        response = self.http.put(f"/models/{self.name}/traffic", json={"weights": weights} | fields, params=wait)
        assert response.status_code == status, response.text
        return response.json()

    def call(self, method: str, path: str = "", status: int = 200, body: Any = None, **params: Any) -> Any:
        """Something else about the model."""
        response = self.http.request(method, f"/models/{self.name}{path}", json=body, params=params or None)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def ask(self, protocol: str = "rest", **more: Any) -> str:
        """The version that answers."""
        return infer(protocol, self.server, self.name, floats(1), **more).version

    def shares(self, count: int = 40, **more: Any) -> Counter[str]:
        """The versions that answer many requests."""
        return Counter(self.ask(**more) for _ in range(count))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traffic")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with running(data) as started:
        yield started


@pytest.fixture(scope="module")
def http(server: Server, data: Path) -> Iterator[httpx.Client]:
    with admin_client(server, data) as client:
        yield client


def three_versions(server: Server, http: httpx.Client) -> Model:
    """A new model with versions that run."""
    made = Model(server, http, next(_names))
    for _ in range(3):
        add_version(made)
    return made


@pytest.fixture(scope="module")
def shared(server: Server, http: httpx.Client) -> Model:
    return three_versions(server, http)


@pytest.fixture
def model(shared: Model) -> Model:
    """For tests that leave its versions as they are; without a split, though not without a history."""
    shared.put(None)
    return shared


@pytest.fixture
def own(server: Server, http: httpx.Client) -> Model:
    """For one test alone."""
    return three_versions(server, http)


def add_version(model: Model, **fields: Any) -> int:
    """One more version; its number."""
    body = {"artifact": "echo:", "config": faults()} | fields
    return int(model.call("POST", "/versions", 201, body, wait=PATIENCE_S)["version"])


def faults(**options: str) -> dict[str, Any]:
    """A configuration of the echo backend."""
    given = {"fault_injection": "true"} | options
    x, y = ({"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in "xy")
    parameters = {name: {"string_value": value} for name, value in given.items()}
    return {"input": [x], "output": [y], "parameters": parameters}


def unload(model: Model, number: int) -> None:
    model.call("POST", f"/versions/{number}/unload", wait=PATIENCE_S)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_without_a_split_the_greatest_version_answers(own: Model) -> None:
    assert own.call("GET", "/traffic")["revision"] == 0
    assert own.shares(5) == {"3": 5}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_to_one_version_holds_for_the_next_request_over_every_protocol(model: Model, protocol: str) -> None:
    for version in ("1", "2", "1"):
        model.put({version: 100})
        assert model.ask(protocol) == version


def test_requests_are_shared_and_the_answer_says_how(own: Model) -> None:
    info = own.put({"1": 3, "2": 1, "3": 0}, note="a try")
    assert info["revision"] == 1
    assert [(share["version"], share["percent"]) for share in info["shares"]] == [(1, 75), (2, 25), (3, 0)]
    assert (info["note"], info["author"]) == ("a try", "admin")
    assert own.call("GET", "/traffic") == info
    counts = own.shares(200)
    assert counts.keys() == {"1", "2"}
    assert 110 < counts["1"] < 190, "beyond 1 in 10^8"


def test_a_version_in_the_request_goes_before_the_split(model: Model) -> None:
    model.put({"1": 1})
    for protocol in TRANSPORTS:
        assert model.ask(protocol, version="2") == "2"


def test_new_versions_get_nothing_until_they_are_given_a_weight(own: Model) -> None:
    own.put({"1": 1})
    assert add_version(own) == 4
    assert own.shares(10) == {"1": 10}
    own.put(None)
    assert own.ask() == "4"


def test_metadata_and_readiness_are_those_of_the_version_with_most_weight(model: Model) -> None:
    model.put({"1": 90, "2": 10})
    url = f"{model.server.url}/v2/models/{model.name}"
    assert httpx.get(f"{url}/ready").status_code == 200
    assert httpx.get(url).json()["versions"] == ["1", "2", "3"]


# --- what keeps a client with its version ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_stays_with_its_version_whatever_the_protocol(model: Model, protocol: str) -> None:
    model.put({"1": 1, "2": 1, "3": 1}, sticky="header:X-User")
    users = [{"X-User": f"user-{number}"} for number in range(8)]
    places = [model.ask("rest", headers=user) for user in users]
    assert len(set(places)) > 1
    assert [model.ask(protocol, headers=user) for user in users] == places


def test_a_parameter_keeps_a_client_with_its_version(model: Model) -> None:
    model.put({"1": 1, "2": 1, "3": 1}, sticky="parameter:user")
    for number in range(6):
        answers = {model.ask(protocol, parameters={"user": number}) for protocol in TRANSPORTS for _ in range(3)}
        assert len(answers) == 1


def test_when_weights_move_only_those_clients_move_that_have_to(model: Model) -> None:
    model.put({"1": 50, "2": 50}, sticky="header:X-User")
    users = [{"X-User": f"user-{number}"} for number in range(40)]
    before = [model.ask(headers=user) for user in users]
    model.put({"1": 100, "2": 100, "3": 100}, sticky="header:X-User")
    after = [model.ask(headers=user) for user in users]
    assert all(new == "3" for old, new in zip(before, after, strict=True) if old != new)
    assert "3" in after


# --- rules and aliases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_header_may_decide(model: Model, protocol: str) -> None:
    model.put({"1": 1}, rules=[{"header": "X-Beta", "value": "yes", "version": 3}])
    assert model.ask(protocol, headers={"X-Beta": "yes"}) == "3"
    assert model.ask(protocol, headers={"X-Beta": "no"}) == "1"
    assert model.ask(protocol) == "1"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_alias_stands_for_a_version(model: Model, protocol: str) -> None:
    for version in (1, 2):
        answer = model.call("PUT", "/aliases/stable", body={"version": version})
        assert answer == {"aliases": {"stable": version}}
        assert model.ask(protocol, version="stable") == str(version)
    model.call("DELETE", "/aliases/stable")
    with pytest.raises(Refused) as refused:
        model.ask(protocol, version="stable")
    assert refused.value.meaning == "not found"


# --- what is not ready -----------------------------------------------------------------------------------------------


def test_a_version_is_loaded_before_it_gets_requests(model: Model) -> None:
    model.put({"2": 1})
    unload(model, 1)
    model.put({"1": 1})
    assert model.call("GET", "/versions/1")["state"] == "ready"
    assert model.ask() == "1"


def test_a_version_that_is_not_ready_in_time_gets_nothing_and_nothing_changes(own: Model) -> None:
    own.put({"1": 1})
    number = add_version(own, config=faults(load_delay_ms="3000"), deploy=False)
    assert "nothing was changed: it goes on loading" in own.put({"1": 1, str(number): 1}, 409)["detail"]
    assert own.call("GET", "/traffic")["revision"] == 1
    assert own.shares(5) == {"1": 5}


def test_a_version_that_fails_to_load_gets_nothing_and_nothing_changes(own: Model, tmp_path: Path) -> None:
    own.put({"1": 1})
    folder = onnx_models.save(onnx_models.add_one(("n",)), tmp_path / "model")
    number = add_version(own, artifact=str(folder), config=None, deploy=False)
    next(folder.glob("*.onnx")).write_bytes(b"changed since")
    assert "failed to load" in own.put({"1": 1, str(number): 1}, 409, wait=True)["detail"]
    assert own.call("GET", "/traffic")["revision"] == 1


def test_the_share_of_a_version_whose_worker_dies_falls_to_the_others(model: Model) -> None:
    model.put({"1": 1, "2": 1})
    with pytest.raises(Refused):
        model.ask(version="2", parameters={"crash": "exit"})
    assert model.shares(10).keys() <= {"1", "2"}


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_with_the_field(own: Model) -> None:
    assert "sum to 0" in own.put({"1": 0}, 400)["detail"]
    assert "weight is -1" in own.put({"1": -1, "2": 2}, 400)["detail"]
    assert "version is 9" in own.put({"9": 1}, 400)["detail"]
    assert "sticky is 'cookie'" in own.put({"1": 1}, 400, sticky="cookie")["detail"]
    assert "alias" in own.call("PUT", "/aliases/latest", 400, {"version": 1})["detail"]
    assert "no version 9" in own.call("PUT", "/aliases/a", 404, {"version": 9})["detail"]
    assert own.put({"x": 1}, 400)["title"] == "Bad Request"
    assert own.put({"1": 1}, 400, surprise=1)["title"] == "Bad Request"
    assert own.call("GET", "/traffic")["revision"] == 0


def test_who_expects_another_revision_changes_nothing(own: Model) -> None:
    own.put({"1": 1}, expected_revision=0)
    assert "has revision 1" in own.put({"2": 1}, 412, expected_revision=0)["detail"]
    assert "has revision 1" in own.call("POST", "/rollback", 412, {"expected_revision": 7})["detail"]
    assert own.ask() == "1"


def test_what_takes_traffic_stays(own: Model) -> None:
    own.put({"1": 1, "2": 1})
    assert "takes traffic" in own.call("POST", "/versions/1/unload", 409)["detail"]
    assert "in the traffic" in own.call("DELETE", "/versions/1", 409)["detail"]
    assert "is in service" in own.call("DELETE", "/versions/3", 409)["detail"]
    unload(own, 3)
    own.call("DELETE", "/versions/3", 204)
    own.call("GET", "/versions/3", 404)
    assert add_version(own) == 4


# --- rollback, history, audit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_after_a_rollback_no_request_reaches_the_bad_version(own: Model, protocol: str) -> None:
    own.put({"1": 1})
    own.put({"2": 1})
    assert own.ask(protocol) == "2"
    info = own.call("POST", "/rollback")
    assert (info["revision"], info["note"]) == (3, "rollback to revision 1")
    assert own.shares(20, protocol=protocol) == {"1": 20}


def test_a_rollback_loads_what_it_needs(own: Model) -> None:
    own.put({"1": 1})
    own.put({"2": 1})
    unload(own, 1)
    own.call("POST", "/rollback", body={"to": 1}, wait=PATIENCE_S)
    assert own.ask() == "1"


def test_a_forced_rollback_does_not_wait(own: Model) -> None:
    own.put({"1": 1})
    own.put({"2": 1})
    unload(own, 1)
    own.call("POST", "/rollback", body={"force": True})
    assert own.call("GET", "/traffic")["revision"] == 3
    own.server.wait(lambda: ready(own, 1), "version 1 to be loaded")
    assert own.ask() == "1"


def ready(model: Model, number: int) -> bool:
    return bool(model.call("GET", f"/versions/{number}")["state"] == "ready")


def test_the_first_rollback_of_a_model_without_a_split_goes_to_the_version_before(own: Model) -> None:
    assert own.ask() == "3"
    own.call("POST", "/rollback")
    assert own.ask() == "2"


def test_history_and_audit_tell_what_was_done(own: Model) -> None:
    own.put({"1": 1}, note="first")
    own.put({"2": 1})
    own.call("POST", "/rollback")
    revisions = own.call("GET", "/traffic/history")["revisions"]
    assert [revision["revision"] for revision in revisions] == [3, 2, 1]
    assert revisions[2]["note"] == "first"
    page = own.call("GET", "/traffic/history", limit=1, before=3)["revisions"]
    assert page == revisions[1:2]
    subject = f"model/{own.name}/traffic/2"
    (entry,) = own.http.get("/audit", params={"subject": subject}).json()["entries"]
    assert (entry["action"], entry["actor"]) == ("traffic.set", "admin")
    assert entry["before"]["arms"] == [{"version": 1, "weight": 1.0}]
    assert entry["after"]["arms"] == [{"version": 2, "weight": 1.0}]


def test_the_id_of_a_request_is_in_the_log_of_what_it_changed(model: Model) -> None:
    model.http.put(f"/models/{model.name}/aliases/a", json={"version": 1}, headers={"X-Request-Id": "r-42"})
    (entry,) = model.http.get("/audit", params={"subject": f"model/{model.name}/alias/a"}).json()["entries"]
    assert entry["request_id"] == "r-42"


def test_a_restart_keeps_the_split(tmp_path: Path) -> None:
    for start in range(2):
        with running(tmp_path) as server, admin_client(server, tmp_path) as http:
            model = Model(server, http, "m")
            if not start:
                for _ in range(2):
                    add_version(model)
                model.put({"1": 1})
            assert model.shares(5) == {"1": 5}


# --- command line ----------------------------------------------------------------------------------------------------


def test_the_command_line_does_all_of_it(shell: Shell) -> None:
    for _ in range(2):
        assert "ready" in shell("model", "register", "cli-split", "echo:").out
    assert "greatest version" in shell("traffic", "show", "cli-split").out
    out = shell("traffic", "set", "cli-split", "1=90", "2=10", "--sticky", "header:x-user", "--note", "try").out
    assert "revision 1, sticky by header:x-user" in out
    assert "90 %" in out
    shell("traffic", "set", "cli-split", "1=1", "--rule", "x-beta=yes:2", "--expect", "1")
    assert "has revision 2" in shell("traffic", "set", "cli-split", "2=1", "--expect", "1").failure()
    assert "revision 3" in shell("rollback", "cli-split").out
    history = shell("traffic", "history", "cli-split").out.splitlines()
    assert [line.split()[0] for line in history] == ["REVISION", "3", "2", "1"]
    assert "revision 4" in shell("rollback", "cli-split", "--to", "2").out
    shell("model", "alias", "cli-split", "stable", "1")
    assert json.loads(shell("model", "show", "cli-split", "--json").out)["aliases"] == {"stable": 1}
    assert "takes traffic" in shell("model", "unload", "cli-split:1").failure()
    assert "revision 5" in shell("traffic", "clear", "cli-split").out
    shell("model", "unload", "cli-split:1")
    assert "alias 'stable'" in shell("model", "delete", "cli-split:1", "--yes").failure()
    shell("model", "alias", "cli-split", "stable", "--remove")
    assert "deleted" in shell("model", "delete", "cli-split:1", "--yes").out


@pytest.mark.parametrize(
    "arguments",
    [("set", "m", "1"), ("set", "m", "a=1"), ("set", "m", "1=x"), ("set", "m", "1=nan"),
     ("set", "m", "1=1", "--rule", "x"), ("set", "m", "1=1", "--rule", "a=b:c"), ("set", "m", "1=1", "--shadow", "x"),
     ("set", "m")],
)  # fmt: skip
def test_slips_on_the_command_line_are_slips_of_usage(shell: Shell, arguments: tuple[str, ...]) -> None:
    done = shell("traffic", *arguments)
    assert done.code == 2
    assert "Usage" in done.err


def test_a_deletion_without_an_answer_deletes_nothing(shell: Shell) -> None:
    shell("model", "register", "cli-kept", "echo:", "--no-deploy")
    assert shell("model", "delete", "cli-kept:1").code != 0
    assert len(json.loads(shell("model", "show", "cli-kept", "--json").out)["versions"]) == 1


# --- shadows ---------------------------------------------------------------------------------------------------------


def shadows(model: Model) -> dict[int, Any]:
    return {entry["version"]: entry for entry in model.call("GET", "/traffic/shadows")["shadows"]}


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_shadow_gets_copies_and_its_answers_are_compared(own: Model, protocol: str) -> None:
    own.put({"1": 1}, shadows=[{"version": 2, "percent": 100}])
    for _ in range(20):
        assert own.ask(protocol) == "1"
    own.server.wait(lambda: shadows(own)[2]["equal"] == 20, "the copies to be compared")
    found = shadows(own)[2]
    assert (found["different"], found["failed"], found["dropped"]) == (0, 0, 0)
    assert found["original_ms"] > 0
    assert found["copy_ms"] > 0


def test_a_shadow_that_answers_something_else_or_fails_is_counted_and_harms_nobody(own: Model, tmp_path: Path) -> None:
    folder = onnx_models.save(onnx_models.add_one(("n",)), tmp_path / "model")
    other = add_version(own, artifact=str(folder), config=None)
    own.put({"1": 1}, shadows=[{"version": other, "percent": 100}, {"version": 2, "percent": 0}])
    for _ in range(5):
        assert infer("rest", own.server, own.name, floats(1)).outputs["y"].tolist() == [1]
    own.server.wait(lambda: shadows(own)[other]["different"] == 5, "the copies to be compared")
    own.put({"1": 1}, shadows=[{"version": 2, "percent": 100}])
    infer("rest", own.server, own.name, floats(1), parameters={"delay_ms": 1})
    own.server.wait(lambda: shadows(own)[2]["equal"] == 1, "the copy to be compared")


def test_copies_are_the_first_to_go(own: Model) -> None:
    """Each is counted, whether there was room for it or not."""
    slow = add_version(own)
    own.put({"1": 1}, shadows=[{"version": slow, "percent": 100}])
    for _ in range(40):
        infer("rest", own.server, own.name, floats(1), parameters={"delay_ms": 5})
    counted = ("equal", "different", "incomparable", "failed", "dropped")
    own.server.wait(lambda: sum(shadows(own)[slow][count] for count in counted) == 40, "every copy to be counted")


def test_a_request_for_a_version_has_no_copies(own: Model) -> None:
    own.put({"1": 1}, shadows=[{"version": 2, "percent": 100}])
    for _ in range(3):
        assert own.ask(version="1") == "1"
    own.ask()
    own.server.wait(lambda: shadows(own)[2]["equal"] == 1, "the copy of the last one")


# --- several gateways ------------------------------------------------------------------------------------------------


def test_a_gateway_follows_what_another_changes_in_their_registry(tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path}/one/registry.db")
    with (
        running(tmp_path / "one") as one,
        running(tmp_path / "other", arguments=database) as other,
        admin_client(one, tmp_path / "one") as http,
    ):
        here, there = Model(one, http, "m"), Model(other, http, "m")
        for version in ("1", "2"):
            add_version(here)
            here.put({version: 1})
            assert here.ask() == version, "here it holds at once"
            other.wait(partial(is_answering, there, version), "the other gateway to hear of it")
        here.call("POST", "/rollback")
        assert here.ask() == "1"
        other.wait(partial(is_answering, there, "1"), "the other gateway to hear of the rollback")


def is_answering(model: Model, version: str) -> bool:
    """Whether the version answers; there may be none yet."""
    try:
        return model.ask() == version
    except Refused:
        return False
