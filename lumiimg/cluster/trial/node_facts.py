"""Facts that a node reveals: its snapshot, and other values that a site file states about nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.node import file_stem, node_name
from lumiimg.cluster.trial.model import THERE
from lumiimg.core.decode import DecodeError, decode_json, read_whole, to_json
from lumiimg.core.errors import LumiimgError
from lumiimg.core.files import write_text
from lumiimg.host.root_queries import matches, read_word
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import snapshot_text
from lumiimg.image import FolderTree, RootFileSystem
from lumiimg.resolve.driver_rule import site_as_observed

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot

_FACTS, _SNAPSHOT = ".facts.json", ".host.json"
_MAX_BYTES = 1 << 20
_OF_NETWORK = re.compile(r"(?:APPTAINERENV_|SINGULARITYENV_)?(?:NCCL|RCCL|FI|CXI)_[A-Z0-9_]{1,60}\Z")
_MAX_PRESET = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts from one node that claims are about."""

    node: str
    shown: dict[str, str | None] = field(default_factory=dict)
    """Values by `Claim.what` (`kernel`, `/pfs`); None or missing if the node does not reveal it."""
    no_fabric: str | None = None
    """Why there is no libfabric with the cxi provider."""
    preset_variables: tuple[str, ...] = ()
    """Network variables that were already set in the job."""


def record_node(folder: Path, site: Site, environment: Mapping[str, str]) -> None:
    """Write this node's facts and snapshot into the folder of a trial. Raises MissingHereError, FailedError."""
    root = RootFileSystem(FolderTree(Path("/")))
    snapshot, node = scan_host(environment), node_name(environment)
    facts = facts_of_node(root, snapshot, site, node, environment)
    write_text(folder / f"{file_stem(node)}{_SNAPSHOT}", snapshot_text(snapshot))
    write_text(folder / f"{file_stem(node)}{_FACTS}", to_json(facts))


def recorded_nodes(folder: Path) -> tuple[NodeFacts, ...]:
    """Return the facts that nodes wrote there, once per node, sorted by file name; other files are ignored."""
    found: dict[str, NodeFacts] = {}
    for path in sorted(folder.glob(f"*{_FACTS}")):
        try:
            facts = decode_json(read_whole(path, _MAX_BYTES), NodeFacts)
        except DecodeError:
            continue
        found.setdefault(facts.node, facts)
    return tuple(found.values())


def clear_node_facts(folder: Path) -> None:
    """Remove the facts and snapshots that nodes wrote there."""
    for kind in (_FACTS, _SNAPSHOT):
        for path in folder.glob(f"*{kind}"):
            path.unlink(missing_ok=True)


def snapshot_in(folder: Path) -> Path | None:
    """Return the path of the snapshot of the first node, by name, that wrote one there."""
    return min(folder.glob(f"*{_SNAPSHOT}"), default=None)


def facts_of_node(
    root: RootFileSystem, snapshot: Snapshot, site: Site, node: str, environment: Mapping[str, str]
) -> NodeFacts:
    """Return a node's facts, from its files and its snapshot."""
    fabric = no_fabric = None
    try:
        fabric = site_as_observed(site, snapshot, node).fabric
    except LumiimgError as error:
        no_fabric = error.what
    engine, variables = snapshot.engine, site.identity.variables if site.identity else ()
    threads = matches(root, "/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    shown: dict[str, object] = {
        "processors": snapshot.architecture,
        "gpu": ", ".join(sorted({*snapshot.gpus})),
        "gpus": len(snapshot.gpus),
        "kernel": snapshot.kernel,
        "driver": snapshot.gpu_driver,
        "cores": len({read_word(root, path) for path in threads}),
        "engine": f"{engine.name} {engine.version}" if engine is not None else None,
        "libfabric": fabric.libfabric if fabric is not None else None,
        "glibc": fabric.glibc if fabric is not None else None,
        "interfaces": ",".join(sorted(nic.netdev for nic in snapshot.nics if nic.netdev and nic.link_is_up)),
        "identity": _there(any(text in variables for text in map("=".join, environment.items()))),
    }
    return NodeFacts(
        node=node,
        shown={what: f"{value}" if value else None for what, value in shown.items()}
        | {path: _there(_is_there(path, environment)) for path in site_paths(site)},
        no_fabric=no_fabric,
        preset_variables=tuple(sorted(filter(_OF_NETWORK.match, environment)))[:_MAX_PRESET],
    )


def _there(is_there: bool | None) -> str | None:
    return None if is_there is None else THERE if is_there else f"not {THERE}"


def site_paths(site: Site) -> tuple[str, ...]:
    """Return the paths named in a site file, in shell syntax."""
    return tuple(dict.fromkeys([*(bind.path for bind in site.binds), *([site.scratch] if site.scratch else [])]))


def _is_there(path: str, environment: Mapping[str, str]) -> bool | None:
    try:
        Path(Template(path).substitute(environment)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, KeyError, ValueError):  # no access, or a variable that is not set here
        return None
    return True
