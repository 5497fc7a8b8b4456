"""What the container engine of a machine makes of a manifest: devices that it hides, targets that it cannot make.

The settings are those of apptainer.conf and singularity.conf, which only the administrator can change
(apptainer `pkg/util/apptainerconf/config.go`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.host.manifest import Bind, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.host.bind import SolvedManifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import RootFileSystem

_MANY_BINDS = 50
"""From here on, the underlay of Apptainer warns (`underlay_linux.go`)."""
_ENVIRONMENT, _TAKES_VARIABLES = "/.singularity.d/env", "/.singularity.d/env/99-base.sh"


def complete(manifest: SolvedManifest, snapshot: Snapshot, root: RootFileSystem, site: Site | None) -> SolvedManifest:
    """Return a manifest with what its site and its engine need on top, or one that refuses what its engine forbids.

    `root` is the image's; a manifest that refuses already is returned as it is.
    """
    if manifest.fabric is Fabric.NONE:
        return manifest
    settings = snapshot.engine_settings
    binds, notes = list(manifest.binds), list(manifest.notes)
    if settings.get("mount dev", "yes") != "yes":
        nics = [device for device in snapshot.devices if device.startswith("/dev/cxi")]
        binds += [Bind(nic, nic, f"`mount dev = {settings['mount dev']}` hides it otherwise") for nic in nics]
    if site is not None:
        binds += [Bind(entry.path, entry.path, f"{entry.reason} ({site.name})") for entry in site.binds]
    refusal = _forbidden(manifest, settings, root)
    if refusal is not None:
        return replace(manifest, fabric=Fabric.NONE, binds=(), variables=(), trial=None, refusals=(refusal,))
    if manifest.variables and root.is_dir(_ENVIRONMENT) and not root.exists(_TAKES_VARIABLES):
        notes.append(f"the image has no {_TAKES_VARIABLES}: its engine does not pass variables on to it")
    if len(binds) > _MANY_BINDS:
        notes.append(f"{len(binds)} binds: an engine that makes their targets by underlay becomes slow and warns")
    return replace(manifest, binds=tuple(binds), notes=tuple(notes))


def _forbidden(manifest: SolvedManifest, settings: Mapping[str, str], root: RootFileSystem) -> Refusal | None:
    """Return why the engine of the machine would not start with these binds."""
    if not manifest.binds:
        return None
    chain = tuple(bind.target.rpartition("/")[2] for bind in manifest.binds[:1])
    if settings.get("user bind control") == "no":
        need, have = "a bind", "the engine of this machine refuses those of users"
        words = "`user bind control = no` in the configuration of the engine"
    elif settings.get("enable overlay") == settings.get("enable underlay") == "no" and not root.exists(PRIVATE):
        need, have = f"the folder {PRIVATE}", "it is not in the image, and the engine of this machine makes none"
        words = "`enable overlay = no` and `enable underlay = no` in the configuration of the engine"
    else:
        return None
    return Refusal("the binds that would load", PRIVATE, need, have, chain, words, of_host=True)
