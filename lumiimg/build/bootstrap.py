"""The files of a base by lumiimg itself, with any engine: from Debian's archive, a registry, or an image that is here.

What an engine adds to them is `engine_metadata.py`'s. The script of the base runs over them as a layer's does.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.build.engine_metadata import begin_base, begin_layer
from lumiimg.build.layer_root import LayerRoot
from lumiimg.definition.definition import DEBOOTSTRAP, Header
from lumiimg.errors import MissingHereError
from lumiimg.files import EPOCH
from lumiimg.resolve.bootstrap import MMDEBSTRAP, bootstrapper_at

if TYPE_CHECKING:
    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.resolve.store import Store

_EXCLUDED = "openssl,udev,debconf-i18n,e2fsprogs"
_INCLUDED = ("apt",)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SILENT_S = 30 * 60.0
"""debootstrap prints a line per package, and its wget waits for hours. mmdebstrap has apt's own limits."""
_IN_CONTAINER = {"container": "lxc", "DEBIAN_FRONTEND": "noninteractive"}
"""debootstrap makes no devices in such a container, which nobody may in a namespace of users. Source: its functions,
setup_devices and detect_container."""


def write_files(step: LayerBuild, root: Path, store: Store) -> None:
    """Write the files of a base into a new folder, as they are before its script.

    Raises FailedError where that fails, MissingHereError where this machine lacks what it takes.
    """
    header, plain_http = step.definition.sections.header, step.definition.plain_http
    match header.agent:
        case "debootstrap":
            program = step.machine.bootstrapper or DEBOOTSTRAP
            command = archive_command(program, header, root, step.environment.get("PATH"))
            step.own_root(command, variables_of(program), silent_s=_SILENT_S if program == DEBOOTSTRAP else None)
            begin_base(LayerRoot(root))
        case "docker":
            image = step.folder / "image"
            config = store.image(header.origin, image, step.say, plain_http=plain_http)
            _unpack(step, root, image)
            begin_base(LayerRoot(root), config)
        case "oras":
            sif = step.folder / "image.sif"
            step.say(f"fetching {header.origin}")
            store.sif(header.origin, sif, plain_http=plain_http)
            _unpack(step, root, sif)
            begin_layer(LayerRoot(root))
        case "localimage":
            _unpack(step, root, step.folder / header.origin)
            begin_layer(LayerRoot(root))
        case agent:
            raise MissingHereError(f"bases by {agent} are made by container engines alone", hint="install Apptainer")


def _unpack(step: LayerBuild, root: Path, image: Path) -> None:
    step.say("unpacking the image")
    step.inside("unpack", root, image)


def archive_command(program: str, header: Header, root: Path, path: str | None) -> list[str | Path]:
    """Return the command by which a program makes such a base: debootstrap as an engine calls it, mmdebstrap alike.

    Raises MissingHereError. Source: apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_debootstrap.go.
    """
    found = bootstrapper_at(program, path)
    if found is None:
        raise MissingHereError(f"{program} is not on PATH", hint="install it: it is a package of most distributions")
    include = f"--include={','.join((*_INCLUDED, *header.include))}"
    architecture, mirror = _ARCHITECTURES.get(platform.machine(), platform.machine()), header.mirror_url or ""
    if program == MMDEBSTRAP:
        options = ["--mode=root", "--format=directory", include, f"--architectures={architecture}"]
        options.append(f"--keyring={_keyring(mirror)}")
        return [found, "--variant=minbase", *options, header.origin, root, *([mirror] if mirror else [])]
    options = [f"--exclude={_EXCLUDED}", include, f"--arch={architecture}", "--force-check-gpg"]
    return [found, "--variant=minbase", *options, header.origin, root, mirror]


def variables_of(program: str) -> dict[str, str]:
    """Return what such a program gets beside the user's variables; mmdebstrap makes the same files each time by it."""
    return _IN_CONTAINER | ({"SOURCE_DATE_EPOCH": f"{EPOCH}"} if program == MMDEBSTRAP else {})


def _keyring(mirror: str) -> Path:
    """Return the keys of an archive, by which debootstrap knows it; mmdebstrap would take all that apt here trusts."""
    archive = "ubuntu" if mirror.rstrip("/").endswith("/ubuntu") else "debian"
    found = Path(f"/usr/share/keyrings/{archive}-archive-keyring.gpg")
    if not found.is_file():
        raise MissingHereError(f"{found} is not here", hint=f"install the package {archive}-archive-keyring")
    return found
