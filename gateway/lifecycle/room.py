"""What there is room for: the needs of versions, as far as they are known, beside what the machine has left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec

from backends.devices import wants_cuda
from backends.errors import LoadFailed
from backends.messages import LoadReport
from backends.spec import ModelSpec
from gateway.lifecycle import memory, policy
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.memory import Promise, Readings
from gateway.lifecycle.policy import Key, Shortage
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState
from gateway.modelconfig.parse import ConfigError, from_dict
from gateway.modelconfig.spec import placement
from gateway.placement import place
from gateway.placement.inventory import Inventory
from gateway.workers.replica import Replica
from registry.record import ModelVersion

_ON_THE_WAY = (VersionState.LOADING, VersionState.RESTARTING)


class Room:
    """Remembers what loads took, and says what is lacking for the next ones. ``read`` looks at the
    machine, ``inventory`` at its GPUs."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        reserve_bytes: int = 0,
        read: Callable[[], Readings] = memory.read,
        inventory: Callable[[], Inventory] = Inventory,
    ) -> None:
        self._catalog = catalog
        self._reserve_bytes = reserve_bytes
        self._read = read
        self.inventory = inventory
        self._peaks: dict[Key, int] = {}

    def record(self, key: Key, report: LoadReport) -> None:
        """A version was loaded, and took that."""
        self._peaks[key] = report.peak_bytes

    def shortage(self, desired: Mapping[Key, ModelVersion]) -> Shortage:
        """What is lacking now for the versions that could be loaded next."""
        waiting = frozenset(_key(served) for served in self._catalog.all() if served.waits_to_load)
        actual = {_key(served): served.state for served in self._catalog.all()}
        candidates = policy.candidates(desired.keys(), actual, waiting)
        if not candidates:
            return Shortage(waiting=waiting)
        available = memory.available_bytes(self._read(), self._promises())
        lacks = {
            key: text
            for key in candidates
            if (text := memory.lack(self._expected(desired[key]), available, self._reserve_bytes))
        }
        for key in candidates:
            lack = "" if key in lacks else self._place(_device(desired[key]), desired[key].size_bytes).lack
            lacks.update({key: lack} if lack else {})
        return Shortage(lacks, waiting, insists=self._reserve_bytes > 0)

    def placed(self, spec: ModelSpec, artifact_bytes: int) -> ModelSpec:
        """The specification with the device on which the model is loaded now."""
        return msgspec.structs.replace(spec, device=self._place(spec.device, artifact_bytes).device)

    def _place(self, wish: str, artifact_bytes: int) -> place.Placement:
        if not _is_gpu(wish):
            return place.Placement(wish, "")
        promised: Counter[str] = Counter()
        for served, replica in self._loading():
            if _is_gpu(replica.spec.device):
                promised[replica.spec.device] += place.expected_bytes(served.record.size_bytes)
        return place.place(wish, place.expected_bytes(artifact_bytes), self.inventory(), promised)

    def _expected(self, record: ModelVersion) -> int:
        key = (record.model, record.number)
        return memory.expected_bytes(record.framework, record.size_bytes, self._peaks.get(key))

    def _promises(self) -> list[Promise]:
        return [
            Promise(self._expected(served.record), memory.resident_bytes(replica.process.pid) if replica.process else 0)
            for served, replica in self._loading()
        ]

    def _loading(self) -> Iterator[tuple[Served, Replica]]:
        for served in self._catalog.all():
            if served.state in _ON_THE_WAY:
                yield from ((served, each) for each in served.replicas if not each.ready and not each.failed)


def _key(served: Served) -> Key:
    return served.record.model, served.record.number


def _device(record: ModelVersion) -> str:
    """Where its configuration wants it; one that makes no sense is told when it is loaded."""
    try:
        return placement(from_dict(record.config).instance_group)[1]
    except ConfigError:
        return "cpu"


def _is_gpu(device: str) -> bool:
    try:
        return wants_cuda(device)
    except LoadFailed:
        return False
