"""Building on overlays: each layer's script runs over what is below it, and only what it changed is kept.

No base is unpacked, and none is compressed again. It takes a user namespace with all of the user's ids, and FUSE. The
overlay is the kernel's: fuse-overlayfs, with which engines lay layers over an image for a user, makes empty files of
pipes, takes owners of links and set-user-id bits away, and refuses what scripts may do.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from lumiimg.build.safe_fs import mount_points
from lumiimg.build.squash import squash
from lumiimg.build.strategy import Strategy, offset_of, require_own_folder
from lumiimg.image import open_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild


class Overlay(Strategy):
    """Layers as overlays over their base."""

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Run a layer's script over `below`, and write what it changed as a squashfs."""
        upper, placed = step.folder / "upper", step.folder / "placed.json"
        upper.mkdir()
        step.run_helper("place", upper, placed, *below)
        _run(step, below, upper, step.script)
        step.run_helper("take", upper, placed, *below)
        squash(step.machine, upper, target, within=step.as_root)
        require_own_folder(step, below, target)
        if step.definition.sections.test:
            lost = step.folder / "lost"  # with what a test writes
            lost.mkdir()
            _run(step, [*below, target], lost, step.test)


def _run(step: LayerBuild, layers: Sequence[Path], upper: Path, program: Callable[[str], list[str]]) -> None:
    """Run a program of a layer over `layers`; what it writes is in `upper`."""
    with open_stack(layers) as image:
        upper.chmod(image.root.stat("/").permissions | stat.S_IWUSR)
        with mount_points(upper, image.root) as place:
            merged, within = _mounted(step, layers, upper)
            step.run(merged, program(place), place, writable=True, within=within)


def _mounted(
    step: LayerBuild, layers: Sequence[Path], upper: Path
) -> tuple[Path, Callable[[list[str | Path]], list[str | Path]]]:
    """Return a folder, and what makes a command one that finds `layers` mounted there; what it writes is in `upper`."""
    mounts = step.folder / "mounts"
    merged, work = mounts / "merged", mounts / "work"  # the kernel's: out of the script's reach
    for folder in (merged, work, *(mounts / f"{number}" for number in range(len(layers)))):
        folder.mkdir(parents=True, exist_ok=True)
    script = ["set -e", f"cd {mounts}"]  # the options of a mount are a page at most
    for number, layer in enumerate(layers):
        script.append(f'squashfuse_ll -o offset={offset_of(layer)} "${{{number + 1}}}" {number}')
    lower = "lowerdir=" + ":".join(f"{number}" for number in reversed(range(len(layers))))
    script.append(f"mount -t overlay overlay -o userxattr,{lower},upperdir={upper},workdir={work} merged")
    # squashfuse may have died meanwhile, of a layer or for want of memory: programs then find no files, and go on
    script += [
        f'cd /; shift {len(layers)}; code=0; "$@" || code=$?',
        f"cd {mounts}; LC_ALL=C ls {' '.join(f'{number}' for number in range(len(layers)))} >/dev/null",
        "exit $code",
    ]

    def within(argv: list[str | Path]) -> list[str | Path]:
        return step.machine.as_root(["/bin/sh", "-c", "\n".join(script), "sh", *layers, *argv], mount=True)

    return merged, within
