"""The files of a base without a container engine: from Debian's archive, a registry, or an image that is here.

What an engine adds to them is `engine_metadata.py`'s; the script of the base comes between its two halves.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from lumiimg.build.engine_metadata import begin_base, begin_layer, write_facts
from lumiimg.build.layer_root import OWN, LayerRoot
from lumiimg.definition.definition import DEBOOTSTRAP
from lumiimg.definition.engine_reader import read_definition
from lumiimg.engine.process import which
from lumiimg.errors import MissingHereError
from lumiimg.image import open_image

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.definition.definition import Header
    from lumiimg.resolve.store import Store

_EXCLUDED = "openssl,udev,debconf-i18n,e2fsprogs"
_INCLUDED = ("apt",)
_SBIN = "/usr/sbin:/sbin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
IN_CONTAINER = {"container": "lxc", "DEBIAN_FRONTEND": "noninteractive"}
"""debootstrap makes no devices in such a container, which nobody may in a namespace of users. Source: its functions,
setup_devices and detect_container."""


def make_base(step: LayerBuild, root: Path, store: Store) -> None:
    """Write the files of a base into a new folder, and run its script and its test there.

    Raises FailedError where that fails, MissingHereError where this machine lacks what it takes.
    """
    _files(step, root, store)
    with open_image(root) as image, step.placed(root, image.root) as argv:
        step.run(root, argv, writable=True)
    write_facts(LayerRoot(root), read_definition(step.definition.text))
    if step.definition.sections.test:
        step.run(root, [f"{OWN}/test"])


def _files(step: LayerBuild, root: Path, store: Store) -> None:
    header, plain_http = step.definition.sections.header, step.definition.plain_http
    match header.agent:
        case "debootstrap":
            step.own_root(debootstrap(header, root, step.environment.get("PATH")), IN_CONTAINER)
            begin_base(LayerRoot(root))
        case "docker":
            image = step.folder / "image"
            config = store.image(header.origin, image, step.on_line, plain_http=plain_http)
            step.inside("unpack", root, image)
            begin_base(LayerRoot(root), config)
        case "oras":
            sif = step.folder / "image.sif"
            store.sif(header.origin, sif, plain_http=plain_http)
            step.inside("unpack", root, sif)
            begin_layer(LayerRoot(root))
        case "localimage":
            step.inside("unpack", root, step.folder / header.origin)
            begin_layer(LayerRoot(root))
        case agent:
            raise MissingHereError(f"bases by {agent} are made by container engines alone", hint="install Apptainer")


def debootstrap(header: Header, root: Path, path: str | None) -> list[str | Path]:
    """Return the command by which an engine would make such a base. Raises MissingHereError.

    Source: apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_debootstrap.go.
    """
    program = which(DEBOOTSTRAP, f"{os.defpath if path is None else path}:{_SBIN}")
    if program is None:
        raise MissingHereError("debootstrap is not on PATH", hint="install it: it is a package of most distributions")
    include = ",".join((*_INCLUDED, *header.include))
    architecture = _ARCHITECTURES[platform.machine()]
    options = ("--variant=minbase", f"--exclude={_EXCLUDED}", f"--include={include}", f"--arch={architecture}")
    return [program, *options, "--force-check-gpg", header.origin, root, header.mirror_url or ""]
