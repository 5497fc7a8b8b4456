"""Lock to definition files: the layered chain, and one flat file for engines and services that take one.

A definition holds no path of this machine: it is run in its own folder, next to `files/` and to the image below it. So
what is written with `--definitions` is what `lumiimg build` runs, it works elsewhere, and its bytes can be a cache key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.definition.text import (
    LINE_LIMIT_BYTES,
    DefinitionError,
    checked_body,
    checked_target,
    quote_bash,
    quote_sh,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.resolve.lock import Lock, LockedLayer, LockedSource

BUILD_FOLDER = "/opt/lumiimg/build"
"""In the image while it is built; gone afterwards."""
CLEAN = f"rm -rf {BUILD_FOLDER}\n"
"""The last line of each `%post`."""
FLAT = "flat"
LABEL = "lumiimg.layer."
NOTE = "# Written by lumiimg {}. Run it in its own folder: what it copies lies beside it."
"""The first line of each."""
POST = "%post -c /bin/bash"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that must lie beside the definition when it is run."""

    path: str
    """Relative to the definition's folder."""
    origin: Path | LockedSource

    @property
    def target(self) -> str:
        """Where it lies in the image while that is built."""
        return f"{BUILD_FOLDER}/{self.path.removeprefix('files/')}"


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition file and what it needs beside it."""

    name: str
    """Without extension: `02-netprobe`, or `flat`."""
    layers: tuple[str, ...]
    """What it adds, for people."""
    parent: str | None
    """Name of the definition whose image it starts from; None if it bootstraps."""
    text: str
    files: tuple[StagedFile, ...]
    plain_http: bool = False
    origin: Path | None = None
    """The file or folder of this machine that it starts from."""
    origin_sha256: str | None = None
    """Of a file, once it was read; a folder has none."""
    needs: tuple[str, ...] = ()
    """Names of the definitions below that its layer asks something of, and those of theirs."""

    @property
    def kept(self) -> str:
        """The folder in the image of what the script of one layer would rather find than compile again."""
        return f"{BUILD_FOLDER}/{self.layers[0]}/kept"

    @property
    def post(self) -> str:
        """The script of its `%post`, which bash runs."""
        return "".join(section.partition("\n")[2] for section in _parts(self.text) if section.startswith("%post"))

    @property
    def facts(self) -> str:
        """The definition without `%files` and `%post`: what an engine writes about an image and runs nothing for."""
        return "\n".join(part for part in _parts(self.text) if not part.startswith(("%files\n", "%post ")))

    @property
    def untested(self) -> str:
        """The definition without its `%test`, which is that of all layers below, too."""
        return "\n".join(part for part in _parts(self.text) if not part.startswith("%test\n"))

    @property
    def test(self) -> str:
        """The script of its `%test`, or nothing."""
        return "".join(section.partition("\n")[2] for section in _parts(self.text) if section.startswith("%test\n"))


def write_chain(lock: Lock) -> tuple[Definition, ...]:
    """Return one definition a layer; each but the first starts from the image of the one before.

    Raises DefinitionError for a script or a value that a definition file cannot carry.
    """
    chain: list[Definition] = []
    for index, layer in enumerate(lock.stack):
        parent = chain[-1].name if chain else None
        header = _bootstrap_header(lock) if parent is None else f"Bootstrap: localimage\nFrom: {parent}.sif\n"
        chain.append(
            Definition(
                name=f"{index + 1:02}-{layer.layer.name}",
                layers=(layer.layer.name,),
                parent=parent,
                text=_text(lock, header, [layer], below=lock.stack[:index]),
                files=tuple(_staged(layer)),
                plain_http=parent is None and _is_plain(lock),
                origin=_local_origin(lock) if parent is None else None,
                origin_sha256=(lock.bootstrap.sha256 or None) if parent is None else None,
                needs=tuple(f"{one + 1:02}-{lock.stack[one].layer.name}" for one in sorted(_needs(lock.stack, index))),
            )
        )
    return tuple(chain)


def _needs(stack: Sequence[LockedLayer], at: int) -> set[int]:
    """Return the places in the stack of the layers that a layer asks something of, and of those that these do."""
    layer = stack[at]
    wanted = {need.component for need in (*layer.layer.requires, *(layer.release.requires if layer.release else ()))}
    found: set[int] = set()
    for below in range(at):
        one = stack[below]
        has = {one.layer.name, *one.layer.provides, *one.layer.has, *(one.release.has if one.release else ())}
        if wanted & has:
            found |= {below, *_needs(stack, below)}
    return found


def write_flat(lock: Lock) -> Definition:
    """Return the whole stack as one definition.

    Raises DefinitionError for a script or a value that a definition file cannot carry.
    """
    return Definition(
        name=FLAT,
        layers=tuple(layer.layer.name for layer in lock.stack),
        parent=None,
        text=_text(lock, _bootstrap_header(lock), lock.stack, below=()),
        files=tuple(file for layer in lock.stack for file in _staged(layer)),
        plain_http=_is_plain(lock),
        origin=_local_origin(lock),
    )


def layers_of(labels: Mapping[str, str]) -> list[str]:
    """Return the names of base and layers that an image of lumiimg was built from, by its labels; else nothing."""
    return [labels[key] for key in sorted(labels) if key.startswith(LABEL)]


def _parts(text: str) -> list[str]:
    """Return the head and the sections of a definition that was written here; joined with an empty line they are it."""
    return re.split(r"\n(?=%(?:files|environment|post|test|labels)\b)", text)


def _text(lock: Lock, header: str, layers: Sequence[LockedLayer], below: Sequence[LockedLayer]) -> str:
    stack = [*below, *layers]
    head = f"{NOTE.format(__version__)}\n{header}"
    files = _section("%files", "".join(f"    {line}\n" for layer in layers for line in _copies(layer)))
    environment = _section("%environment", "".join(f"    {line}\n" for one in layers for line in _environment(one)))
    bodies = "".join(_run(layer, layer.layer.post, lock, script="post.sh", work=True) for layer in layers)
    post = (
        f'set -euo pipefail\numask 022\nMAKEFLAGS="-j$(getconf _NPROCESSORS_ONLN)"\nexport MAKEFLAGS\n{bodies}{CLEAN}'
    )
    # A child's %test replaces its parent's, so each definition carries all tests up to its layer.
    tests = "".join(
        _run(layer, layer.layer.test, lock, script="test.sh", work=False) for layer in stack if layer.layer.test
    )
    exports = "".join(f"{line}\n" for layer in stack for line in _environment(layer))
    test = _section("%test", f"#!/bin/bash\nset -euo pipefail\n{exports}{tests}" if tests else "")
    # One label a layer: an engine does not let a child replace a label of its parent.
    version = "" if below else f"    lumiimg.version {__version__}\n"
    names = "".join(f"    {LABEL}{len(below) + n:02} {layer.layer.name}\n" for n, layer in enumerate(layers, start=1))
    labels = _section("%labels", version + names)
    text = "\n".join(filter(None, (head, files, environment, _section(POST, post), test, labels)))
    for line in text.splitlines():
        if len(line.encode()) > LINE_LIMIT_BYTES:
            raise DefinitionError(
                f"the line {line[:40]!r}… has more than {LINE_LIMIT_BYTES} bytes, which the engine cannot read",
                where=layers[-1].layer.name,
                hint="give long text to a layer as a file of it",
            )
    return text


def _section(name: str, body: str) -> str:
    return f"{name}\n{body}" if body else ""


def _local_origin(lock: Lock) -> Path | None:
    path = Path(lock.bootstrap.origin)
    return path if lock.base.layer.is_foreign and lock.bootstrap.image is None and path.is_absolute() else None


def _is_plain(lock: Lock) -> bool:
    return lock.bootstrap.image is not None and lock.bootstrap.image.plain_http


def _bootstrap_header(lock: Lock) -> str:
    bootstrap = lock.bootstrap
    if bootstrap.agent == "debootstrap":
        include = f"Include: {' '.join(bootstrap.include)}\n" if bootstrap.include else ""
        header = f"Bootstrap: debootstrap\nOSVersion: {bootstrap.origin}\nMirrorURL: {bootstrap.mirror_url}\n{include}"
    else:
        header = f"Bootstrap: {bootstrap.agent}\nFrom: {bootstrap.image or bootstrap.origin}\n"
    return _checked_header(header, lock.base.layer.name)


def _checked_header(header: str, where: str) -> str:
    for line in header.splitlines():
        if "{{" in line or not line.isprintable():
            raise DefinitionError(f"{line!r} cannot stand in a definition's header", where=where)
    return header


def with_origin(definition: Definition, origin: Path, sha256: str | None) -> Definition:
    """Return a definition that starts from a file or folder of this machine, starting from another one.

    Raises DefinitionError for a path that cannot stand in a definition.
    """
    line = _checked_header(f"From: {origin}\n", str(origin))
    text = definition.text.replace(f"From: {definition.origin}\n", line, 1)
    return replace(definition, text=text, origin=origin, origin_sha256=sha256)


def _copies(layer: LockedLayer) -> Iterable[str]:
    for file in _staged(layer):
        yield f"{file.path} {checked_target(file.target, layer.layer.name)}"


def _staged(layer: LockedLayer) -> Iterable[StagedFile]:
    folder = f"files/{layer.layer.name}"
    for file in layer.layer.files:
        yield StagedFile(f"{folder}/files/{file}", layer.layer.folder / file)
    for source in layer.sources:
        yield StagedFile(f"{folder}/source/{source.name}/{source.file}", source)
    for wheel in layer.wheels:
        yield StagedFile(f"{folder}/wheels/{wheel.file}", wheel)


def _environment(layer: LockedLayer) -> Iterable[str]:
    where = f"{layer.layer.name}/layer.toml [environment]"
    for name, value in layer.set_environment.items():
        yield f"export {name}={quote_sh(value, where)}"
    for name, value in layer.prepend_environment.items():
        yield f'export {name}={quote_sh(value, where)}"${{{name}:+:${name}}}"'


def _run(layer: LockedLayer, body: str | None, lock: Lock, *, script: str, work: bool) -> str:
    """Run one script in a subshell: an `exit 0`, a `cd` or a variable in it stays its own."""
    name = layer.layer.name
    variables = dict(layer.arguments)
    if work:
        variables |= {
            source.variable: f"{BUILD_FOLDER}/{name}/source/{source.name}/{source.file}" for source in layer.sources
        }
        variables["KEPT"] = f"{BUILD_FOLDER}/{name}/kept"
        variables["LAYER_FILES"] = f"{BUILD_FOLDER}/{name}/files"
        if layer.wheels:
            variables["WHEELS"] = f"{BUILD_FOLDER}/{name}/wheels"
        if layer is lock.base:
            variables["INCLUDE"] = " ".join(lock.bootstrap.include)
            variables["MIRROR"] = lock.bootstrap.mirror_url or ""
    lines = [f"# lumiimg: layer {name}, {script}", "("]
    for key, value in variables.items():
        if not _VARIABLE.fullmatch(key):
            raise DefinitionError(f"{key!r} is no name of a variable", where=f"{layer.layer.folder}/{script}")
        lines.append(f"export {key}={quote_bash(value)}")
    if work:
        lines += [f"mkdir -p {BUILD_FOLDER}/{name}/work", f"cd {BUILD_FOLDER}/{name}/work"]
    text = "\n".join(lines) + "\n" + checked_body(body or "", f"{layer.layer.folder}/{script}") + ")\n"
    if work:
        # What the layers above find in the container's environment, they also find when all are built at once.
        text += "".join(f"{line}\n" for line in _environment(layer))
    return text
