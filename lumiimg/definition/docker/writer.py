"""Write a lock as a Dockerfile: one stage per layer, which runs the script of the layer's definition with its files.

A stage is a spython `Recipe`, and spython's Dockerfile writer renders what it renders correctly: COPY, LABEL, RUN. Its
`convert` is unsuitable (spython 0.3.14, `main/parse/writers/docker.py`): it puts every ENV before the first RUN, drops
the keyword of a line with USER in it (`PYTHONNOUSERSITE=1`), copies files by ADD, which unpacks archives, and turns a
test into a HEALTHCHECK, which would run for as long as the container does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.core.errors import RefusedError
from lumiimg.definition.definition import BUILD_FOLDER, OWN_ENVIRONMENT, OWN_TEST, export
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import CLEAN
from lumiimg.image import DEFAULT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spython.main.parse.recipe import Recipe

    from lumiimg.definition.definition import Definition, StagedFile
    from lumiimg.resolve.lock import Lock, LockedLayer

PLATFORM = "linux/amd64"
"""The platform of all sites; that of a laptop may differ."""
IN_IMAGE = "image"
"""The folder beside a Dockerfile that is copied into the image unchanged."""
_SCRIPT = "script"
_MANGLED = frozenset('"$\\`')
_HEAD = f"""\
# Written by lumiimg {__version__}. Build it with BuildKit (Docker 23 or later), Podman or Buildah, in its own folder.
"""


@dataclass(frozen=True, slots=True)
class DockerContext:
    """A Dockerfile and the files beside it: Docker's build context."""

    text: str
    files: tuple[StagedFile, ...]
    """Files of the layers, as in their definitions."""
    scripts: Mapping[str, str]
    """Texts of scripts by path, to be run during the build or in the image."""


def write_dockerfile(lock: Lock, chain: Sequence[Definition]) -> DockerContext:
    """Return the stack of a lock as a Dockerfile; `chain` contains its definitions.

    Raises RefusedError if the base is not in a registry, DefinitionError for a value that would be garbled.
    """
    from spython.main.parse.recipe import Recipe  # 150 ms

    if lock.bootstrap.image is None:
        raise RefusedError(
            f"a Dockerfile starts from an image in a registry, and {lock.bootstrap.origin} is not in one",
            hint="push an image to a registry, and name it: --base docker://HOST/NAME",
        )
    origin, lines, scripts = f"{lock.bootstrap.image}", [_HEAD], dict[str, str]()
    extends_path = any("PATH" in layer.prepend_environment for layer in lock.stack)
    for number, (layer, definition) in enumerate(zip(lock.stack, chain, strict=True), 1):
        stage, name = Recipe(), f"layer-{number:02}-{layer.name}"
        stage.fromHeader, stage.labels = origin, [_pair(*label) for label in definition.sections.labels]
        if extends_path and number == 1:
            stage.environ = [f'PATH="${{PATH:-{DEFAULT_PATH}}}"']  # if the base sets none, no command would be found
        stage.environ += _environment(layer)
        if layer.layer.post:
            script = f"files/{layer.name}/{_SCRIPT}/post.sh"
            scripts[script] = _script(definition, layer.name)
            stage.install = [_run(layer.name, script, definition.files)]
        lines += _rendered(stage, name, is_first=number == 1)
        origin = name
    last = Recipe()
    last.fromHeader, last.files = origin, [[f"{IN_IMAGE}/", "/"]]
    last.install = [f'["rm", "-rf", "{BUILD_FOLDER}"]']
    if test := chain[-1].sections.test:
        scripts[f"{IN_IMAGE}{OWN_TEST}"] = test
        last.install.append(f'["{OWN_TEST}"]')
    if firm := "".join(_firm(lock.stack, chain)):
        scripts[f"{IN_IMAGE}{OWN_ENVIRONMENT}"] = f"#!/bin/sh\n{firm}"
    lines += _rendered(last, "image", is_first=False)
    return DockerContext("\n".join(lines), tuple(file for one in chain for file in one.files), scripts)


def _rendered(stage: Recipe, name: str, *, is_first: bool) -> Iterator[str]:
    """Yield the instructions of a stage: its variables also apply to the stages above, as in a chain of definitions."""
    from spython.main.parse.writers.docker import write_files, write_lines

    yield f"FROM {f'--platform={PLATFORM} ' if is_first else ''}{stage.fromHeader} AS {name}"
    if is_first:
        yield "USER root"
    yield from write_files("COPY", stage.files)
    yield from write_lines("RUN", stage.install)
    yield from (f"ENV {variable}" for variable in stage.environ)
    yield from write_lines("LABEL", stage.labels)
    yield ""


def _script(definition: Definition, name: str) -> str:
    """Return the script of a layer, with removal of its leftovers; what is mounted there cannot be removed."""
    folder = f"{BUILD_FOLDER}/{name}"
    return f"{definition.sections.post.removesuffix(CLEAN)}rm -rf {folder}/work {folder}/kept\n"


def _run(name: str, script: str, files: Iterable[StagedFile]) -> str:
    """Return the RUN of a script with its layer's folders mounted: copied archives would stay in the image."""
    folders = dict.fromkeys([script.rpartition("/")[0], *("/".join(file.path.split("/")[:3]) for file in files)])
    mounts = (f"--mount=type=bind,source={one},target={BUILD_FOLDER}/{one.removeprefix('files/')}" for one in folders)
    return " \\\n    ".join([*mounts, f'["/bin/bash", "{BUILD_FOLDER}/{name}/{_SCRIPT}/post.sh"]'])


def _environment(layer: LockedLayer) -> Iterator[str]:
    where = f"{layer.name}/layer.toml [environment]"
    for name, value in (*layer.set_environment.items(), *layer.prepend_environment.items()):
        if _MANGLED & {*value}:
            # apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_oci.go, escapes twice: `a"b` or "`x" stops all
            # later variables of the image from being set
            what = f"{name} has one of {' '.join(sorted(_MANGLED))}, which Apptainer garbles when it converts an image"
            raise DefinitionError(what, where=where, hint="write the value without it, or build with lumiimg")
    yield from (_pair(name, value) for name, value in layer.set_environment.items())
    yield from (f'{name}="{value}${{{name}:+:${name}}}"' for name, value in layer.prepend_environment.items())


def _firm(stack: Sequence[LockedLayer], chain: Sequence[Definition]) -> Iterator[str]:
    """Yield commands that set variables in Apptainer whatever the user's shell has, as definitions do; ENV would not.

    Prepended paths are only in ENV: an engine takes PATH and LD_LIBRARY_PATH from no shell.
    """
    for layer, definition in zip(stack, chain, strict=True):
        for variable in definition.sections.environment:
            if variable[0] in layer.set_environment:
                yield f"{export(variable)}\n"


def _pair(name: str, value: str) -> str:
    """Return a pair of ENV or LABEL that needs no escaping."""
    return f'{name}="{value}"'
