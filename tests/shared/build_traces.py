"""What a build leaves in its image, in its folders and among the processes; and an engine with fewer features."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from lumiimg.image import FileKind, open_image


def shown(image: Path) -> dict[str, tuple[object, ...]]:
    """Return each entry of an image: kind, mode, owner, hard links, content; skip what is the engine's own history."""
    with open_image(image) as opened:
        names: dict[object, int] = {}
        # the engine numbers its history; the bill of materials contains the image's own number
        own = ("/.singularity.d/bootstrap_history", "/.lumiimg/sbom.cdx.json")
        entries = [entry for entry in opened.root.walk() if not entry.path.startswith(own)]
        seen = {entry.path: opened.root.stat(entry.path, follow=False) for entry in entries}
        for stat in seen.values():
            names[stat.identity] = names.get(stat.identity, 0) + 1
        found: dict[str, tuple[object, ...]] = {}
        for entry in entries:
            stat = seen[entry.path]
            content: object = None
            if entry.kind is FileKind.FILE:
                content = hashlib.sha256(opened.root.read_bytes(entry.path, 1 << 30)).digest()
                if entry.path == "/.singularity.d/labels.json":
                    labels = json.loads(opened.root.read_bytes(entry.path, 1 << 20))
                    # the day of the build, and what is only known once the image is finished
                    others = ("org.label-schema.build-date", "lumiimg.bind-manifest")
                    content = {name: value for name, value in labels.items() if name not in others}
                if entry.path.endswith(".pyc"):
                    content = opened.root.read_bytes(entry.path, 1 << 20)[16:]
            elif entry.kind is FileKind.SYMLINK:
                content = opened.root.readlink(entry.path)
            links = names[stat.identity] if entry.kind is FileKind.FILE else 1
            found[entry.path] = (entry.kind, stat.permissions, stat.uid, stat.gid, links, content)
        return found


def leftovers(*folders: Path) -> list[str]:
    """Return the partial files and mounts that a build without cleanup leaves."""
    found = [str(path) for folder in folders for path in folder.rglob("*lumiimg-partial*")]
    mounts = Path("/proc/self/mountinfo").read_text()
    return found + [str(folder) for folder in folders if str(folder) in mounts]


def strays(marker: str) -> list[str]:
    """Return the command lines of other processes that mention a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


SINGULARITY = """\
#!/bin/bash
# A stand-in for SingularityCE 4.1.3 and a user without ids in /etc/subuid: the engine of this machine, less the options that
# SingularityCE does not have. Its refusals are those of the real program (lumiimg/engine/differences.toml).
case "$*" in
--version) echo 'singularity-ce version 4.1.3-150500.10.7'; exit ;;
'build --help') "{engine}" build --help | grep -v -- --mksquashfs-args; echo '      --no-oci   native'; exit ;;
esac
words=()
for word; do
    case $word in
    --mksquashfs-args* | --reproducible) echo "Error for command: unknown flag: $word" >&2; exit 1 ;;
    --fakeroot) echo 'FATAL:   could not use fakeroot: no mapping entry found in /etc/subuid for user' >&2; exit 255 ;;
    --no-oci) ;;
    *) words+=("$word") ;;
    esac
done
if [ "$1" = build ]; then
    if ! command -v proot >/dev/null; then
        echo 'FATAL:   --remote, --fakeroot, or the proot command are required to build this source as a non-root user' >&2
        exit 255
    fi
    if grep -qi '^bootstrap: *debootstrap' "${{@: -1}}"; then
        echo 'FATAL:   While performing build: conveyor failed to get: you must be root to build with debootstrap' >&2
        exit 255
    fi
fi
export PATH={path}
exec "{engine}" "${{words[@]}}"
"""
