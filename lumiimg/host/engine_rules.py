"""What a machine's container engine mounts over an image by itself, and whether it can apply a manifest.

Image files in folders that it mounts over are hidden, and it may be unable to create the target of a bind.

The administrator decides what it mounts (apptainer.conf, singularity.conf: apptainer
`pkg/util/apptainerconf/config.go`), and partly the user who starts it (`internal/pkg/runtime/engine/apptainer/
container_linux.go`: addTmpMount, addHomeMount, addCwdMount). Tried with Apptainer 1.4.5, setting by setting: the home
mount hides only its own folder, unless neither overlay nor underlay is available; /run and /root are the image's.
"""

from __future__ import annotations

import contextlib
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.engine.binds import parse_binds
from lumiimg.fabric.path import HOST_LIB_DIR, Fabric
from lumiimg.host.manifest import Bind, Refusal
from lumiimg.host.node_facts import scan_facts
from lumiimg.image import ImageError, ImageKind, Mount

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from lumiimg.catalog.sites import Site
    from lumiimg.host.bind import SolvedManifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image, RootFileSystem

_SETTING_FOLDERS = {
    "proc": ("/proc",),
    "sys": ("/sys",),
    "dev": ("/dev",),
    "tmp": ("/tmp", "/var/tmp"),  # noqa: S108 - names, nothing is made there
}
"""Folders that each `mount …` setting controls; `mount dev = minimal` hides the image's folder, too."""
_NEVER_FROM_CWD = ("/", "/etc", "/bin", "/mnt", "/usr", "/var", "/opt", "/sbin", "/lib", "/lib64")
_FILES = ("/etc/localtime", "/etc/hosts")
"""Files that the engines' default configuration binds; no loader reads them."""
_ENVIRONMENT, _TAKES_VARIABLES = "/.singularity.d/env", "/.singularity.d/env/99-base.sh"
_NO_MOUNT = ("APPTAINER_NO_MOUNT", "SINGULARITY_NO_MOUNT")
_NO_HOME = ("APPTAINER_NO_HOME", "SINGULARITY_NO_HOME")


def with_engine_mounts(
    image: Image, environment: Mapping[str, str], snapshot: Snapshot | None = None, site: Site | None = None
) -> Image:
    """Return an image as the host's engine presents it to a non-root user with this environment, in jobs of a site."""
    root, here = image.root, Path("/").stat()
    if root.stat("/").identity == (here.st_dev, here.st_ino):
        return image  # this is the machine itself: the mounts are in place already, and the caller is the user
    mounts = []
    of_site = (bind.path for bind in site.binds) if site is not None else ()
    by_jobs = (Mount(path, by=f"jobs there bind the machine's {path} over it", is_sure=False) for path in of_site)
    for mount in (*engine_mounts(environment, snapshot), *by_jobs):
        with contextlib.suppress(OSError):  # a loop of links: no engine mounts anything there
            mounts.append(replace(mount, target=root.mount_point(mount.target)))
    return image.mounted(mounts).for_users()


def refuse_not_runnable(path: Path, image: Image) -> None:
    """Raise BadInputError for a kind of image that engines do not run directly."""
    if image.kind not in {ImageKind.SIF, ImageKind.SQUASHFS, ImageKind.FOLDER}:
        what = f"{image.kind.value}: engines do not run this kind directly"
        hint = "first: singularity build image.sif oci:FOLDER (or oci-archive:FILE, docker-archive:FILE)"
        raise BadInputError(what, where=str(path), hint=hint)


def may_be_hidden(image: Image, files: Iterable[str]) -> Iterator[tuple[Mount, list[str]]]:
    """Yield each mount that may exist, with the files that it would hide.

    A file counts by the path that names it and by the path that its links lead to.
    """
    named = list(dict.fromkeys(files))
    real = [image.root.resolve(file) for file in named if image.root.exists(file)]
    for mount in image.mounts:
        if not mount.is_sure and (below := [file for file in dict.fromkeys((*named, *real)) if mount.hides(file)]):
            yield mount, below


def hidden_files(image: Image, names: Collection[str] | re.Pattern[str]) -> Iterator[tuple[Mount, str]]:
    """Yield (mount, path) for each image file of these names that the engine certainly mounts over."""
    for mount in image.mounts:
        if mount.is_sure:
            with contextlib.suppress(OSError, ImageError):
                yield from ((mount, path) for path in image.unmounted.find(names, mount.target))


def engine_mounts(environment: Mapping[str, str], snapshot: Snapshot | None = None) -> Iterator[Mount]:
    """Yield what an engine mounts over an image, by the settings in a snapshot, else by the engine's defaults."""
    settings = snapshot.engine_settings if snapshot else {}
    left_out = {word.strip() for name in _NO_MOUNT for word in environment.get(name, "").split(",")}
    for name, folders in _SETTING_FOLDERS.items():
        if settings.get(f"mount {name}", "yes") != "no" and name not in left_out:
            yield from (
                Mount(path, by=f"the engine mounts another {path} over it (`mount {name}` in its configuration)")
                for path in folders
            )
    if settings.get("mount hostfs") == "yes" and "hostfs" not in left_out:
        by = "the engine mounts file systems of the host over the image (`mount hostfs` in its configuration)"
        yield Mount("/", by=f"{by}; which ones is not recorded", is_sure=False)
    if settings.get("mount home", "yes") != "no" and "home" not in left_out and not any(map(environment.get, _NO_HOME)):
        yield from _homes(environment, settings, snapshot)
    if "bind-paths" not in left_out:
        yield from _configured_mounts(settings.get("bind path", ""))
    here = environment.get("PWD", "")
    if "cwd" not in left_out and here.startswith("/") and here not in _NEVER_FROM_CWD:
        yield Mount(here, by="a job started in this folder of the host sees the host's folder instead", is_sure=False)


def _homes(environment: Mapping[str, str], settings: Mapping[str, str], snapshot: Snapshot | None) -> Iterator[Mount]:
    """Yield the user's home; where that is not known, as on another machine, the folders that contain homes."""
    by = "the engine mounts the user's home over it (`mount home` in its configuration)"
    home = environment.get("HOME", "").rstrip("/")
    is_here = snapshot is None or snapshot.host == platform.node().partition(".")[0]
    if home.startswith("/"):
        alone = settings.get("enable overlay") == settings.get("enable underlay") == "no"
        yield Mount("/".join(home.split("/")[:2]) if alone else home, by=by, is_sure=is_here)
    if not home or not is_here:
        yield from (
            Mount(folder, by=f"{by}, if that is its home", is_sure=False) for folder in scan_facts().own_folders
        )


def _configured_mounts(paths: str) -> Iterator[Mount]:
    """Yield the mounts of `bind path` in the configuration; none of them is certain."""
    for text in filter(None, map(str.strip, paths.split(","))):
        try:
            bind = parse_binds(text)[0]
        except BadInputError:
            continue  # the engine refuses it
        if bind.target not in _FILES:
            by = f"the engine binds the host's {bind.source} over it (`bind path` in its configuration)"
            yield Mount(bind.target, by=by, is_sure=False)


# -- applying a manifest --


def complete(manifest: SolvedManifest, snapshot: Snapshot, root: RootFileSystem, site: Site | None) -> SolvedManifest:
    """Return a manifest with the binds that its site and engine need, or a refusal where the engine forbids them.

    `root` is the image's; a manifest that refuses already is returned unchanged.
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
        notes.append(f"the image has no {_TAKES_VARIABLES}: the engine does not pass variables to it")
    return replace(manifest, binds=tuple(binds), notes=tuple(notes))


def _forbidden(manifest: SolvedManifest, settings: Mapping[str, str], root: RootFileSystem) -> Refusal | None:
    """Return why the machine's engine would not start with these binds; None where no reason is known."""
    if not manifest.binds:
        return None
    chain = tuple(bind.target.rpartition("/")[2] for bind in manifest.binds[:1])
    if settings.get("user bind control") == "no":
        need, have = "a bind", "this machine's engine refuses binds by users"
        words = "`user bind control = no` in the configuration of the engine"
    elif settings.get("enable overlay") == settings.get("enable underlay") == "no" and not root.exists(HOST_LIB_DIR):
        need, have = (
            f"the folder {HOST_LIB_DIR}",
            "it is not in the image, and the engine here does not create it",
        )
        words = "`enable overlay = no` and `enable underlay = no` in the configuration of the engine"
    else:
        return None
    return Refusal("the binds that would load", HOST_LIB_DIR, need, have, chain, words, of_host=True)
