"""The two ways to build a layer: over an overlay on the layers below, or in one folder that contains all of them.

An overlay requires a user namespace with all of the user's ids, and FUSE. It is the kernel's overlay: fuse-overlayfs
turns pipes into empty files, drops owners of links and set-user-id bits, and refuses valid operations of scripts. A
sandbox requires no privilege: the changes of a layer are found by comparing listings before and after. Both ways give
the same kind of file, so either can continue from the other's layers.
"""

from __future__ import annotations

import os
import shlex
import stat
from typing import TYPE_CHECKING

from lumiimg.build.base import write_base
from lumiimg.build.layer_build import SCRIPT_ENVIRONMENT
from lumiimg.build.proot import built_elsewhere
from lumiimg.build.safe_fs import OWN, mount_points, set_mode
from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.engine.workspace import remove_tree
from lumiimg.image import DEFAULT_PATH, open_image, open_stack
from lumiimg.image.sif import squashfs_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild

_ENVIRONMENT = f"{OWN}/env"
_OF_ROOT = ("packages.sh", "python.sh", "apt-get", "zypper", "dpkg")
"""Words in scripts that require root: python.sh uses packages.sh to add what a Python lacks."""
_SOURCED = (f"{OWN}/env/10-docker2singularity.sh", f"{OWN}/env/90-environment.sh")
_BINDS = ("/proc", "/sys", "/dev", "/etc/resolv.conf")


class Overlay:
    """Builds layers as overlays over their base."""

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Run a layer's script over `below` (an image, then the results of layers); write its changes to `target`.

        Raises FailedError if a script fails, OSError for what the system refuses.
        """
        upper, placed = step.folder / "upper", step.folder / "placed.json"
        upper.mkdir()
        step.run_helper("place", upper, placed, *below)
        _run_over(step, below, upper)
        step.run_helper("take", upper, placed, *below)
        step.squash(upper, target)
        require_own_folder(step, below, target)
        if step.definition.sections.test:
            lost = step.folder / "lost"  # discarded, with anything that a test writes
            lost.mkdir()
            _run_over(step, [*below, target], lost, is_test=True)


class Sandbox:
    """Builds layers in one folder per build, which contains the lowest layers of the stack."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "root"
        self._held: list[int] = []
        """Inodes of the results in the folder: if another build stored a result first, that is a different file."""

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Run a layer's script on the layers below, and write its changes. Raises as `Overlay.layer`."""
        self._hold(step, below)
        root = self._root
        _require_own(step, root)
        before, delta = step.folder / "before.json", step.folder / "delta"
        step.run_helper("list", root, before)
        root.chmod(stat.S_IMODE(root.stat().st_mode) | stat.S_IWUSR)
        with open_image(root) as image, mount_points(root, image.root) as place:
            self._run(step, place)
            if not step.machine.has_subids:
                _open_to_owner(root)
        step.run_helper("difference", root, before, delta)
        step.run_helper("tidy", delta)
        step.squash(delta, target)
        require_own_folder(step, below, target)
        if step.definition.sections.test:
            with open_image(root) as image, mount_points(root, image.root) as place:
                step.run(root, place, is_test=True)
        self._held.append(target.stat().st_ino)

    def _hold(self, step: LayerBuild, layers: Sequence[Path]) -> None:
        """Make the folder contain exactly these layers."""
        wanted = [layer.stat().st_ino for layer in layers]
        if self._held != wanted[: len(self._held)]:
            remove_tree(self._root)
            self._root.mkdir()
            self._held = []
        for layer in layers[len(self._held) :]:
            step.unpack(layer, self._root)
        self._held = wanted

    def _run(self, step: LayerBuild, place: str) -> None:
        wants_root = any(word in step.definition.sections.post for word in _OF_ROOT)
        if step.machine.has_subids or not wants_root:
            step.run(self._root, place, writable=True)
            return
        proot = step.machine.proot
        if proot.program is None:
            raise MissingHereError(
                f"{step.name} installs packages, which requires root, and proot, which makes a user look like root, is "
                f"not here: {proot.said}",
                hint=f"on another machine: {built_elsewhere('…', step.environment)}",
            )
        # otherwise proot would wait for processes that the script left running
        words: list[str | Path] = [proot.program, "--kill-on-exit", "-0", "-r", self._root, "-w", "/"]
        keeps = {f"{prefix}_ENVIRONMENT": SCRIPT_ENVIRONMENT for prefix in ("SINGULARITY", step.machine.engine.prefix)}
        inside = {"HOME": "/root", "PATH": DEFAULT_PATH, **keeps}
        start = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in inside.items())]
        variables = {"PROOT_TMP_DIR": f"{step.scratch}", **proot.variables}
        with step.binds(place, step.work) as binds:
            shown = [*_BINDS, *(f"{bind.source}:{bind.target}" for bind in binds)]
            words += [word for bind in shown for word in ("-b", bind)]
            command = [*words, *start, *step.script(place, sourced=_SOURCED)]
            step.check(step.command(command, variables, step.on_line))


def require_own_folder(step: LayerBuild, below: Sequence[Path], layer: Path) -> None:
    """Raise FailedError if a script has removed the folder in which engines store the environment of an image."""

    def has_it(layers: Sequence[Path]) -> bool:
        with open_stack(layers) as image:
            return image.root.is_dir(_ENVIRONMENT) and image.root.resolve(_ENVIRONMENT) == _ENVIRONMENT

    if has_it(below) and not has_it([*below, layer]):
        raise FailedError(
            f"{step.name}: its script removes {_ENVIRONMENT}",
            hint="engines store the environment of all layers there: the script must not remove files of others",
        )


# -- overlays --


def _run_over(step: LayerBuild, layers: Sequence[Path], upper: Path, *, is_test: bool = False) -> None:
    """Run the script of a layer, or its test, over `layers`; what it writes goes into `upper`."""
    with open_stack(layers) as image:
        upper.chmod(image.root.stat("/").permissions | stat.S_IWUSR)
        with mount_points(upper, image.root) as place:
            merged, within = _mounted(step, layers, upper)
            step.run(merged, place, is_test=is_test, writable=True, within=within)


def _mounted(
    step: LayerBuild, layers: Sequence[Path], upper: Path
) -> tuple[Path, Callable[[list[str | Path]], list[str | Path]]]:
    """Return a folder, and a wrapper that runs a command with `layers` mounted there; writes go into `upper`."""
    mounts = step.folder / "mounts"
    merged, work = mounts / "merged", mounts / "work"  # `work` is the kernel's: out of the script's reach
    for folder in (merged, work, *(mounts / f"{number}" for number in range(len(layers)))):
        folder.mkdir(parents=True, exist_ok=True)
    here = shlex.quote(str(mounts))
    script = ["set -e", f"cd {here}"]  # relative paths: mount options fit into a page, without commas in paths
    for number, layer in enumerate(layers):
        (offset, _), *_ = squashfs_ranges(layer)
        script.append(f'squashfuse_ll -o offset={offset} "${{{number + 1}}}" {number}')
    lower = "lowerdir=" + ":".join(f"{number}" for number in reversed(range(len(layers))))
    script.append(f"mount -t overlay overlay -o userxattr,{lower},upperdir=../{upper.name},workdir={work.name} merged")
    # a damaged layer or lack of memory may have killed squashfuse: programs then find no files, but continue
    script += [
        f'cd /; shift {len(layers)}; code=0; "$@" || code=$?',
        f"cd {here}; LC_ALL=C ls {' '.join(f'{number}' for number in range(len(layers)))} >/dev/null",
        "exit $code",
    ]

    def within(argv: list[str | Path]) -> list[str | Path]:
        return step.machine.as_root(["/bin/sh", "-c", "\n".join(script), "sh", *layers, *argv], mount=True)

    return merged, within


# -- sandboxes --


def _require_own(step: LayerBuild, root: Path) -> None:
    """Raise FailedError if a root folder belongs to an id that the user has only inside a namespace."""
    if root.lstat().st_uid != os.geteuid() and not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise FailedError(
            f"{step.name}: the image's folder / does not belong to root, and cannot be written here",
            hint="`--strategy overlay` can build on it, if `lumiimg doctor` finds everything that it needs",
        )


def packed_again(step: LayerBuild, base: Path) -> Path:
    """Return a base from elsewhere as a SIF that is packed like layers. Raises FailedError, MissingHereError."""
    root, target = step.folder / "root", step.folder / "base.sif"
    step.unpack(base, root)
    write_base(step, root, target)
    return target


def _open_to_owner(root: Path) -> None:
    """Make everything readable by its owner, as root can read any mode (/etc/shadow often has 0000).

    mksquashfs stores unreadable files as empty ones, leaves out unreadable folders, and reports success.
    """
    for _, folders, files, at in os.fwalk(root):
        for name in folders:
            _have(at, name, stat.S_IRWXU)
        for name in files:
            _have(at, name, stat.S_IRUSR)


def _have(at: int, name: str, wanted: int) -> None:
    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if mode & wanted != wanted and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        set_mode(at, name, stat.S_IMODE(mode) | wanted)
