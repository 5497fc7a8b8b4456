"""The table of commands: the name of each, what it is for, its options and help, and what its exit codes say.

`--help`, the completion, the manual pages and the reference are made from here alone. What a command does is in
the module of this folder that has its name: `execute` there. It is imported when the command runs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from lumiimg import __version__
from lumiimg.cli import build_options, check_options, job_options, other_options
from lumiimg.cli.parser import Parser, exit_codes


class Command(NamedTuple):
    """A row of the table."""

    purpose: str
    """In the list of all commands."""
    configure: Callable[[argparse.ArgumentParser], None]
    """Adds the options. Its docstring is the help: up to the first blank line above the options, the rest below."""
    exits: Mapping[int | str, str]
    """What each exit code says."""


_WORST: dict[int | str, str] = {"of several images,": "that of the worst: 1, 2, 4, 3, 0"}

GROUPS = {
    "everyday commands": {
        "build": Command(
            "build an image from a base and layers",
            build_options.build,
            {
                0: "the image is there, or with --dry-run the plan; with --why, the layer is in the cache",
                1: "a rule refuses it, a layer failed, or a source is another than the lock says; with --why, the "
                "layer would be built again",
                2: "wrong usage, or a file that is not what it should be",
                4: "no engine, or no network for what is to be fetched",
            },
        ),
        "check": Command(
            "will this image use the fast network? if not: what is missing, and what to do",
            check_options.check,
            {
                0: "no obstacle found at this level",
                1: "no: RCCL would not use the fast network",
                2: "not an image",
                3: "cannot be decided from here; of several nodes, one gave no answer, or they have no GPUs for the "
                "level that was asked for; Slurm did not take the job of --nodes, or ended it before the answer",
                4: "no engine or no GPU for the level that was asked for; no Slurm for --nodes",
                **_WORST,
            },
        ),
        "log": Command(
            "read a job's log: which network it used, why not the fast one, what to do",
            check_options.log,
            {
                0: "proved: a fast network carried the traffic, or nothing crossed one",
                1: "it did not: slow path, plugin failed, wrong or slow collectives",
                2: "no such file",
                3: "the log does not say, or shows no traffic",
            },
        ),
        "explain": Command(
            "explain why an image fits a machine, or a request its site, or why not",
            check_options.explain,
            {
                0: "no obstacle found: everything on the path to the NIC loads, or the rules hold",
                1: "something stands against it; of a request, the nearest that works",
                2: "not an image, no snapshot, or a name that is not there",
                3: "a host snapshot would decide it, or something is not known here",
                4: "the base of a request cannot be had on this machine",
                **_WORST,
            },
        ),
        "adapt": Command(
            "add to someone else's image what it lacks to use a machine's network",
            build_options.adapt,
            {
                0: "the image is there, or it lacks nothing",
                1: "refused, or a layer failed; or nothing that is added would help",
                2: "not an image",
                3: "nothing is added, and something is not known here",
                4: "no engine, or no network for what is to be fetched",
            },
        ),
        "job": Command(
            "write a job script for an image on a site: ranks, cores, variables, binds",
            job_options.job,
            {
                0: "written",
                1: "the site has no job of this shape (the nearest is named), or none of the libraries to bind loads",
                2: "not an image, no such site or partition, wrong usage",
            },
        ),
        "venv": Command(
            "make a Python environment over an image, for packages of your own: its torch stays",
            build_options.venv,
            {
                0: "made",
                1: "the packages do not go together with the image, or cannot be had",
                2: "not an image, a requirement that is not followed, wrong usage",
                4: "no engine, no mksquashfs, or no package index",
            },
        ),
        "show": Command(
            "list bases, layers, recipes and sites; show one of them, or an image",
            other_options.show,
            {
                0: "shown; with --gpu, all GPU code was read",
                2: "no such name, or not an image",
                3: "with --gpu, some of the GPU code cannot be read",
            },
        ),
        "lock": Command(
            "resolve every version, address and digest of an image, and write them to a lock",
            build_options.lock,
            {
                0: "the lock is written",
                1: "refused: a rule, or no release fits",
                2: "wrong usage",
                4: "no network for what is not known yet",
            },
        ),
        "rebuild": Command(
            "build an image again from its own record",
            build_options.rebuild,
            {
                0: "the image is there",
                1: "a layer failed, or a source changed; with --fresh, the files differ",
                2: "not an image of lumiimg",
                4: "no engine, or no network",
            },
        ),
        "diff": Command(
            "compare two locks or two images",
            build_options.diff,
            {0: "no difference", 1: "they differ", 2: "not a lock, or not an image"},
        ),
        "host": Command(
            "record what this machine offers to a container",
            check_options.host,
            {
                0: "a libfabric that loads, with libcxi, was found",
                2: "a path of --include offers nothing",
                3: "written, but no such libfabric was found here",
                4: "no glibc here to ask",
            },
        ),
        "bind": Command(
            "print the fewest binds from a machine that an image needs, each with its reason",
            check_options.bind,
            {
                0: "with these binds each library that is opened is found in a version that fits (anything that keeps "
                "RCCL from using them is on standard error, and in the exit codes of `explain` and `check --host`)",
                1: "no set of binds loads; the reasons are on standard error",
                2: "not an image, or no snapshot",
                3: "cannot be decided: no fabric in the snapshot, no glibc in image",
            },
        ),
        "ldd": Command(
            "list the libraries that a file of an image would load, from where, and by which rule",
            check_options.ldd,
            {
                0: "everything would be loaded, in the versions that are needed",
                1: "something is missing, or does not fit",
                2: "not an image, or no such file in it",
                3: "cannot be decided (musl has another loader than the one modelled)",
            },
        ),
        "cache": Command(
            "list, verify or remove layers that were built before",
            build_options.cache,
            {0: "done", 1: "`verify` found an entry that is not what it was", 2: "no such entry"},
        ),
        "doctor": Command(
            "find out whether this machine can build images, and how",
            build_options.doctor,
            {
                0: "images can be built here",
                1: "they cannot: something that is needed does not work",
                3: "not known: no container started, for a reason that lumiimg does not know",
                4: "there is no container engine, and Linux makes no containers here",
            },
        ),
        "schema": Command(
            "print the JSON Schemas of what --json prints",
            other_options.schema,
            {0: "printed", 2: "no such schema"},
        ),
        "completion": Command(
            "let the shell complete commands, options and names",
            other_options.completion,
            {0: "printed", 2: "no such shell"},
        ),
    },
    "for support staff": {
        "module": Command(
            "write a module for an image (Lmod, Tcl) with wrappers: python, pip, torchrun, …",
            job_options.module,
            {
                0: "written: modulefiles/NAME/VERSION(.lua), software/NAME/VERSION",
                1: "no set of binds loads, or a path cannot be written there",
                2: "not an image, no snapshot, or the name is that of something else",
                3: "which libraries must be bound cannot be decided",
            },
        ),
        "drift": Command(
            "show what a system update changed, which images it breaks, and what to do",
            check_options.drift,
            {
                0: "no change breaks an image, or nothing changed",
                1: "an image breaks, or the binds made for it before; without images: something changed that can break "
                "one",
                2: "not a snapshot, or one of the images is not an image",
                3: "cannot be decided: nodes of different kinds, no fabric in the new snapshot, or an unknown driver",
            },
        ),
        "trial": Command(
            "try on real nodes what lumiimg claims of them and of images",
            job_options.trial,
            {
                0: "planned, or submitted; of a report: all is as it was predicted",
                1: "something differs; the node minutes of the trial are used up",
                2: "not an image, or not the folder of a trial",
                3: "something is not measured yet; the job waits or runs",
                4: "no Slurm here",
            },
        ),
        "draft": Command(
            "read a Dockerfile: list what the catalogue has, and draft a layer for the rest",
            other_options.draft,
            {0: "it was read", 2: "not a Dockerfile, or no such stage"},
        ),
        "bench": Command(
            "count what the start of a program asks of the shared file system",
            check_options.bench,
            {
                0: "counted",
                2: "no such place, or the module cannot be imported there",
                3: "a part cannot be counted here: the engine is set-user-id",
                4: "no strace, no Python or no engine here, or it starts no container",
            },
        ),
    },
}
"""The commands as `--help` groups them."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
ALIASES = {"list": "show"}
"""Other names that commands have."""
INTERNAL = "node"
"""What `check --nodes` starts on each node: in no list of commands."""
_ALL = COMMANDS | {INTERNAL: Command("", job_options.node, {})}
EXITS: Mapping[int | str, str] = {
    0: "good",
    1: "the answer is no",
    2: "wrong usage or bad input",
    3: "cannot decide (says what would)",
    4: "something needed is missing here",
}
"""What the exit codes of all commands say."""
_EPILOG = """\
the next step here: lumiimg      help on a command: lumiimg help COMMAND
"""


class MainParser(Parser):
    """The parser above all commands; its help shows them in groups, whichever it has a parser of."""

    @property
    def commands(self) -> Iterable[str]:
        """The names of all commands."""
        return (*COMMANDS, *ALIASES)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print what cannot be understood; an option of a command stands behind that."""
        option = words[0].partition("=")[0]
        if option.startswith("-"):
            takes = (name for name, command in make_parser().below.items() if option in command.options)
            if name := next(takes, None):
                self.error(f"{option} is an option of commands, such as {name}: lumiimg {name} {option}")
        super().refuse(words)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage("lumiimg COMMAND ...", (), ())
        formatter.add_text(self.description)
        for title, group in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([argparse.Action((), name, help=row.purpose) for name, row in group.items()])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(f"{exit_codes(EXITS)}\n{self.epilog}")
        return formatter.format_help()


@functools.cache  # the same for a whole process
def make_parser(names: tuple[str, ...] = tuple(_ALL)) -> MainParser:
    """Return the parser of the program with these of its commands."""
    parser = MainParser(
        prog="lumiimg",
        description="Build ROCm AI images for HPE Slingshot machines, and prove which network\nthey use.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"lumiimg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name in names:
        aliases = [other for other, named in ALIASES.items() if named == name]
        shown: dict[str, Any] = {} if name == INTERNAL else {"help": _ALL[name].purpose}
        command = commands.add_parser(name, aliases=aliases, **shown)
        _, configure, exits = _ALL[name]
        text = (configure.__doc__ or "").rstrip().replace("\n    ", "\n")
        command.description, _, command.epilog = text.partition("\n\n")
        command.set_defaults(command=name)
        configure(command)
        for one in (command, *command.below.values()):
            one.exits = exits
    return parser


def parser_for(words: Iterable[str]) -> MainParser:
    """Return the parser of the program with the command that a command line names, and no other."""
    names = (ALIASES.get(word, word) for word in words)
    name = next((name for name in names if name in _ALL), None)
    return make_parser((name,) if name else ())
