"""Ceph on one node: a monitor, a daemon that keeps objects in memory, and the gateway that speaks S3."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from tests.s3._programs import DidNotStart, Program, find_program, run

__all__ = ["prepare", "version"]

_PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "monmaptool")

# The messenger's old protocol alone, on IPv4: with both, clients ask for an address family that is not there.
# A rule of a bucket's lifecycle takes a day for ten seconds.
_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{rados_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
keyring = /dev/null
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd crush update on start = false
osd class update on start = false
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
mon data avail crit = 1
paxos propose interval = 0.05
paxos min wait = 0.01

[mon.a]
mon data = {folder}/mon

[osd.0]
osd data = {folder}/osd

[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw thread pool size = 64
rgw enable usage log = false
rgw lc debug interval = 10
"""


def version(folder: Path) -> str:
    """The gateway's version.

    Raises:
        NotInstalled: one of the programs is not on this machine.
    """
    for name in _PROGRAMS:
        _path(name)
    return run([_path("radosgw"), "--version"], folder).split()[2]


def prepare(folder: Path, stack: ExitStack, rados_port: int, port: int, user: tuple[str, str]) -> tuple[Program, ...]:
    """Make a cluster with one user, and start all of it but the gateway.

    Args:
        folder: of all its files.
        stack: on which what was started is stopped.
        rados_port: the monitor's port of 127.0.0.1.
        port: the gateway's.
        user: the access key and the secret key of a user who may make buckets.

    Returns:
        The three programs, the gateway last. The objects end with the second: they are in memory.
    """
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    configuration = folder / "ceph.conf"
    configuration.write_text(
        _CONFIGURATION.format(fsid=fsid, folder=folder, rados_port=rados_port, port=port), encoding="utf-8"
    )
    for name in ("mon", "osd"):
        (folder / name).mkdir()
    access_key, secret_key = user

    def command(name: str, *words: str) -> list[str]:
        return [_path(name), "-c", str(configuration), *words]

    def started(name: str, *words: str) -> Program:
        program = Program(command(name, *words), folder)
        stack.callback(program.kill)
        program.start()
        return program

    monitors = f"{folder}/monitors"
    run(
        [_path("monmaptool"), "--create", "--fsid", fsid, "--addv", "a", f"[v1:127.0.0.1:{rados_port}]", monitors],
        folder,
    )
    run(command("ceph-mon", "-i", "a", "--mkfs", "--monmap", monitors), folder)
    monitor = started("ceph-mon", "-i", "a", "-f")
    _ask(command("ceph", "--connect-timeout", "20", "osd", "new", osd, "0"), folder)
    # The daemon would do this itself, and may ask the monitor before it knows the cluster's id, be refused, and end.
    _ask(command("ceph", "osd", "crush", "add", "osd.0", "1", "root=default", "host=localhost"), folder)
    run(command("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd), folder)
    daemon = started("ceph-osd", "-i", "0", "-f")
    # A gateway's command that finds no daemon may wait for one for ever.
    state = command("ceph", "osd", "stat", "--format", "json")
    daemon.wait(lambda: json.loads(_ask(state, folder))["num_up_osds"] == 1)
    words = ["user", "create", "--uid=test", "--display-name=test"]
    run(
        command(
            "radosgw-admin", "-n", "client.rgw", *words, f"--access-key={access_key}", f"--secret-key={secret_key}"
        ),
        folder,
    )
    return monitor, daemon, Program(command("radosgw", "-n", "client.rgw", "-f", "--no-mon-config"), folder)


def _ask(words: list[str], folder: Path) -> str:
    """Ask the monitor. It refuses what it is asked while it takes in a new map, now and then: such a question, each of
    which may be asked twice, is asked again.
    """
    for _ in range(4):
        try:
            return run(words, folder)
        except DidNotStart:
            time.sleep(0.5)
    return run(words, folder)


def _path(name: str) -> str:
    return find_program(name, "Debian's radosgw, ceph-mon, ceph-osd")
