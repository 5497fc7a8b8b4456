"""What `lumiimg bind` prints: the manifest in the form that a shell, a module system or an engine reads."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from lumiimg.errors import FailedError, one_line
from lumiimg.host.inside import BindSpec
from lumiimg.host.manifest import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.boundary import Boundary
    from lumiimg.host.manifest import Bind, Manifest
    from lumiimg.host.snapshot import Snapshot

SCHEMA = 1
_CDI_VERSION = "0.6.0"
_CDI_KIND = "lumiimg.org/slingshot"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TCL_SPECIAL = re.compile(r'([\\{}\[\]$"; ])')


def to_json(boundary: Boundary, manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as JSON data (schema 1)."""
    return {
        "schema": SCHEMA,
        "image": boundary.image,
        "host": boundary.host,
        "decision": "refused" if manifest.refusals and not manifest.loaded else "ok",
        "fabric": manifest.fabric.value,
        "binds": [
            {"source": bind.source, "target": bind.target, "reason": bind.reason, "chain": list(bind.chain)}
            for bind in manifest.binds
        ],
        "environment": {item.name: {"value": item.value, "reason": item.reason} for item in manifest.variables},
        "loaded": [
            {"name": item.object.name, "path": item.object.path, "host_path": item.host_path}
            for item in manifest.loaded
        ],
        "refusals": [
            {
                "attempt": refusal.attempt,
                "library": refusal.library,
                "need": refusal.need,
                "have": refusal.have,
                "chain": list(refusal.chain),
                "words": refusal.words,
            }
            for refusal in manifest.refusals
        ],
        "notes": list(manifest.notes),
    }


def format_manifest(boundary: Boundary, manifest: Manifest, snapshot: Snapshot, style: str) -> str:
    """Return the text of one of FORMATS. Raises FailedError for a path that no engine takes."""
    for bind in manifest.binds:
        if _CONTROL.search(bind.source + bind.target):
            raise FailedError("a path with a control character cannot be bound", where=bind.source)
    engine = "APPTAINER" if snapshot.engine and snapshot.engine.name == "Apptainer" else "SINGULARITY"
    return FORMATS[style](boundary, manifest, engine)


def _specs(manifest: Manifest) -> str:
    return ",".join(_spec(bind) for bind in manifest.binds)


def _spec(bind: Bind) -> str:
    return str(BindSpec(bind.source, bind.target))


def _comments(boundary: Boundary, manifest: Manifest, sign: str) -> list[str]:
    """Return what the manifest is for, and the reason of each line."""
    lines = [f"lumiimg bind {boundary.image} for {boundary.host}: fabric {manifest.fabric.value}"]
    if not manifest.binds:
        lines.append("nothing has to be bound: the image has all that its fabric path loads")
    for bind in manifest.binds:
        lines.append(f"{bind.source}: {bind.reason}")
        if len(bind.chain) > 1:
            lines.append(f"    {' -> '.join(bind.chain)}")
    lines += [f"{item.name}: {item.reason}" for item in manifest.variables]
    lines += [f"note: {note}" for note in manifest.notes]
    return [f"{sign} {one_line(line)}" for line in lines]


def _shell(boundary: Boundary, manifest: Manifest, engine: str) -> str:
    lines = _comments(boundary, manifest, "#")
    if manifest.binds:
        name = f"{engine}_BIND"
        lines.append(f'export {name}="${{{name}:+${name},}}"{shlex.quote(_specs(manifest))}')
    lines += [f"export {engine}ENV_{item.name}={shlex.quote(item.value)}" for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _singularity(_: Boundary, manifest: Manifest, __: str) -> str:
    words = [word for bind in manifest.binds for word in ("--bind", _spec(bind))]
    words += [word for item in manifest.variables for word in ("--env", f"{item.name}={item.value}")]
    return f"{shlex.join(words)}\n"


def _lmod(boundary: Boundary, manifest: Manifest, engine: str) -> str:
    lines = _comments(boundary, manifest, "--")
    lines += [f'append_path("{engine}_BIND", {_lua(_spec(bind))}, ",")' for bind in manifest.binds]
    lines += [f'setenv("{engine}ENV_{item.name}", {_lua(item.value)})' for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _lua(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tcl(boundary: Boundary, manifest: Manifest, engine: str) -> str:
    lines = ["#%Module", *_comments(boundary, manifest, "#")]
    lines += [f"append-path --delim , {engine}_BIND {_tcl_word(_spec(bind))}" for bind in manifest.binds]
    lines += [f"setenv {engine}ENV_{item.name} {_tcl_word(item.value)}" for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _tcl_word(text: str) -> str:
    return _TCL_SPECIAL.sub(r"\\\1", text)


def _cdi(boundary: Boundary, manifest: Manifest, _: str) -> str:
    """Return a CDI specification (Container Device Interface 0.6, SPEC.md), for engines that take `--device`."""
    mounts = [
        {
            "hostPath": bind.source,
            "containerPath": bind.target,
            # libraries are for reading; a file system or a device of the site is not
            "options": ["ro", "nosuid", "nodev", "bind"] if bind.target.startswith(f"{PRIVATE}/") else ["rbind"],
        }
        for bind in manifest.binds
    ]
    environment = [f"{item.name}={item.value}" for item in manifest.variables]
    data = {
        "cdiVersion": _CDI_VERSION,
        "kind": _CDI_KIND,
        "annotations": {"lumiimg.org/image": boundary.image, "lumiimg.org/host": boundary.host or ""},
        "devices": [{"name": "all", "containerEdits": {"env": environment, "mounts": mounts}}],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _json(boundary: Boundary, manifest: Manifest, _: str) -> str:
    return json.dumps(to_json(boundary, manifest), indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Boundary, Manifest, str], str]] = {
    "shell": _shell,
    "singularity": _singularity,
    "lmod": _lmod,
    "tcl": _tcl,
    "cdi": _cdi,
    "json": _json,
}
