"""Whether an artifact still is what was registered: a version is immutable."""

from __future__ import annotations

from registry.artifacts import resolve
from registry.errors import ArtifactError
from registry.record import ModelVersion


def trouble(record: ModelVersion) -> str:
    """Why the version's artifact cannot be loaded as what it was registered, and the mend; "" if it can.

    Reads all of the artifact, unless this process has done so and no file has changed since: call it in a thread.
    """
    if not record.digest.startswith("sha256:") or not record.size_bytes:
        return ""  # echo has no file
    try:
        found = resolve(record.artifact)
    except ArtifactError as error:
        return str(error)
    if found.digest == record.digest:
        return ""
    return (
        f"{record.artifact} has changed since it was registered ({record.digest} then, {found.digest} now); "
        "a version is immutable: put the old content back, or register the new one as a new version"
    )
