"""Whose file each file of the fabric path is: the image's, or the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf import facts_at
from lumiimg.engine.binds import binds_of
from lumiimg.fabric.names import HOST_LIB_DIR, newest_interface
from lumiimg.fabric.path import FabricPath, Origin, Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.host.manifest import Loaded
    from lumiimg.image import Image


def origins(
    path: FabricPath, image: Image, environment: Mapping[str, str], loaded: Iterable[Loaded] = (), *, running: bool
) -> dict[str, Origin]:
    """Return, for each file of a path, whose it is.

    `loaded`: the process as it is modelled with what is bound. `running`: the path was seen in a process; then a file
    that the image does not have, or over which the user binds something, is the host's.
    """
    modelled = {item.path: item for item in loaded}
    bound = tuple(f"{bind.target.rstrip('/')}/" for _, each in binds_of(environment) for bind in each)
    found: dict[str, Origin] = {}
    for file in filter(None, (path.rccl, path.plugin, path.libfabric, path.libcxi)):
        if (item := modelled.get(file)) is not None:
            newest = newest_interface(file, item.object.facts.version_definitions)
            found[file] = Origin(item.side, item.host_path, newest)
        elif file.startswith(f"{HOST_LIB_DIR}/") or (running and f"{file}/".startswith(bound)):
            found[file] = Origin(Side.HOST)
        elif image.root.is_file(file):
            facts = facts_at(image.root, file)
            found[file] = Origin(Side.IMAGE, offers=newest_interface(file, facts.version_definitions if facts else ()))
        else:
            found[file] = Origin(Side.HOST)
    return found
