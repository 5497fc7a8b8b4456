"""The wrappers of a module: a small script for each program, and the one that all of them call.

They need no module loaded: binds and variables are in the script, so that an editor or a Jupyter kernel which starts
one by its path does not run without the fast network. Bash 4.4 or newer.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import exports
from lumiimg.cluster.module.modulefile import comment
from lumiimg.cluster.module.plan import SHELL, VENV, When, in_shell
from lumiimg.cluster.module.settings import NO_USER_SITE
from lumiimg.errors import one_line
from lumiimg.resolve.mpi import read_by_srun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.module.plan import ImageModule
    from lumiimg.image.programs import Program

ENTER = "enter"
"""Name of the script that all others call."""

_HEAD = r"""
name=$1 kind=$2 program=$3
shift 3

fail() {
    printf '%s: %s\n' "$name" "$1" >&2
    exit "${2:-127}"
}
"""

_INSIDE = r"""
enter=()
if [ -d /.singularity.d ]; then
    # in a container already: the program itself, no container in the container
    [ -x "$program" ] || fail "this container has no $program; call the wrapper outside of it" 126
else
    [ -e "$image" ] || fail "the image has gone: $image (moved or removed? lumiimg module makes a module anew)"
    engine=$(command -v @FIRST@ || command -v @SECOND@) || fail "neither singularity nor apptainer is on PATH here"
"""

_VENV = r"""
# -- packages of the user's own, in a virtual environment over the image --
# The image is read-only, and pip would put them into ~/.local, from where every other image would take them too.

# what pip is told to do to this Python: nothing where the result goes elsewhere, or nowhere
changes=
if [ "$kind" = pip ]; then
    for word; do
        case $word in
            --target | --target=* | -t | --prefix | --prefix=* | --root | --root=* | --dry-run | --help | -h)
                changes=
                break
                ;;
            install | uninstall) changes=${changes:-$word} ;;
        esac
    done
fi

make_venv() {
    # without a pip of its own: the image's serves. What the image has counts as installed, and its torch stays.
    "${enter[@]}" "$python" -c '
import importlib.metadata, os, sys, sysconfig, venv
folder, image = sys.argv[1:]
venv.create(folder, system_site_packages=True, symlinks=True, with_pip=False)
if sys.prefix != sys.base_prefix:  # the Python of the image is a virtual environment itself
    own = os.path.join(folder, "lib", "python%d.%d" % sys.version_info[:2], "site-packages", "image.pth")
    with open(own, "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
with open(os.path.join(folder, "constraints.txt"), "w") as file:
    for name in ("torch", "torchvision", "torchaudio"):
        try:
            file.write("%s==%s\n" % (name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            pass
with open(os.path.join(folder, "pyvenv.cfg"), "a") as file:
    file.write("lumiimg-image = %s\n" % image)
' "$venv" "$image" || fail "no virtual environment could be made in $venv (is the folder bound into the container?)" 1
    printf '%s: made the virtual environment %s over %s\n' "$name" "$venv" "$image" >&2
}

venv=${@VENV@-}
if [ -n "$changes" ] && [ -z "$venv" ]; then
    fail "the image is read-only. Name a folder for packages of your own with it, a new one:
    export @VENV@=FOLDER      (on LUMI under /projappl or /scratch, not in \$HOME)
    $name $*" 1
fi
if [ -n "$venv" ]; then
    case $venv in
        /*) ;;
        *) fail "@VENV@=$venv is no absolute path" 125 ;;
    esac
    if [ ! -e "$venv/pyvenv.cfg" ] && [ "$changes" = install ]; then
        make_venv
    fi
    [ -e "$venv/pyvenv.cfg" ] || fail "there is no virtual environment in @VENV@=$venv; pip install makes one" 125
    grep -qxF "lumiimg-image = $image" "$venv/pyvenv.cfg" ||
        fail "@VENV@=$venv was not made for this image ($image); name another folder, or unset it" 125
    export @ENGINE@ENV_VIRTUAL_ENV=$venv
    prepend "$venv/bin"
    case $kind in
        python | pip) program=$venv/bin/python ;;
        script) set -- "$program" "$@" && program=$venv/bin/python ;;
    esac
elif [ "$kind" = pip ]; then
    program=$python
fi
if [ "$kind" = pip ]; then
    set -- -m pip "$@"
    # else a package that wants another torch would bring one from PyPI, for CUDA
    [ "$changes" != install ] || set -- "$@" --constraint "$venv/constraints.txt"
fi
"""

_PREPEND = r"""
prepend() {
    case ":${@ENGINE@ENV_PREPEND_PATH-}:" in
        *":$1:"*) ;;
        *) export @ENGINE@ENV_PREPEND_PATH="$1${@ENGINE@ENV_PREPEND_PATH:+:$@ENGINE@ENV_PREPEND_PATH}" ;;
    esac
}
"""

_END = r"""
exec "${enter[@]}" "$program" "$@"
"""


def wrapper_texts(module: ImageModule) -> dict[str, str]:
    """Return the scripts by their names below the module's folder."""
    texts = {ENTER: _enter(module)}
    for program in module.programs:
        texts[f"bin/{program.name}"] = _wrapper(module, program.name, _kind(program), program.path)
    if module.shell is not None:
        options = ("--norc",) if module.shell.endswith("/bash") else ()
        texts[f"bin/{SHELL}"] = _wrapper(module, SHELL, "program", module.shell, *options)
    return texts


def _kind(program: Program) -> str:
    """Return what a virtual environment changes: pip and Python are its own, scripts are run by its Python."""
    for kind in ("python", "pip"):
        if program.name.startswith(kind):
            return kind
    return "script" if program.is_python else "program"


def _wrapper(module: ImageModule, name: str, kind: str, path: str, *options: str) -> str:
    comment = f"{path} in {module.image}, of module {module.full_name}"
    if name == SHELL:
        comment += "; arguments are the shell's: start-shell -c 'COMMAND'"
    words = shlex.join([str(module.home / ENTER), name, kind, path, *options])
    return f'#!/bin/bash\n# {one_line(comment)}\nexec {words} "$@"\n'


def _enter(module: ImageModule) -> str:
    prefer_apptainer = module.engine == "APPTAINER"
    first, second = ("apptainer", "singularity") if prefer_apptainer else ("singularity", "apptainer")
    lines = ["#!/bin/bash", "# Starts a program in the container: what the scripts in bin/ call."]
    lines += [comment("#", line) for line in (module.title, *module.origin)]
    lines += ["#", "# usage: enter NAME python|pip|script|program PATH [ARGUMENT...]", ""]
    lines.append(f"image={shlex.quote(str(module.image))}")
    if module.python is not None:
        lines.append(f"python={shlex.quote(module.python.path)}")
    parts = ["\n".join(lines) + "\n", _HEAD]
    if module.python is not None:
        parts.append(_PREPEND)
    parts += [_INSIDE.replace("@FIRST@", first).replace("@SECOND@", second), *_outside(module), "fi\n"]
    if module.python is not None:
        parts.append(_VENV)
    text = "".join([*parts, _END])
    return text.replace("@VENV@", VENV).replace("@ENGINE@", module.engine)


def _outside(module: ImageModule) -> Iterator[str]:
    """Yield what is done before the container is started."""
    lines: list[str] = []
    if module.host_files:
        files = " \\\n        ".join(map(shlex.quote, module.host_files))
        lines.append(f"for file in \\\n        {files}; do")
        hint = shlex.quote(f" is not on this node: {module.missing_hint}")
        lines += [f'    [ -e "$file" ] || fail "$file"{hint}', "done"]
    lines += exports(module.engine, module.binds, module.container_variables)
    if module.python is not None:
        lines += [
            "# packages in ~/.local are of no image: they are not seen",
            f"export {module.engine}ENV_{NO_USER_SITE}=1",
        ]
        if module.python.folder is not None:
            lines += ["# the image's own PATH does not lead there", f"prepend {shlex.quote(module.python.folder)}"]
    if module.caches is not None:
        lines += [
            "# caches, on the node: a folder of this job; where somebody else has made it, a new one",
            f'caches="{in_shell(module.caches)}"',
            'mkdir -m 700 "$caches" 2>/dev/null',
            '{ [ ! -L "$caches" ] && chmod 700 "$caches" 2>/dev/null; } || caches=$(mktemp -d) ||',
            '    fail "no folder for caches can be made in /tmp" 1',
        ]
    for item in (*module.variables(When.LOADED), *module.variables(When.RANK)):
        why = f"{item.because} ({item.source})"
        if read_by_srun(item.name):
            early = "srun reads it before it starts this script, so here it would be too late: load the module, or"
            lines += comment("#", f"{early} export {item.name}={item.value} ({why})").splitlines()
            continue
        lines += comment("#", why).splitlines()
        value = in_shell(item.value)
        if module.caches is not None:
            value = value.replace(in_shell(module.caches), "$caches")
        lines.append(f'[ -n "${{{item.name}+set}}" ] || export {item.name}="{value}"')
        if item.when is When.RANK and item.value.startswith("/"):
            lines.append(f'mkdir -p "${item.name}"')
        if item.folder is not None:
            lines.append(f'mkdir -p "{in_shell(item.folder)}"')
    lines.append('enter=("$engine" exec "$image")')
    yield "\n".join(f"    {line}" for line in lines) + "\n"
