"""Make the files of a base from Debian's archive, a registry or a local image: by lumiimg, else by the engine.

Where lumiimg makes the files, the script of the base runs over them like that of a layer.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from typing import TYPE_CHECKING

from lumiimg.build.metadata import date_labels, write_config
from lumiimg.build.safe_fs import folder
from lumiimg.core.errors import MissingHereError
from lumiimg.engine import engine as engines
from lumiimg.engine.process import run
from lumiimg.image import require_room
from lumiimg.image.sif import SifHeader, write_sif
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.fetch.store import Store

_OF_WGET = "timeout = 300\ntries = 3\n"
"""Limits for debootstrap's wget, which otherwise waits for hours for a silent server. Source: wget(1), wgetrc."""
_EXCLUDED = "openssl,udev,debconf-i18n,e2fsprogs"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_IN_CONTAINER = {"container": "lxc", "DEBIAN_FRONTEND": "noninteractive"}
"""In such a container debootstrap creates no devices, which nobody may do in a user namespace. Source: its functions,
setup_devices and detect_container."""
_OF_THIS_MACHINE = ("resolv.conf", "hostname")
"""Files of this machine's /etc that debootstrap copies into the base. Source: its functions, setup_etc."""


def make_base(step: LayerBuild, target: Path, store: Store) -> None:
    """Make the files of a base, or the whole base by the engine where it has to, as a SIF with our own file system.

    Raises FailedError if that fails, MissingHereError if this machine lacks something that it needs.
    """
    root = step.folder / "root"
    if step.machine.builds_base(step.definition.sections.header.agent):
        write_files(step, root, store)
    else:
        build_by_engine(step, root)
        date_labels(root)
        step.run_helper("drop", root)
    step.say("packing the files")
    step.run_helper("tidy", root)
    write_base(step, root, target)


def write_base(step: LayerBuild, root: Path, target: Path) -> None:
    """Write the files of a base as a SIF. Raises FailedError."""
    header = SifHeader(step.definition.text, {})
    step.squash(root, target, header.size_bytes)
    write_sif(target, header, identity=step.definition.name)


def write_files(step: LayerBuild, root: Path, store: Store) -> None:
    """Write the files of a base, as they are before its script runs, into a new folder."""
    header = step.definition.sections.header
    image = step.folder / "image"
    match header.agent:
        case "debootstrap":
            run_as_root(step, _debootstrap(step, root))
            with folder(root, "/etc") as etc:
                for name in _OF_THIS_MACHINE:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=etc)
            step.run_helper("drop", root)
            return
        case "docker":
            config = store.image(header.origin, image, step.say, insecure=step.definition.plain_http)
            root.mkdir()
            write_config(root, config)
        case "localimage":
            image = step.folder / header.origin
        case agent:
            raise MissingHereError(f"only container engines can make bases with {agent}", hint="install Apptainer")
    step.say("unpacking the image")
    step.unpack(image, root, keeps_own=header.agent == "docker")


def build_by_engine(step: LayerBuild, target: Path) -> None:
    """Have the engine itself build the definition into a folder. Raises FailedError if a script fails.

    It gets the user's registry logins only for registries with TLS.
    """
    header, plain_http = step.definition.sections.header, step.definition.plain_http
    if header.agent == "localimage":
        require_room(step.folder / header.origin, target)
    with_tls = header.agent == "docker" and not plain_http
    engine, environment = step.machine.engine, step.environment
    environment = environment if with_tls else engines.without_logins(environment, step.scratch)
    words = engines.build_words(engine, f"{step.definition.name}.def", target, plain_http=plain_http)
    environment = engines.unpacking_in(step.scratch, engine, environment)
    step.check(run(words, env=environment, cwd=step.folder, log=step.log, on_line=step.on_line))


def _debootstrap(step: LayerBuild, root: Path) -> list[str | Path]:
    """Return the debootstrap command that makes this base, with the same options as an engine.

    Raises MissingHereError. Source: apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_debootstrap.go.
    """
    header, found = step.definition.sections.header, debootstrap_at(step.environment.get("PATH"))
    if found is None:
        raise MissingHereError("debootstrap is not on PATH", hint="install it from the distribution")
    include = f"--include={','.join(('apt', *header.include))}"
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    options = [f"--exclude={_EXCLUDED}", include, f"--arch={architecture}", "--force-check-gpg"]
    return [found, "--variant=minbase", *options, header.origin, root, header.mirror_url or ""]


def run_as_root(step: LayerBuild, argv: list[str | Path]) -> None:
    """Run a program as root with its own mounts and without the user's logins. Raises FailedError."""
    limits = step.scratch / "wgetrc"
    limits.write_text(_OF_WGET, encoding="ascii")
    env = {**engines.without_logins(step.environment, step.scratch), **_IN_CONTAINER, "WGETRC": str(limits)}
    step.check(run(step.machine.as_root(argv, mount=True), env=env, log=step.log, on_line=step.on_line))
