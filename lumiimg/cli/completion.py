"""Print the script by which a shell asks what can follow on its line, and answer it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Completer = Callable[..., Iterable[str]]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_FILES = 5000


def execute(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode  # 15 ms that only completion should cost

    called = Path(sys.argv[0]).name
    names = ["lumiimg"]
    if _NAME.fullmatch(called) and called.startswith("lumiimg") and called not in names:
        names.append(called)  # lumiimg.pyz
    print(shellcode(names, shell=arguments.shell))
    return ExitCode.GOOD


def answer(parser: argparse.ArgumentParser, hidden: str) -> None:
    """Tell the shell what can follow on its line, and leave; return at once if no shell asks.

    The program answers from its own parsers (argcomplete): nothing is installed again when options change, and the
    names are those of the catalogue as it is now, the user's own among them.
    """
    import argcomplete

    _add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False, exclude=[hidden])


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to look at what was added
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                _add_completers(below)
        elif action.choices is None and action.nargs != 0:
            vars(action)["completer"] = completer_of(action)


def completer_of(action: argparse.Action) -> Completer:
    """Return what knows the values of an option or an argument: by its name, else by what the help calls its value."""
    for option in action.option_strings:
        if option in _BY_OPTION:
            return _BY_OPTION[option]
    if action.metavar == "NAME" and not action.option_strings:
        return _entries
    return _BY_VALUE.get(str(action.metavar), _nothing)


def _nothing(**_: object) -> Iterable[str]:
    return ()


def _bases(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return (*_of_kind("base", parsed_args), *_images(prefix))


def _layers(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return _of_kind("layer", parsed_args)


def _of_kind(kind: str, parsed: argparse.Namespace) -> list[str]:
    from lumiimg.catalog.folders import layer_folders, names_at_a_glance

    found = names_at_a_glance(layer_folders(os.environ, getattr(parsed, "layers", ())))
    return sorted(name for name, its_kind in found.items() if its_kind == kind)


def _recipes(prefix: str, **_: object) -> Iterable[str]:
    from lumiimg.catalog.folders import file_names, recipe_folders

    return (*file_names(recipe_folders(os.environ)), *_files(prefix, (".toml",)))


def _sites(prefix: str, **_: object) -> Iterable[str]:
    from lumiimg.catalog.folders import file_names, site_folders

    return (*file_names(site_folders(os.environ)), *_files(prefix, (".toml",)))


def _entries(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return (*_bases(prefix, parsed_args), *_layers(parsed_args), *_recipes(prefix), *_sites(prefix))


def _files_that_end(*ends: str) -> Completer:
    return lambda prefix, **_: list(_files(prefix, ends))


_images = _files_that_end(".sif", ".img", ".sqsh", ".sqfs", ".squashfs", ".tar")
_snapshots = _files_that_end(".json")
_any_file = _files_that_end()


def _folders(prefix: str, **_: object) -> Iterable[str]:
    return [name for name in _files(prefix, ("/",)) if name.endswith("/")]


def _files(prefix: str, ends: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a word may become: folders, and files that end as they should; all where none does."""
    folder, slash, start = prefix.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder + slash) or ".") as listing:  # noqa: PTH111
            entries = [entry for entry, _ in zip(listing, range(_MOST_FILES), strict=False)]
    except OSError:
        return
    found = [entry for entry in entries if entry.name.startswith(start) and (start or not entry.name.startswith("."))]
    fitting = [entry for entry in found if entry.is_dir() or entry.name.endswith(ends)] if ends else found
    for entry in sorted(fitting or found, key=lambda entry: entry.name):
        yield f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"


_BY_OPTION: dict[str, Completer] = {
    "--base": _bases,
    "--add": _layers,
    "--upgrade": _layers,
    "--recipe": _recipes,
    "--site": _sites,
    "--host": _snapshots,
    "--include": _any_file,
    "--cwd": _nothing,  # in the image
}
_BY_VALUE: dict[str, Completer] = {
    "IMAGE": _images,
    "FILE": _any_file,
    "FILE|DIR": _any_file,
    "FILE|DIR/": _any_file,
    "A": _any_file,
    "B": _any_file,
    "DIR": _folders,
    "DOCKERFILE": _any_file,
    "PLACE": _any_file,
    "PROGRAM": _any_file,
    "SRC[:DST]": _any_file,
    "LAYER": _layers,
    "NAME|KEY": _layers,
    "BEFORE": _snapshots,
    "NOW": _snapshots,
}
