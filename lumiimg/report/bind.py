"""What `lumiimg bind` prints: the manifest in the form that a shell, a module system or an engine reads."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from lumiimg.errors import FailedError, one_line
from lumiimg.host.inside import BindSpec
from lumiimg.host.manifest import PRIVATE, Fabric, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.boundary import Boundary
    from lumiimg.host.manifest import Bind
    from lumiimg.host.snapshot import Snapshot

SCHEMA = 1
_REFUSED = {
    # whoever sources it, or puts it on a command line, without a look at the exit code, must not go on without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
    "lmod": 'LmodError("lumiimg bind: refused, nothing is bound")\n',
    "tcl": "#%Module\nerror {lumiimg bind: refused, nothing is bound}\n",
}
_CDI_VERSION = "0.6.0"
_CDI_KIND = "lumiimg.org/slingshot"
# engines evaluate the values of variables as a shell does; none of these is in a path that somebody means
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f$`\"'\\]")
_NOT_FOR_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TCL_SPECIAL = re.compile(r'([\\{}\[\]$"; ])')


def to_json(boundary: Boundary, manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as JSON data (schema 1)."""
    return {
        "schema": SCHEMA,
        "image": boundary.image,
        "host": boundary.host,
        "decision": boundary.decision.value if manifest.fabric is Fabric.NONE else "ok",
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


def print_manifest(boundary: Boundary, snapshot: Snapshot, style: str) -> None:
    """Print a manifest in one of FORMATS, a refusal only as JSON.

    Raises FailedError for a path that no engine takes.
    """
    manifest = boundary.manifest or Manifest(Fabric.NONE)
    if manifest.fabric is Fabric.NONE and style != "json":
        print(_REFUSED.get(style, ""), end="")
        return
    _refuse_unsafe(manifest, style)
    print(FORMATS[style](boundary, manifest, snapshot), end="")


def _refuse_unsafe(manifest: Manifest, style: str) -> None:
    """Raise FailedError for what comes out of an image or a snapshot and cannot be written so that it stays text."""
    for bind in manifest.binds:
        if _NOT_FOR_PATHS.search(bind.source + bind.target) or not _is_text(bind.source + bind.target):
            raise FailedError("a path with such characters cannot be bound", where=bind.source)
    for item in manifest.variables:
        if style == "json":
            continue
        if _UNSAFE.search(item.value) or not _is_text(item.value) or (style == "singularity" and "," in item.value):
            raise FailedError(
                "holds a character that engines or shells evaluate",
                where=f"{item.name}={item.value}",
                hint="the image's own value is part of it: mend its environment, or take --format json",
            )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _engine(snapshot: Snapshot) -> str:
    """Return what the variables of a machine's engine begin with; both read the older name."""
    return "APPTAINER" if snapshot.engine and snapshot.engine.name == "Apptainer" else "SINGULARITY"


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
    # a backslash at the end of a comment would take the next line along (Tcl)
    return [f"{sign} {one_line(line)}{' ' if line.endswith(chr(92)) else ''}" for line in lines]


def _shell(boundary: Boundary, manifest: Manifest, snapshot: Snapshot) -> str:
    engine = _engine(snapshot)
    lines = _comments(boundary, manifest, "#")
    if manifest.binds:
        name = f"{engine}_BIND"
        # Apptainer passes over SINGULARITY_BIND where it has a variable of its own
        old = f"${{{name}:-${{SINGULARITY_BIND:-}}}}" if engine == "APPTAINER" else f"${{{name}:-}}"
        lines.append(f"lumiimg_binds={shlex.quote(_specs(manifest))}")
        lines.append(f'lumiimg_before="{old}"')
        lines.append('case ",$lumiimg_before," in')
        lines.append(f'*",$lumiimg_binds,"*) export {name}="$lumiimg_before" ;;')
        lines.append(f'*) export {name}="${{lumiimg_before:+$lumiimg_before,}}$lumiimg_binds" ;;')
        lines.append("esac")
        lines.append("unset lumiimg_binds lumiimg_before")
    lines += [f"export {engine}ENV_{item.name}={shlex.quote(item.value)}" for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _singularity(_: Boundary, manifest: Manifest, __: Snapshot) -> str:
    words = [word for bind in manifest.binds for word in ("--bind", _spec(bind))]
    words += [word for item in manifest.variables for word in ("--env", f"{item.name}={item.value}")]
    return f"{shlex.join(words)}\n"


def _lmod(boundary: Boundary, manifest: Manifest, snapshot: Snapshot) -> str:
    engine = _engine(snapshot)
    lines = _comments(boundary, manifest, "--")
    lines += [f'append_path("{engine}_BIND", {_lua(_spec(bind))}, ",")' for bind in manifest.binds]
    lines += [f'setenv("{engine}ENV_{item.name}", {_lua(item.value)})' for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _lua(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tcl(boundary: Boundary, manifest: Manifest, snapshot: Snapshot) -> str:
    engine = _engine(snapshot)
    lines = ["#%Module", *_comments(boundary, manifest, "#")]
    lines += [f"append-path --delim , {engine}_BIND {_tcl_word(_spec(bind))}" for bind in manifest.binds]
    lines += [f"setenv {engine}ENV_{item.name} {_tcl_word(item.value)}" for item in manifest.variables]
    return "\n".join(lines) + "\n"


def _tcl_word(text: str) -> str:
    return _TCL_SPECIAL.sub(r"\\\1", text)


def _cdi(boundary: Boundary, manifest: Manifest, snapshot: Snapshot) -> str:
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
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _json(boundary: Boundary, manifest: Manifest, _: Snapshot) -> str:
    return json.dumps(to_json(boundary, manifest), indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Boundary, Manifest, Snapshot], str]] = {
    "shell": _shell,
    "singularity": _singularity,
    "lmod": _lmod,
    "tcl": _tcl,
    "cdi": _cdi,
    "json": _json,
}
