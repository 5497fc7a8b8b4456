"""What a host snapshot adds to the check of files: the binds that a job would have, and whether everything loads."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.boundary import study_open
from lumiimg.check.remedies import remedies
from lumiimg.findings import Severity
from lumiimg.host.manifest import Fabric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.check.boundary import Boundary
    from lumiimg.check.evidence import StaticResult
    from lumiimg.host.manifest import Manifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

# what the files of the image alone leave open, and the host's answer
_ANSWERED = ("plugin.needs-host", "provider.no-cxi", "provider.cxi-built-in")


def judge_host(
    path: str, image: Image, environment: Mapping[str, str], snapshot: Snapshot, static: StaticResult
) -> Manifest | None:
    """Replace what is open in a static result by what a host offers; returns the manifest, if there is one."""
    boundary = study_open(path, image, environment, snapshot, static)
    manifest = boundary.manifest
    if manifest is None:
        return None
    if manifest.fabric is Fabric.NONE:
        if manifest.host_has_fabric:
            _refuse(boundary, manifest, static)
        return manifest  # else what is open stays open
    found = {item.object.facts.soname or item.object.name: item for item in manifest.loaded}
    libfabric, libcxi = (found.get(name) for name in ("libfabric.so.1", "libcxi.so.1"))
    opened = next((item for item in manifest.loaded if item.object.name in static.path.plugin_files), None)
    if opened is None:
        return manifest  # no plugin on either side: the finding that says so stands
    static.findings.found[:] = [
        finding
        for finding in static.findings.found
        if finding.id not in _ANSWERED and not (opened.host_path and finding.id == "plugin.absent")
    ]
    static.path = replace(
        static.path,
        plugin=opened.object.path,
        libfabric=libfabric.object.path if libfabric else None,
        libcxi=libcxi.object.path if libcxi else None,
    )
    own = "the image has all that its fabric path loads"
    bound = f"with {len(manifest.binds)} libraries of {snapshot.host} bound, the plugin and all that it needs load"
    static.findings.add(
        "bind.loads",
        Severity.OK,
        bound if manifest.binds else own,
        evidence=tuple(f"{bind.source} at {bind.target}" for bind in manifest.binds),
        remedy=(f"source <(lumiimg bind {shlex.quote(path)} --host HOST.json)",) if manifest.binds else (),
        source="glibc elf/dl-load.c, elf/dl-version.c, modelled",
    )
    return manifest


def _refuse(boundary: Boundary, manifest: Manifest, static: StaticResult) -> None:
    # of several attempts, the one that the C library ends is the one that no bind can mend
    telling = next((r for r in manifest.refusals if r.need.startswith("GLIBC_")), manifest.refusals[-1])
    static.findings.found[:] = [finding for finding in static.findings.found if finding.id not in _ANSWERED]
    static.findings.add(
        "bind.refused",
        Severity.PROBLEM,
        f"no set of binds of {boundary.host} loads: {telling.need} is needed, {telling.have}",
        evidence=tuple(refusal.words for refusal in manifest.refusals),
        chain=telling.chain,
        remedy=tuple(remedies(boundary)),
        source="glibc elf/dl-load.c, elf/dl-version.c, modelled",
    )
