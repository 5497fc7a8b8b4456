"""What `lumiimg bind` prints: the manifest in the form that a shell, a module system or an engine reads."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import exports, refuse_unsafe, spec, variables_of_engine
from lumiimg.cluster.module import modulefile
from lumiimg.cluster.module.plan import NOTHING_BOUND
from lumiimg.cluster.module.settings import binds_module
from lumiimg.errors import printable
from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.host.manifest import BindManifest
from lumiimg.report import schema
from lumiimg.report.boundary import doubts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.static.boundary import Boundary
    from lumiimg.host.snapshot import Snapshot

_REFUSED = {
    # whoever sources it, or puts it on a command line, without a look at the exit code, must not go on without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
    "lmod": 'LmodError("lumiimg bind: refused, nothing is bound")\n',
    "tcl": "#%Module\nerror {lumiimg bind: refused, nothing is bound}\n",
}
_CDI_VERSION = "0.6.0"
_CDI_KIND = "lumiimg.org/slingshot"


def print_manifest(boundary: Boundary, snapshot: Snapshot, style: str) -> None:
    """Print a manifest in one of FORMATS, a refusal only as JSON.

    Raises FailedError for a path that no engine takes.
    """
    manifest = boundary.manifest or BindManifest(Fabric.NONE)
    if manifest.fabric is Fabric.NONE and style != "json":
        print(_REFUSED.get(style, ""), end="")
        return
    refuse_unsafe(manifest.binds, manifest.variables, style)
    print(FORMATS[style](boundary, manifest, snapshot), end="")


def _shell(boundary: Boundary, manifest: BindManifest, snapshot: Snapshot) -> str:
    lines = [f"lumiimg bind {boundary.image} for {boundary.host}: fabric {manifest.fabric.value}"]
    if not manifest.binds:
        lines.append(NOTHING_BOUND)
    for bind in manifest.binds:
        lines.append(f"{bind.source}: {bind.reason}")
        if len(bind.chain) > 1:
            lines.append(f"    {' -> '.join(bind.chain)}")
    lines += [f"{item.name}: {item.reason}" for item in manifest.variables]
    lines += [f"note: {note}" for note in manifest.notes]
    lines += [f"doubt: {text}" for _, text in doubts_of(boundary)]
    comments = [f"# {printable(line)}" for line in lines]
    return "\n".join([*comments, *exports(variables_of_engine(snapshot), manifest.binds, manifest.variables)]) + "\n"


def _singularity(_: Boundary, manifest: BindManifest, __: Snapshot) -> str:
    words = [word for bind in manifest.binds for word in ("--bind", spec(bind))]
    words += [word for item in manifest.variables for word in ("--env", f"{item.name}={item.value}")]
    return f"{shlex.join(words)}\n"


def _cdi(boundary: Boundary, manifest: BindManifest, snapshot: Snapshot) -> str:
    """Return a CDI specification (Container Device Interface 0.6, SPEC.md), for engines that take `--device`."""
    mounts = [
        {
            "hostPath": bind.source,
            "containerPath": bind.target,
            # libraries are for reading; a file system or a device of the site is not
            "options": ["ro", "nosuid", "nodev", "bind"] if bind.target.startswith(f"{PRIVATE}/") else ["rbind"],
        }
        for bind in manifest.binds
        if not bind.target.startswith("/dev/")
    ]
    nodes = [{"path": device} for device in snapshot.devices if device.startswith("/dev/cxi")]
    environment = [f"{item.name}={item.value}" for item in manifest.variables]
    data = {
        "cdiVersion": _CDI_VERSION,
        "kind": _CDI_KIND,
        "annotations": {"lumiimg.org/image": boundary.image, "lumiimg.org/host": boundary.host or ""},
        "devices": [{"name": "all", "containerEdits": {"env": environment, "deviceNodes": nodes, "mounts": mounts}}],
    }
    return schema.strict_json(data) + "\n"


def _json(boundary: Boundary, manifest: BindManifest, _: Snapshot) -> str:
    binds = manifest.fabric is not Fabric.NONE
    text = schema.json_text(
        "bind",
        manifest,
        image=boundary.image,
        host=boundary.host,
        decision="ok" if binds else boundary.decision,
        environment={variable.name: variable for variable in manifest.variables},
        doubts=[text for _, text in doubts_of(boundary)] if binds else [],
    )
    return text + "\n"


FORMATS: dict[str, Callable[[Boundary, BindManifest, Snapshot], str]] = {
    "shell": _shell,
    "singularity": _singularity,
    "lmod": lambda boundary, _, snapshot: modulefile.lmod(binds_module(boundary, snapshot)),
    "tcl": lambda boundary, _, snapshot: modulefile.tcl(binds_module(boundary, snapshot)),
    "cdi": _cdi,
    "json": _json,
}
