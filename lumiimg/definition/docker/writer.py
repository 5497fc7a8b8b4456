"""Lock to Dockerfile: a stage for each layer, which runs what the layer's definition runs, with the same files.

spython's `Recipe` is a stage; what its writer of Dockerfiles renders as it should is left to it: COPY, LABEL, RUN. Its
`convert` would not do (spython 0.3.14, `main/parse/writers/docker.py`): every ENV is before the first RUN, a line with
USER in it (`PYTHONNOUSERSITE=1`) loses its keyword, files come by ADD, which unpacks archives, and a test becomes a
HEALTHCHECK, which would run for as long as the container does.
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
"""Of the machines of all sites; a laptop may be another."""
IN_IMAGE = "image"
"""The folder beside a Dockerfile that is copied into the image as it is."""
_SCRIPT = "script"
_MANGLED = frozenset('"$\\`')
_HEAD = f"""\
# Written by lumiimg {__version__}. Build it with BuildKit (Docker 23 or later), Podman or Buildah, in its own folder.
"""


@dataclass(frozen=True, slots=True)
class DockerContext:
    """A Dockerfile, and what must lie beside it: what Docker calls the context of a build."""

    text: str
    files: tuple[StagedFile, ...]
    """Of the layers, as their definitions have them."""
    scripts: Mapping[str, str]
    """Text by path: what is run, while the image is built or in it."""


def write_dockerfile(lock: Lock, chain: Sequence[Definition]) -> DockerContext:
    """Return the stack of a lock as a Dockerfile; `chain` are its definitions.

    Raises RefusedError for a base that is not in a registry, DefinitionError for a value that gets lost on its way.
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
            stage.environ = [f'PATH="${{PATH:-{DEFAULT_PATH}}}"']  # where the base sets none, nothing would be found
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
    """Yield the instructions of a stage: what it sets holds for the stages above it, as in a chain of definitions."""
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
    """Return the script of a layer, without what it leaves behind; what is mounted there cannot be removed."""
    folder = f"{BUILD_FOLDER}/{name}"
    return f"{definition.sections.post.removesuffix(CLEAN)}rm -rf {folder}/work {folder}/kept\n"


def _run(name: str, script: str, files: Iterable[StagedFile]) -> str:
    """Return what runs a script, with the folders of its layer mounted: copied, archives would stay in the image."""
    folders = dict.fromkeys([script.rpartition("/")[0], *("/".join(file.path.split("/")[:3]) for file in files)])
    mounts = (f"--mount=type=bind,source={one},target={BUILD_FOLDER}/{one.removeprefix('files/')}" for one in folders)
    return " \\\n    ".join([*mounts, f'["/bin/bash", "{BUILD_FOLDER}/{name}/{_SCRIPT}/post.sh"]'])


def _environment(layer: LockedLayer) -> Iterator[str]:
    where = f"{layer.name}/layer.toml [environment]"
    for name, value in (*layer.set_environment.items(), *layer.prepend_environment.items()):
        if _MANGLED & {*value}:
            # apptainer 1.4.5, internal/pkg/build/sources/conveyorPacker_oci.go, escapes twice: after `a"b` or "`x" no
            # variable of the image is set any more
            what = f"{name} has one of {' '.join(sorted(_MANGLED))}, which Apptainer breaks when it converts an image"
            raise DefinitionError(what, where=where, hint="write the value without it, or build by lumiimg")
    yield from (_pair(name, value) for name, value in layer.set_environment.items())
    yield from (f'{name}="{value}${{{name}:+:${name}}}"' for name, value in layer.prepend_environment.items())


def _firm(stack: Sequence[LockedLayer], chain: Sequence[Definition]) -> Iterator[str]:
    """Yield what sets variables in Apptainer whatever the user's shell has, as the definitions do: an ENV would yield.

    Paths that are put first are ENV alone: an engine takes PATH and LD_LIBRARY_PATH from no shell.
    """
    for layer, definition in zip(stack, chain, strict=True):
        for variable in definition.sections.environment:
            if variable[0] in layer.set_environment:
                yield f"{export(variable)}\n"


def _pair(name: str, value: str) -> str:
    """Return a pair of ENV or LABEL, of which nothing has to be escaped."""
    return f'{name}="{value}"'
