"""Print the script with which a shell requests completions, and answer its requests."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import argcomplete
from argcomplete.shell_integration import shellcode

from lumiimg.catalog.folders import file_names, layer_folders, recipe_folders, site_folders, unparsed_layers
from lumiimg.core.errors import ExitCode

Completer = Callable[..., Iterable[str]]

_NAME = re.compile(r"lumiimg[A-Za-z0-9._-]*")
_MAX_FILES = 5000


def execute(arguments: argparse.Namespace) -> int:
    called = Path(sys.argv[0]).name  # lumiimg.pyz
    names = dict.fromkeys(["lumiimg", *([called] if _NAME.fullmatch(called) else [])])
    print(shellcode([*names], shell=arguments.shell))
    return ExitCode.GOOD


def answer(parser: argparse.ArgumentParser) -> None:
    """Print completions for the shell and exit; return at once if no shell requests them.

    The answers come from the program's own parsers (argcomplete): changed options need no new installation, and the
    names are those currently in the catalogue, including the user's own.
    """
    _add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                _add_completers(below)
        elif action.choices is None and action.nargs != 0:
            vars(action)["completer"] = completer_of(action)


def completer_of(action: argparse.Action) -> Completer:
    """Return the completer for the values of an option or argument, by its name, else by its metavar."""
    for name in action.option_strings or [f"{action.metavar} alone"]:
        if name in _BY_NAME:
            return _BY_NAME[name]
    return _BY_VALUE.get(str(action.metavar), _nothing)


def _nothing(**_: object) -> Iterable[str]:
    return ()


def _of_kind(kind: str, parsed: argparse.Namespace) -> list[str]:
    found = unparsed_layers(layer_folders(os.environ, getattr(parsed, "layers", None) or ()))
    return sorted(name for name, glance in found.items() if glance.kind == kind)


def _bases(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return (*_of_kind("base", parsed_args), *_images(prefix))


def _layers(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return _of_kind("layer", parsed_args)


def _recipes(prefix: str, **_: object) -> Iterable[str]:
    return (*file_names(recipe_folders(os.environ)), *_tables(prefix))


def _sites(prefix: str, **_: object) -> Iterable[str]:
    return (*file_names(site_folders(os.environ)), *_tables(prefix))


def _entries(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return (*_bases(prefix, parsed_args), *_layers(parsed_args), *_recipes(prefix), *_sites(prefix))


def _files_that_end(*ends: str, others: bool = True) -> Completer:
    """Return a completer for folders and files with these suffixes; `others`: for all files if none has one.

    argcomplete's own FilesCompleter starts bash once for each suffix.
    """

    def listed(prefix: str, **_: object) -> list[str]:
        folder, slash, start = prefix.rpartition("/")
        try:
            with os.scandir(os.path.expanduser(folder + slash) or ".") as listing:  # noqa: PTH111
                entries = [entry for entry, _ in zip(listing, range(_MAX_FILES), strict=False)]
        except OSError:
            return []
        found = [one for one in entries if one.name.startswith(start) and (start or not one.name.startswith("."))]
        fitting = [one for one in found if one.is_dir() or one.name.endswith(ends or ("",))]
        return sorted(
            f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}" for one in fitting or (found if others else ())
        )

    return listed


_images = _files_that_end(".sif", ".img", ".sqsh", ".sqfs", ".squashfs", ".tar")
_json_files = _files_that_end(".json")
_tables = _files_that_end(".toml")
_any_file = _files_that_end()
_folders = _files_that_end("/", others=False)

_BY_NAME: dict[str, Completer] = {
    "--base": _bases,
    "--add": _layers,
    "--upgrade": _layers,
    "--recipe": _recipes,
    "--site": _sites,
    "--host": _json_files,
    "--include": _any_file,
    "--cwd": _nothing,  # in the image
    "NAME alone": _entries,
}
_BY_VALUE: dict[str, Completer] = {
    "IMAGE": _images,
    "DIR": _folders,
    **dict.fromkeys(("LAYER", "NAME|KEY"), _layers),
    **dict.fromkeys(("BEFORE", "NOW", "REPORT"), _json_files),
    **dict.fromkeys(
        ("FILE", "FILE|DIR", "FILE|DIR/", "A", "B", "DOCKERFILE", "PLACE", "PROGRAM", "SRC[:DST]"), _any_file
    ),
}
