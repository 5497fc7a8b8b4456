"""A tree with everything that a folder can contain; mksquashfs 4.7.5 packed it into tests/fixtures/squashfs.

`python -m tests.shared.squashfs_tree` remakes these file systems.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures/squashfs"
COMPRESSIONS = ("gzip", "xz", "zstd", "lz4", "lzma")
NOT_READ = "lzo"
STRATEGIES: dict[str, tuple[str, ...]] = {
    "no-fragments": ("-no-fragments", "-b", "4096"),
    "large-blocks": ("-b", "1M"),
    "not-compressed": ("-noI", "-noD", "-b", "4096"),
    "fragments": ("-always-use-fragments", "-b", "4096"),
}
TIME = 1_600_000_000
_BAD_NAME = b"not-utf8-\xff\xfe"


def fill(root: Path) -> None:
    noise = random.Random(7)  # noqa: S311
    (root / "empty").write_bytes(b"")
    (root / "small").write_bytes(b"small\n")
    (root / "block").write_bytes(noise.randbytes(4096))
    (root / "large").write_bytes(b"".join(noise.randbytes(2500) + bytes(2500) for _ in range(9)))
    with (root / "sparse").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"after a hole")
        file.truncate((3 << 20) + 17)
    (root / "many").mkdir()
    for index in range(1500):
        (root / f"many/{index:05}-{'x' * (index % 40)}").write_bytes(str(index).encode() if index < 300 else b"")
    (root / ("n" * 255)).write_bytes(b"long name")
    Path(os.fsdecode(os.fsencode(root) + b"/" + _BAD_NAME)).write_bytes(b"odd name")
    (root / "line\nbreak").write_bytes(b"newline")
    (root / "setuid").write_bytes(b"#!")
    (root / "setuid").chmod(0o4755)
    os.link(root / "small", root / "hard")
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/file").write_bytes(b"deep")
    os.mkfifo(root / "fifo")
    for name, target in {
        "to-small": "small",
        "to-absolute": "/deep/er/file",
        "to-dir": "deep",
        "up": "deep/../small",
        "above": "../../../../../small",
        "dangling": "nowhere",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "through-file": "small/x",
        "host": "/etc/passwd",
    }.items():
        (root / name).symlink_to(target)
    for folder, folders, files in os.walk(root):
        for name in (*files, *folders):
            os.utime(Path(folder) / name, (TIME, TIME), follow_symlinks=False)


def fill_small(root: Path) -> None:
    """Make a few files, for a file system whose every byte is known."""
    (root / "d/e").mkdir(parents=True)
    (root / "d/file").write_bytes(b"content" * 3000)
    (root / "d/e/tail").write_bytes(b"tail")
    (root / "link").symlink_to("d/file")


def mksquashfs(tree: Path, target: Path, *options: str) -> Path:
    """Pack a tree with the real mksquashfs, with fixed times and owner."""
    words: list[str | Path] = [
        "mksquashfs",
        tree,
        target,
        "-noappend",
        "-all-root",
        "-root-time",
        str(TIME),
        "-mkfs-time",
        str(TIME),
    ]
    subprocess.run([*words, *options, "-no-progress", "-quiet"], check=True, stdout=subprocess.DEVNULL)
    return target


def _make() -> None:
    os.umask(0o022)
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tree, small = Path(name) / "tree", Path(name) / "small"
        tree.mkdir()
        fill(tree)
        fill_small(small)
        for compression in (*COMPRESSIONS, NOT_READ):
            mksquashfs(tree, FIXTURES / compression, "-comp", compression, "-b", "4096")
        for way, options in STRATEGIES.items():
            mksquashfs(tree, FIXTURES / way, *options)
        mksquashfs(small, FIXTURES / "small", "-noI", "-noF", "-b", "4096", "-no-xattrs", "-all-time", str(TIME))


if __name__ == "__main__":
    _make()
