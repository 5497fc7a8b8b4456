"""How debootstrap is called, with any engine."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from lumiimg.errors import MissingHereError
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.definition.definition import Header

_EXCLUDED = "openssl,udev,debconf-i18n,e2fsprogs"
_INCLUDED = ("apt",)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
IN_CONTAINER = {"container": "lxc", "DEBIAN_FRONTEND": "noninteractive"}
"""debootstrap makes no devices in such a container, which nobody may in a namespace of users. Source: its functions,
setup_devices and detect_container."""


def archive_command(header: Header, root: Path, path: str | None) -> list[str | Path]:
    """Return the command by which debootstrap makes such a base, as an engine calls it.

    Raises MissingHereError. Source: apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_debootstrap.go.
    """
    found = debootstrap_at(path)
    if found is None:
        raise MissingHereError("debootstrap is not on PATH", hint="install it: it is a package of most distributions")
    include = f"--include={','.join((*_INCLUDED, *header.include))}"
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    options = [f"--exclude={_EXCLUDED}", include, f"--arch={architecture}", "--force-check-gpg"]
    return [found, "--variant=minbase", *options, header.origin, root, header.mirror_url or ""]
