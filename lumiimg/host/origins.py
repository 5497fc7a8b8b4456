"""Whose file each file of the fabric path is: the image's, or the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.system import facts_at
from lumiimg.engine.binds import binds_of
from lumiimg.fabric.names import PRIVATE, newest_interface
from lumiimg.fabric.path import FabricPath, Origin, Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumiimg.host.manifest import Loaded
    from lumiimg.image import Image


def origins(
    path: FabricPath,
    image: Image | None,
    environment: Mapping[str, str],
    loaded: Iterable[Loaded] = (),
    *,
    running: bool,
) -> dict[str, Origin]:
    """Return, for each file of a path, whose it is.

    `loaded`: the process as it is modelled with what is bound. `running`: the path was seen in a process; then a file
    that the image does not have, or over which the user binds something, is the host's. `image`: None for a path whose
    files are all modelled, or the image's.
    """
    modelled = {item.object.path: item for item in loaded}
    binds = [bind for _, each in binds_of(environment) for bind in each] if running else []
    targets = [f"{bind.target.rstrip('/')}/" for bind in binds]
    found: dict[str, Origin] = {}
    for file in filter(None, (path.rccl, path.plugin, path.libfabric, path.libcxi)):
        item = modelled.get(file)
        if item is not None:
            found[file] = Origin(
                item.side, item.host_path, newest_interface(file, item.object.facts.version_definitions)
            )
        elif file.startswith(f"{PRIVATE}/") or any(f"{file}/".startswith(target) for target in targets):
            found[file] = Origin(Side.HOST)
        elif image is None:
            found[file] = Origin(Side.IMAGE)
        elif image.root.is_file(file):
            facts = facts_at(image.root, file)
            found[file] = Origin(Side.IMAGE, offers=newest_interface(file, facts.version_definitions if facts else ()))
        else:
            found[file] = Origin(Side.HOST)
    return found
