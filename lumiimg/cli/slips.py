"""What people type who know other tools, and what they meant."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Sequence

_KINDS = ("bases", "layers", "recipes", "sites")
_RUN = "lumiimg writes the job that runs an image: lumiimg job IMAGE --site lumi -- COMMAND"
_PULL = "an image of a registry is read from there: lumiimg adapt docker://{rest} --site lumi"
_ADD = "software is a layer of an image: lumiimg explain --add {rest} shows the bases that take it"
_EXPLAIN = "lumiimg explain {rest}"
_COMMANDS = {
    **dict.fromkeys(("run", "exec", "shell", "start", "srun", "sbatch", "submit"), _RUN),
    **dict.fromkeys(("install", "add", "pip", "sync"), _ADD),
    **dict.fromkeys(("pull", "fetch", "get"), _PULL),
    **dict.fromkeys(("inspect", "info", "view"), _EXPLAIN),
    **dict.fromkeys(("search", "images", "ls", *_KINDS), "lumiimg list"),
    **dict.fromkeys(("logs", "debug", "analyze", "status"), "lumiimg log slurm-123.out"),
    **dict.fromkeys(("test", "validate", "verify-image", "lint"), "lumiimg check image.sif"),
    **dict.fromkeys(("rm", "clean", "prune", "gc"), "lumiimg cache prune"),
    **dict.fromkeys(("update", "upgrade"), "lumiimg rebuild image.sif, or `lumiimg refresh` for new releases"),
    **dict.fromkeys(("init", "new", "create", "make"), "lumiimg build --base rocm-6.4.4 --add vllm -o image.sif"),
    "version": "lumiimg --version",
}
_EXAMPLES = {_ADD: "vllm", _EXPLAIN: "image.sif"}
_OF_ALL_TOOLS = ("--verbose", "--quiet")
_RELEASE = re.compile(r"\d+(\.\d+)+\S*")


def meant(word: str, names: Iterable[str]) -> str:
    """Return a question that names what is spelled alike, or the one option that a letter can stand for."""
    names = list(names)
    if len(word) == 2 and word[0] == "-":
        close = [name for name in names if name.startswith(f"--{word[1]}")]
        close = [name for name in close if name in _OF_ALL_TOOLS] or (close if len(close) == 1 else [])
    else:
        close = difflib.get_close_matches(word[:60], names, n=1, cutoff=0.7)
    return f", did you mean {close[0]}?" if close else ""


def of_command(command: str, rest: Sequence[str]) -> str | None:
    """Return what to type instead of a command that another tool has; `rest` is what stands behind it."""
    hint = _COMMANDS.get(command)
    if hint is None:
        return None
    first = next((one for one in rest if not one.startswith("-")), _EXAMPLES.get(hint, "rocm/pytorch"))
    return hint.format(rest=shlex.quote(first.removeprefix("docker://")))


def of_words(words: Sequence[str], before: Sequence[str], options: Collection[str]) -> str | None:
    """Return what to type instead of words that a command does not take.

    `before` is the whole command line, `options` are those of the command.
    """
    first = words[0]
    if first.startswith("-"):
        return None
    left = before[before.index(first) - 1] if first in before[1:] else ""
    if _RELEASE.fullmatch(first) and not left.startswith("-") and "--add" in options:
        return f"a version stands behind ==: --add {shlex.quote(f'{left}=={first}')}"
    if first.endswith(".sif") and "--image" in options:
        images = [one for one in before if one.endswith(".sif")]
        return f"images stand behind --image: --image {shlex.join(images[:3])}{' …' if len(images) > 3 else ''}"
    if "--add" in options:
        return f"software is named by --add: --add {shlex.quote(first)}"
    if before[:1] == ["list"]:
        if first in _KINDS:
            return "`lumiimg list` lists bases, layers, recipes and sites"
        return f"lumiimg show {shlex.quote(first)}"
    return None
