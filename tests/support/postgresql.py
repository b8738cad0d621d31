"""A PostgreSQL server for tests, where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any


class Cluster:
    """A PostgreSQL server of this session's own, in a folder that goes with it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.data, self.port = programs, folder / "data", 0
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            shutil.chown(folder, nobody.pw_uid, nobody.pw_gid)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self.data), *arguments]
        log = self.data.parent / f"{program}.log"
        with log.open("ab") as out:  # a file: a pipe would stay open as long as the server runs
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.data.parent,
                check=False,
                **self.user,
            )
        if done.returncode != 0:
            raise ChildProcessError(f"{program}: {log.read_text()}")

    def start(self) -> None:
        self.run("initdb", "--username=gate", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        for attempt in range(5):
            self.port = free_port()
            options = f"-h 127.0.0.1 -p {self.port} -k {self.data.parent} -c fsync=off"
            try:
                self.run("pg_ctl", "-w", "-o", options, "start")
            except ChildProcessError:
                if attempt == 4:  # somebody else may take the port first, but not that often
                    raise
            else:
                break
        self.guard()

    def guard(self) -> None:
        """The server is no child of ours: it goes when the guard's pipe closes, however this process ends."""
        stop = [str(self.programs / "pg_ctl"), "-D", str(self.data), "-w", "-m", "immediate", "stop"]
        self.stopper = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec "$@" >/dev/null', "stop", *stop],
            stdin=subprocess.PIPE,
            cwd=self.data.parent,
            start_new_session=True,
            **self.user,
        )

    def stop(self) -> None:
        self.stopper.communicate()
        if self.stopper.returncode != 0:
            raise ChildProcessError(f"pg_ctl stop: {self.stopper.returncode}")

    async def empty_database(self) -> str:
        """The URL of the one database, in which nothing is left of the test before."""
        await self.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return self.url()

    async def execute(self, statements: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(host="127.0.0.1", port=self.port, user="gate", database="postgres")
        await connection.execute(statements)
        await connection.close()

    def url(self, user: str = "gate", name: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def postgresql_programs() -> Path | None:
    folders = [Path(folder) for folder in os.get_exec_path()]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)
