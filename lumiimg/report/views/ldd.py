"""Answer of `ldd`: each file as a tree of what it loads; of many files, those that lack something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core.findings import NO_ADVICE, Advice, Severity
from lumiimg.report.document import Document, Item, Paragraph, Section, Tree, severity_of, trees_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.elf import LoadedObject, LoadResult
    from lumiimg.host.ldd import Libraries

_TREES = 3
"""Maximum number of files shown as trees; of more files, only those that lack something are of interest."""
_MAX_NAMES = 5


def ldd_document(image: str, found: Libraries) -> Document:
    """Return the answer of `ldd`."""
    has_trees = len(found.files) <= _TREES
    errors = found.outcomes[0].errors if len(found.outcomes) == 1 else ()
    return Document(
        "ldd",
        image,
        found.sentence,
        severity_of(found.exit_code) if found.outcomes or found.undecided else Severity.INFO,
        Advice(errors[0]) if errors else NO_ADVICE,
        sections=(
            Section("What is not known", (Item(Severity.UNKNOWN, doubt) for doubt in found.notes)),
            *(_trees(found) if has_trees else _lists(found)),
        ),
        is_list=has_trees,
    )


def _trees(found: Libraries) -> Iterator[Section]:
    for path, outcome in found.files.items():
        if path in found.by_kernel:
            yield _tree(f"{path}, given to ld.so (`ld.so {path}`)", outcome)
            started = found.by_kernel[path]
            others = ", which loads others" if started.closure != outcome.closure else ""
            yield _tree(f"{path}, started by its name{others}", started)
        else:
            yield _tree(path, outcome)


def _tree(title: str, outcome: LoadResult) -> Section:
    needs = _needs(outcome, outcome.root) if outcome.root is not None else ()
    items = [Item(Severity.PROBLEM, error) for error in outcome.errors]
    items += [Item(Severity.UNKNOWN, warning) for warning in outcome.warnings]
    tree = Tree(title, "statically linked" if outcome.is_static else "", branches=needs)
    return Section(title, (tree, *items))


def _needs(outcome: LoadResult, root: LoadedObject) -> tuple[Tree, ...]:
    """Return the dependencies of an object as a tree; each library is expanded where it appears first.

    Without recursion, because chains can be long.
    """
    by_path = {loaded.path: loaded for loaded in outcome.objects}
    shown: set[str] = set()
    rows: list[tuple[int, Tree]] = []
    pending = [(0, name) for name in reversed(root.facts.needed)]
    while pending:
        depth, name = pending.pop()
        path = outcome.closure.get(name)
        if path is None:
            rows.append((depth, Tree(f"{name} => not found", severity=Severity.PROBLEM)))
            continue
        found = by_path.get(path)
        rule = f"  [{found.found_by.words}]" if found is not None and found.found_by.words else ""
        again = found is not None and path in shown and bool(found.facts.needed)
        rows.append((depth, Tree(name, f"=> {path}{rule}{' (above)' if again else ''}")))
        if found is not None and path not in shown:
            shown.add(path)
            pending += [(depth + 1, needed) for needed in reversed(found.facts.needed)]
    return trees_of(rows)


def _lists(found: Libraries) -> Iterator[Section]:
    """Yield what is missing most often, and the files that lack something; with --verbose, also the others."""
    yield Section("What is missing", _missing(found))
    bad, good = ([(path, one) for path, one in found.files.items() if one.ok is is_ok] for is_ok in (False, True))
    errors = ((path, "; ".join(outcome.errors).removeprefix(f"{path}: ")) for path, outcome in bad)
    items = [Item(Severity.PROBLEM, f"{path}: {error}") for path, error in errors]
    for path, outcome in found.by_kernel.items():
        ends = "everything is found" if outcome.ok else outcome.errors[0]
        severity = Severity.OK if outcome.ok else Severity.PROBLEM
        items.append(Item(severity, f"{path}, started by its name: {ends}"))
    items += (Item(Severity.OK, path, verbose=True) for path, _ in good)
    yield Section("Files", items)


def _missing(found: Libraries) -> Iterator[Paragraph]:
    """Yield the libraries that are missing most often."""
    if found.missing.total() > _TREES:
        most = ", ".join(f"{name} ({times})" for name, times in found.missing.most_common(_MAX_NAMES))
        yield Paragraph(f"missing most often: {most}")
        note = "what a file's own program would have loaded before it (its RPATH, a dlopen) is not counted"
        yield Paragraph(note, quiet=True)
