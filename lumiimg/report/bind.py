"""What `lumiimg bind` prints: the manifest in the form that a shell, an engine or a program reads."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import exports, refuse_unsafe, spec, variables_of_engine
from lumiimg.cluster.module.plan import NOTHING_BOUND
from lumiimg.errors import printable
from lumiimg.report import json_output

if TYPE_CHECKING:
    from lumiimg.check.static.host_fit import BoundImage
    from lumiimg.host.manifest import BindManifest
    from lumiimg.host.snapshot import Snapshot

_REFUSED = {
    # whoever sources it, or puts it on a command line, without a look at the exit code, must not go on without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
}


def manifest_text(bound: BoundImage, snapshot: Snapshot, style: str) -> str:
    """Return a manifest for a `shell`, for the command line of `singularity`, or as `json`, which alone says why not.

    Raises FailedError for a path that no engine takes.
    """
    manifest = bound.manifest
    if bound.is_refused and style != "json":
        return _REFUSED[style]
    refuse_unsafe(manifest.binds, manifest.variables, style)
    if style == "json":
        return f"{json_output.json_text('bind', bound)}\n"
    return _shell(bound, manifest, snapshot) if style == "shell" else _singularity(manifest)


def _shell(bound: BoundImage, manifest: BindManifest, snapshot: Snapshot) -> str:
    fit = bound.of
    lines = [f"lumiimg bind {fit.image} for {fit.host}: fabric {manifest.fabric.value}"]
    if not manifest.binds:
        lines.append(NOTHING_BOUND)
    for bind in manifest.binds:
        lines.append(f"{bind.source}: {bind.reason}")
        if len(bind.chain) > 1:
            lines.append(f"    {' -> '.join(bind.chain)}")
    lines += [f"{item.name}: {item.reason}" for item in manifest.variables]
    lines += [f"note: {note}" for note in manifest.notes]
    lines += [f"doubt: {doubt}" for doubt in bound.doubts]
    comments = [f"# {printable(line)}" for line in lines]
    return "\n".join([*comments, *exports(variables_of_engine(snapshot), manifest.binds, manifest.variables)]) + "\n"


def _singularity(manifest: BindManifest) -> str:
    words = [word for bind in manifest.binds for word in ("--bind", spec(bind))]
    words += [word for item in manifest.variables for word in ("--env", f"{item.name}={item.value}")]
    return f"{shlex.join(words)}\n"
