"""What the container engine of a machine makes of a manifest: devices that it hides, targets that it cannot make.

The settings are those of apptainer.conf and singularity.conf, which only the administrator can change
(apptainer `pkg/util/apptainerconf/config.go`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.host.manifest import Bind, Fabric

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.host.manifest import Manifest
    from lumiimg.host.snapshot import Snapshot

_MANY_BINDS = 50
"""From here on, the underlay of Apptainer warns (`underlay_linux.go`)."""


def complete(manifest: Manifest, snapshot: Snapshot, site: Site | None) -> Manifest:
    """Return a manifest with what its site and its engine need on top; one that refuses is returned as it is."""
    if manifest.fabric is Fabric.NONE:
        return manifest
    settings = (snapshot.engine.settings if snapshot.engine else None) or {}
    binds, notes = list(manifest.binds), list(manifest.notes)
    if settings.get("mount dev", "yes") != "yes":
        nics = [device for device in snapshot.devices if device.startswith("/dev/cxi")]
        binds += [Bind(nic, nic, f"`mount dev = {settings['mount dev']}` hides it otherwise") for nic in nics]
    if site is not None:
        binds += [Bind(entry.path, entry.path, f"{entry.reason} ({site.name})") for entry in site.binds]
    if binds and settings.get("user bind control", "yes") == "no":
        notes.append("`user bind control = no` on this machine: its engine refuses every bind of a user")
    if binds and settings.get("enable overlay") == "no" and settings.get("enable underlay") == "no":
        folders = sorted({bind.target.rpartition("/")[0] for bind in manifest.binds})
        notes.append(f"neither overlay nor underlay on this machine: the image must have {', '.join(folders)} already")
    if len(binds) > _MANY_BINDS:
        notes.append(f"{len(binds)} binds: an engine that makes their targets by underlay becomes slow and warns")
    return replace(manifest, binds=tuple(binds), notes=tuple(notes))
