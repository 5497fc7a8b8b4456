"""What `lumiimg ldd` says: a tree for people, the contract's JSON for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lumiimg.elf.objects import FoundBy, LoadedObject, LoadOutcome
from lumiimg.report.console import Console, branch, console, detail, headline, marked, say, verbatim
from lumiimg.wording import count

_TREES = 3
"""Files that get a tree each; further ones get one line each."""
_LINES, _MOST = 20, 5
_RULES = {
    FoundBy.INTERPRETER: "the loader itself",
    FoundBy.PRELOAD: "preloaded",
    FoundBy.PATH: "its own path",
    FoundBy.RPATH: "RPATH",
    FoundBy.LD_LIBRARY_PATH: "LD_LIBRARY_PATH",
    FoundBy.RUNPATH: "RUNPATH",
    FoundBy.CACHE: "ld.so.cache",
    FoundBy.DEFAULT: "default folder",
}


def print_ldd(
    outcomes: Mapping[str, LoadOutcome],
    by_kernel: Mapping[str, LoadOutcome],
    undecided: str | None,
    doubts: Sequence[str],
    *,
    verbose: bool,
    quiet: bool = False,
    stderr: bool = False,
) -> None:
    out = console(stderr=stderr, quiet=quiet)
    for doubt in doubts:
        marked(out, "unknown", doubt)
    if undecided:
        headline(out, f"CANNOT TELL: {undecided}", "unknown")
        return
    if not outcomes:
        headline(out, "no program and no library in this image")
        return
    if len(outcomes) <= _TREES and not quiet:
        for path, outcome in outcomes.items():
            if path in by_kernel:
                _print_tree(out, path, outcome, f"given to ld.so (`ld.so {path}`)")
                _print_tree(out, path, by_kernel[path], "started by its name, which loads others")
            else:
                _print_tree(out, path, outcome)
    else:
        _print_many(out, outcomes, verbose=verbose)
        for path, outcome in by_kernel.items():
            ends = "all is found" if outcome.ok else outcome.errors[0]
            marked(out, "ok" if outcome.ok else "problem", f"{path}, started by its name, loads others: {ends}")


def _print_many(out: Console, outcomes: Mapping[str, LoadOutcome], *, verbose: bool) -> None:
    bad = [path for path, outcome in outcomes.items() if not outcome.ok]
    told = f", {len(bad)} would not" if bad else " with all that they need"
    answer = f"{count(len(outcomes), 'file')}: {len(outcomes) - len(bad)} would load{told}"
    headline(out, answer, "problem" if bad else "ok")
    shown = list(outcomes) if verbose else bad[:_LINES]
    for path in shown:
        marked(out, "ok" if outcomes[path].ok else "problem", path)
        for error in outcomes[path].errors:
            detail(out, error)
    if not verbose and len(bad) > _LINES:
        out.print(f"… and {len(bad) - _LINES} more (all with --verbose or --json)")
    missing = Counter(item.name for path in bad for item in outcomes[path].missing)
    if len(bad) > _LINES and missing:
        most = ", ".join(f"{name} ({times})" for name, times in missing.most_common(_MOST))
        say(out, f"missing most often: {most}")
        note = "what a file's own program would have loaded before it (its RPATH, a dlopen) is not counted"
        say(out, note, style="dim")


def _print_tree(out: Console, path: str, outcome: LoadOutcome, start: str = "") -> None:
    verbatim(out, f"{path}, {start}" if start else path, style="bold")
    if outcome.root is not None and not outcome.root.facts.is_dynamic:
        detail(out, "statically linked")
    elif outcome.root is not None:
        _print_needs(out, outcome, outcome.root)
    for error in outcome.errors:
        marked(out, "problem", error)
    for warning in outcome.warnings:
        marked(out, "unknown", warning)
    if outcome.ok and outcome.root is not None:
        libraries = len(outcome.objects) - 1
        told = "1 library" if libraries == 1 else f"{libraries} libraries"
        marked(out, "ok", f"loads with all that it needs: {told}")
    out.print()


def _print_needs(out: Console, outcome: LoadOutcome, root: LoadedObject) -> None:
    """Print what an object needs, and below each what that one needs, where it is met first.

    Without recursion: chains can be long.
    """
    by_path = {loaded.path: loaded for loaded in outcome.objects}
    shown: set[str] = set()
    pending = _lines_below(root, "")
    while pending:
        name, indent, last = pending.pop()
        path = outcome.closure.get(name)
        line = f"{indent}{'└── ' if last else '├── '}{name} =>"
        beside = indent + ("    " if last else "│   ")
        if path is None:
            verbatim(out, f"{line} not found", style="red")
            continue
        found = by_path.get(path)
        rule = f"  [{_RULES[found.found_by]}]" if found is not None and found.found_by in _RULES else ""
        again = found is not None and path in shown and bool(found.facts.needed)
        branch(out, line, f"{path}{rule}{' (above)' if again else ''}", below=beside)
        if found is not None and path not in shown:
            shown.add(path)
            pending += _lines_below(found, beside)


def _lines_below(loaded: LoadedObject, indent: str) -> list[tuple[str, str, bool]]:
    """Return (needed name, indent, whether it is the last of its siblings), the first one at the end."""
    needs = loaded.facts.needed
    return [(name, indent, position == len(needs) - 1) for position, name in enumerate(needs)][::-1]
