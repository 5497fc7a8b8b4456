"""What a node shows of itself: its snapshot, and the rest that a site's file says of nodes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.node import file_stem, node_name
from lumiimg.cluster.trial.values import Look
from lumiimg.core.decode import DecodeError, decode_json, to_json
from lumiimg.core.errors import LumiimgError
from lumiimg.core.files import read_beginning, write_text
from lumiimg.host.node_facts import gpu_nodes
from lumiimg.host.root_queries import matches, names_in, read_text, read_word
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot_file import to_text
from lumiimg.image import RootFileSystem
from lumiimg.image.folder import FolderTree
from lumiimg.resolve.observed_node import site_as_observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot

_LOOK, _SNAPSHOT = ".look.json", ".host.json"
_MAX_BYTES = 1 << 20
_FIRST_PERSON = 1000
"""The lowest user id of a person: login.defs(5), UID_MIN."""
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_UID = re.compile(r"^Uid:\t(\d+)", re.MULTILINE)
_PCI = re.compile(r"^(location_id|domain|gfx_target_version) (\d{1,10})$", re.MULTILINE)
_OF_NETWORK = re.compile(r"(?:APPTAINERENV_|SINGULARITYENV_)?(?:NCCL|RCCL|FI|CXI)_[A-Z0-9_]{1,60}\Z")
_MOST_SET = 20


def look_here(folder: Path, site: Site, environment: Mapping[str, str]) -> None:
    """Put what this node shows into the folder of a trial, with its snapshot. Raises MissingHereError, FailedError."""
    root = RootFileSystem(FolderTree(Path("/")))
    snapshot = scan_host(environment)
    look = look_at(root, snapshot, site, node_name(environment), environment)
    stem = file_stem(look.node)
    write_text(folder / f"{stem}{_SNAPSHOT}", to_text(snapshot))
    write_text(folder / f"{stem}{_LOOK}", to_json(look))


def looks_in(folder: Path) -> tuple[Look, ...]:
    """Return what the nodes have put there, by their names; what is not one is passed over."""
    found = []
    for path in sorted(folder.glob(f"*{_LOOK}")):
        try:
            found.append(decode_json(read_beginning(path, _MAX_BYTES), Look))
        except (OSError, DecodeError):
            continue
    return tuple(found)


def forget_looks(folder: Path) -> None:
    """Remove what nodes have put there."""
    for kind in (_LOOK, _SNAPSHOT):
        for path in folder.glob(f"*{kind}"):
            path.unlink(missing_ok=True)


def snapshot_in(folder: Path) -> Path | None:
    """Return the snapshot of the first node that has put one there."""
    return next(iter(sorted(folder.glob(f"*{_SNAPSHOT}"))), None)


def look_at(root: RootFileSystem, snapshot: Snapshot, site: Site, node: str, environment: Mapping[str, str]) -> Look:
    """Return what the files of a node show, beside its snapshot."""
    libfabric = glibc = no_fabric = None
    try:
        fabric = site_as_observed(site, snapshot, node).fabric
        libfabric, glibc = (fabric.libfabric, fabric.glibc) if fabric is not None else (None, None)
    except LumiimgError as error:
        no_fabric = error.what
    engine = snapshot.engine
    return Look(
        node=node,
        clock=time.time(),
        processors=snapshot.architecture,
        kernel=snapshot.kernel,
        gpu_driver=snapshot.gpu_driver,
        gpus=snapshot.gpus,
        near=tuple(_near(root)),
        cores=len(_cores(root)),
        engine=f"{engine.name} {engine.version}" if engine is not None else None,
        libfabric=libfabric,
        glibc=glibc,
        no_fabric=no_fabric,
        interfaces=tuple(nic.netdev for nic in snapshot.nics if nic.netdev and nic.link_is_up),
        paths={path: _is_there(path, environment) for path in site_paths(site)},
        variables={text: _is_set(text, environment) for text in (site.identity.variables if site.identity else ())},
        strangers=tuple(sorted(_strangers(root))),
        set_already=tuple(sorted(filter(_OF_NETWORK.match, environment)))[:_MOST_SET],
    )


def site_paths(site: Site) -> tuple[str, ...]:
    """Return the paths that a site's file names, as a shell reads them."""
    return tuple(dict.fromkeys([*(bind.path for bind in site.binds), *([site.scratch] if site.scratch else [])]))


def _is_there(path: str, environment: Mapping[str, str]) -> bool | None:
    try:
        Path(Template(path).substitute(environment)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, KeyError, ValueError):  # not to be looked at; a variable that is not set here
        return None
    return True


def _is_set(text: str, environment: Mapping[str, str]) -> bool:
    name, _, value = text.partition("=")
    return environment.get(name) == value


def _near(root: RootFileSystem) -> Iterator[str]:
    """Yield the cores beside each GPU, as the kernel driver lists the GPUs (ROCr, topology.c: so does HIP)."""
    for path in gpu_nodes(root):
        found = dict(_PCI.findall(read_text(root, path) or ""))
        if not int(found.get("gfx_target_version", 0)):
            continue
        place, domain = int(found.get("location_id", 0)), int(found.get("domain", 0))
        address = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        # the cores in the NUMA node of a PCI device (sysfs-bus-pci)
        yield read_word(root, f"/sys/bus/pci/devices/{address}/local_cpulist") or ""


def _cores(root: RootFileSystem) -> set[str]:
    """Return the cores, each as the list of its threads."""
    paths = matches(root, "/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    return {siblings for path in paths if (siblings := read_word(root, path))}


def _strangers(root: RootFileSystem) -> set[int]:
    """Return whose processes are here too: on a node that a job has for itself there are none."""
    texts = (read_text(root, f"/proc/{name}/status") or "" for name in names_in(root, "/proc") if name.isdigit())
    users = {int(found[1]) for text in texts if (found := _UID.search(text))}
    return {user for user in users if user >= _FIRST_PERSON and user not in {os.getuid(), 65534}}


def is_in(number: int, text: str) -> bool:
    """Whether a number is in `48-63,112-127`, a list of the kernel."""
    parts = (_RANGE.fullmatch(part) for part in text.split(","))
    return any(int(part[1]) <= number <= int(part[2] or part[1]) for part in parts if part)
