"""The files of a base by lumiimg itself, with any engine: from Debian's archive, a registry, or an image that is here.

The script of the base runs over them as a layer's does.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from typing import TYPE_CHECKING

from lumiimg.build.metadata import write_config
from lumiimg.build.safe_fs import folder
from lumiimg.errors import MissingHereError
from lumiimg.image.unpacked_size import require_room
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.definition.definition import Header
    from lumiimg.fetch.store import Store

_SILENT_S = 30 * 60.0
"""debootstrap prints a line per package, and its wget waits for hours."""
_EXCLUDED = "openssl,udev,debconf-i18n,e2fsprogs"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_IN_CONTAINER = {"container": "lxc", "DEBIAN_FRONTEND": "noninteractive"}
"""debootstrap makes no devices in such a container, which nobody may in a namespace of users. Source: its functions,
setup_devices and detect_container."""
_OF_THIS_MACHINE = ("resolv.conf", "hostname")
"""Files of this machine's /etc that debootstrap copies into the base. Source: its functions, setup_etc."""


def write_files(step: LayerBuild, root: Path, store: Store) -> None:
    """Write the files of a base into a new folder, as they are before its script.

    Raises FailedError where that fails, MissingHereError where this machine lacks what it takes.
    """
    header, plain_http = step.definition.sections.header, step.definition.plain_http
    match header.agent:
        case "debootstrap":
            command = _debootstrap(header, root, step.environment.get("PATH"))
            step.own_root(command, _IN_CONTAINER, silent_s=_SILENT_S)
            with folder(root, "/etc") as etc:
                for name in _OF_THIS_MACHINE:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=etc)
        case "docker":
            image = step.folder / "image"
            config = store.image(header.origin, image, step.say, insecure=plain_http)
            root.mkdir()
            write_config(root, config)
            _unpack(step, root, image)
        case "oras":
            sif = step.folder / "image.sif"
            store.image(header.origin, sif, step.say, insecure=plain_http)
            _unpack(step, root, sif)
        case "localimage":
            _unpack(step, root, step.folder / header.origin)
        case agent:
            raise MissingHereError(f"bases by {agent} are made by container engines alone", hint="install Apptainer")


def _unpack(step: LayerBuild, root: Path, image: Path) -> None:
    step.say("unpacking the image")
    require_room(image, root)
    step.run_helper("unpack", root, image)


def _debootstrap(header: Header, root: Path, path: str | None) -> list[str | Path]:
    """Return the command by which debootstrap makes such a base, as an engine calls it.

    Raises MissingHereError. Source: apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_debootstrap.go.
    """
    found = debootstrap_at(path)
    if found is None:
        raise MissingHereError("debootstrap is not on PATH", hint="install it: it is a package of most distributions")
    include = f"--include={','.join(('apt', *header.include))}"
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    options = [f"--exclude={_EXCLUDED}", include, f"--arch={architecture}", "--force-check-gpg"]
    return [found, "--variant=minbase", *options, header.origin, root, header.mirror_url or ""]
