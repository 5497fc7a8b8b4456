"""`make mutate`: would the unit tests notice a slip in the rules and the verdict? Never part of a test.

Every test runs once, and it is noted which lines of the judging modules it goes through. Then each mutant (mutants.py)
is put into a forked copy of this process, and the tests that go through its lines run until one fails: the mutant is
killed. One that survives is a promise that no test holds, a change that changes nothing, or code that nobody needs.
Survivors that were looked at stand, each with its reason, in mutation-survivors.toml.

mutmut and cosmic-ray were looked at first: three quarters of the mutants that the former makes of resolve/rules.py are
changed words of messages, and arguments left out; the latter starts pytest anew for every mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from tools.mutants import Mutant, constant_of, mutants

ROOT = Path(__file__).parents[1]
SURVIVORS = ROOT / "tools/mutation-survivors.toml"
NOTES = ROOT / ".mutation"
"""What was measured, for the next run."""
MODULES = (
    *(f"resolve/{name}" for name in ("rules", "search", "stack", "planner")),
    *(f"fabric/{name}" for name in ("path", "rccl")),
    *(f"joblog/{name}" for name in ("network", "death", "answer", "report", "state")),
    *(f"check/{name}" for name in ("answer", "drift")),
    *(f"check/static/{name}" for name in ("plugin", "variables", "load_faults", "process_faults")),
    *(f"check/static/{name}" for name in ("process", "files")),
    *(f"check/run/{name}" for name in ("log_answer", "execution")),
    *(f"elf/{name}" for name in ("refusals", "search", "loader")),
    *(f"host/{name}" for name in ("bind", "bind_trial")),
)
MEMORY_BYTES = 4 * 2**30
GRACE_S = 10
"""Added to five times what the tests of a mutant take without it."""
_SAID = 2000
_ALIVE = {"survived", "known"}


@dataclass(slots=True)
class Measured:
    """What the tests do, by their ids."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Those that go through a line, by module and the line's number."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant."""

    mutant: Mutant
    state: str
    """`killed`, `timed out`, `survived`, or `known`: survived, and looked at."""


class Runner:
    """The plugin that takes the place of pytest's loop."""

    def __init__(self, modules: Sequence[str], limit_s: float) -> None:
        self._modules = modules
        self._limit_s = limit_s
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}
        self.fates: dict[str, list[Fate]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        measured = self._measured()
        for module in MODULES:
            importlib.import_module(name_of(module))
        self._functions = functions_below(ROOT / "lumiimg")
        for module in self._modules:
            self.fates[module] = list(self._of_module(module, measured))
            alive = {shown(fate.mutant) for fate in self.fates[module] if fate.state in _ALIVE}
            for entry in read_survivors():
                if entry["module"] == module and entry["mutant"] not in alive:
                    say(f"no survivor any more, take it out of {SURVIVORS.name}: {module} {entry['mutant']}")
        return True

    def _measured(self) -> Measured:
        """Return what the tests do: from the notes where neither they nor the modules have changed, else by running them."""
        files = {path_of(module) for module in MODULES} | {item.path for item in self._items.values()}
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
        notes = NOTES / f"{digest}.json"
        if not notes.exists():
            say(f"{len(self._items)} tests are run once, to see where they go")
            shutil.rmtree(NOTES, ignore_errors=True)
            NOTES.mkdir()
            if said := in_child(partial(_measure, [*self._items.values()], notes), timeout_s=3600):
                raise SystemExit(said)
        return Measured(**json.loads(notes.read_text()))

    def _of_module(self, module: str, measured: Measured) -> Iterator[Fate]:
        path = path_of(module)
        tree = ast.parse(path.read_text())
        live = importlib.import_module(name_of(module))
        reviewed = {entry["mutant"] for entry in read_survivors() if entry["module"] == module}
        through = measured.tests.get(module, {})
        killers: dict[str, None] = {}
        for mutant in mutants(tree, vars(live)):
            tests = {test for line in _lines_of(mutant, tree) for test in through.get(str(line), ())}
            chosen, spent = [], 0.0
            for test in _in_order(tests, killers, measured.seconds):
                chosen.append(self._items[test])
                spent += measured.seconds[test]
                if spent > self._limit_s:
                    break
            functions = self._functions.get((str(path), mutant.scope), [])
            constant = [node for node in tree.body if constant_of(node) == mutant.scope]
            mutant.make()
            code = compile(ast.Module(constant or tree.body, []), str(path), "exec")
            mutant.undo()
            assert constant or functions, f"{mutant.scope} is not found"
            put = partial(_put, live, mutant, code, functions)
            killer = in_child(partial(_judge, put, chosen), timeout_s=GRACE_S + 5 * spent)
            if killer:
                killers.pop(killer, None)
                killers[killer] = None
                yield Fate(mutant, "killed")
            elif killer is None:
                yield Fate(mutant, "timed out")
            elif shown(mutant) in reviewed:
                yield Fate(mutant, "known")
            else:
                yield Fate(mutant, "survived")
                say(f"lumiimg/{module}.py:{mutant.lines.start} {shown(mutant)} [{len(chosen)} tests]")


def _in_order(tests: set[str], killers: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Return the tests, those first that killed others, the latest of them before; then every file in turn.

    Each file gets its share of the time, more if it has killed, and spends it on its fastest tests first.
    """
    first = [test for test in reversed([*killers]) if test in tests]
    kills = Counter(test.partition("::")[0] for test in killers)
    until: dict[str, float] = defaultdict(float)
    order: dict[str, float] = {}
    for test in sorted(tests.difference(first), key=seconds.__getitem__):
        file = test.partition("::")[0]
        until[file] += seconds[test] / (1 + kills[file])
        order[test] = until[file]
    return [*first, *sorted(order, key=order.__getitem__)]


def _measure(items: Sequence[pytest.Item], notes: Path) -> str:
    """Run the tests with their lines noted; in a child, so that this process stays as it was."""
    found = Measured()
    cov = coverage.Coverage(data_file=None, include=[str(path_of(module)) for module in MODULES], config_file=False)
    cov.start()
    for item, following in zip_longest(items, items[1:]):
        cov.switch_context(item.nodeid)
        began = time.monotonic()
        if passes(item, following):
            found.seconds[item.nodeid] = time.monotonic() - began
        else:
            say(f"fails without a mutant, and is left out: {item.nodeid}")
    cov.stop()
    data = cov.get_data()
    for module in MODULES:
        by_line = data.contexts_by_lineno(str(path_of(module)))
        found.tests[module] = {
            str(line): [test for test in tests if test in found.seconds] for line, tests in by_line.items()
        }
    notes.write_text(json.dumps(asdict(found)))
    return ""


def _judge(put: Callable[[], None], items: Sequence[pytest.Item]) -> str:
    """Run tests with a mutant in its place until one fails; return its id."""
    put()
    for item, following in zip_longest(items, items[1:]):
        if not passes(item, following):
            return item.nodeid
    return ""


def _put(live: Any, mutant: Mutant, code: CodeType, functions: Sequence[FunctionType]) -> None:
    """Let a module run the code of a mutant: its functions, or all that hold the constant's value."""
    for value in vars(live).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    for function in functions:
        function.__code__ = _code_of(code, mutant.scope)
    if not functions:
        set_constant(live, mutant.scope, code)


def set_constant(live: Any, name: str, code: CodeType) -> None:
    """Give a constant of a module the value that a statement gives it, in all modules that have it by its name."""
    namespace = dict(vars(live))
    exec(code, namespace)  # noqa: S102  # one statement of our own module, with a mutant in it
    old, value = vars(live)[name], namespace[name]
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("lumiimg", "tests", "tools")) and vars(module).get(name) is old:
            setattr(module, name, value)


def _code_of(code: CodeType, scope: str) -> CodeType:
    name, _, rest = scope.partition(".")
    inner = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return _code_of(inner, rest) if rest else inner


def functions_below(folder: Path) -> dict[tuple[str, str], list[FunctionType]]:
    """Return the functions of the modules as they live, whatever was made of them since (properties, caches).

    They are by file and name.
    """
    gc.unfreeze()  # conftest.py has them where nobody sees them
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(f"{folder}/"):
            found[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
    gc.freeze()
    return found


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test; fixtures that the following one shares stay."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def in_child(run: Callable[[], str], *, timeout_s: float) -> str | None:
    """Return what a forked copy of this process says; None where it was killed or took too long."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            said = run()
        except BaseException as error:  # noqa: BLE001  # whatever a mutant does
            said = f"{type(error).__name__}: {error}"
        os.write(writing, f"={said[:_SAID]}".encode())
        os._exit(0)
    os.close(writing)
    watched = os.pidfd_open(child)
    select.select([watched], [], [], timeout_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what it left behind
    os.waitpid(child, 0)
    os.close(watched)
    try:
        said = os.read(reading, 2 * _SAID).decode()
    except BlockingIOError:
        said = ""
    os.close(reading)
    return said[1:] if said else None


def _lines_of(mutant: Mutant, tree: ast.Module) -> set[int]:
    """Return where a test has to go to meet the mutant; of a constant, where the module uses it."""
    if any(constant_of(node) == mutant.scope for node in tree.body):
        used = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == mutant.scope)
        inside = {n.lineno for n in used if isinstance(n.ctx, ast.Load)}
        everywhere = {n.lineno for n in ast.walk(tree) if isinstance(n, ast.stmt)}
        return inside or everywhere
    return set(mutant.lines)


def read_survivors() -> list[dict[str, Any]]:
    """Return the survivors that were looked at."""
    return list(tomllib.loads(SURVIVORS.read_text())["survivor"]) if SURVIVORS.exists() else []


def path_of(module: str) -> Path:
    return ROOT / f"lumiimg/{module}.py"


def name_of(module: str) -> str:
    return f"lumiimg.{module.replace('/', '.')}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def shown(mutant: Mutant) -> str:
    return f"{mutant.scope}: {_flat(mutant.before)} -> {_flat(mutant.after)}"


def say(text: str) -> None:
    """Print at once, whatever pytest captures."""
    os.write(_TERMINAL, f"{text}\n".encode())


def table(fates: dict[str, list[Fate]]) -> Iterator[str]:
    """Yield the figures, a line a module; equivalent mutants are not counted in the score."""
    states = ("killed", "timed out", "survived", "known")
    yield f"{'module':24}{'mutants':>9}" + "".join(f"{state:>11}" for state in states) + f"{'score':>8}"
    total: Counter[str] = Counter()
    for module, found in fates.items():
        count = Counter(fate.state for fate in found)
        total += count
        yield _row(module, [count[state] for state in states])
    yield _row("all", [total[state] for state in states])


def _row(name: str, counts: Sequence[int]) -> str:
    caught, judged = sum(counts[:2]), sum(counts[:3])
    score = f"{100 * caught / judged:.1f} %" if judged else ""
    return f"{name:24}{sum(counts):>9}" + "".join(f"{count:>11}" for count in counts) + f"{score:>8}"


def load_profile() -> None:
    """Let hypothesis make the same inputs each time, and stop at the first that fails."""
    hypothesis.settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # the first failure is enough
    )
    hypothesis.settings.load_profile("mutation")


def main() -> int:
    """Print the survivors as they are found, then the figures; 1 where one is new."""
    parser = argparse.ArgumentParser(description="mutate the rules and the verdict")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as joblog/network; else all")
    parser.add_argument("--limit", type=float, default=60, help="seconds of tests for each mutant, the fastest first")
    args = parser.parse_args()
    if unknown := set(args.modules) - set(MODULES):
        parser.error(f"not among the modules: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    load_profile()
    runner = Runner(args.modules or MODULES, args.limit)
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "-qq",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--basetemp={folder}/tests",
        ]
        pytest.main([*options, str(ROOT / "tests/unit")], plugins=[runner])
    say("\n".join(table(runner.fates)))
    return int(any(fate.state == "survived" for found in runner.fates.values() for fate in found))


_TERMINAL = os.dup(1) if __name__ == "__main__" else 1

if __name__ == "__main__":
    sys.exit(main())
