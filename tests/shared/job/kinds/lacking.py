"""A Python whose standard library is not all there: built without libffi, copied from another image, cut down by a distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.shared.job.kinds.place import Planted, home_of

if TYPE_CHECKING:
    import random

    from tests.shared.job.world import World

_FILES = (
    *("lib-dynload/_ctypes.*", "lib-dynload/_struct.*", "lib-dynload/_heapq.*", "struct.py", "types.py", "os.py"),
    *("warnings.py", "zipimport.py", "collections/__init__.py"),
)


def lacking(world: World, draw: random.Random) -> Planted:
    """Remove a file, or the library that `_ctypes` needs."""
    name = draw.choice(["libffi", *_FILES, *_FILES[:1]])
    folder = world.at(f"{home_of(world)}/lib/python{world.system.version}")
    place = world.at(world.system.folder) if name == "libffi" else folder
    for file in [*place.glob("libffi.so*" if name == "libffi" else name)]:
        file.unlink()
    return Planted(f"without {name}")
