"""A model of glibc's ld.so: what one process would load from a root file system, and from where.

The rules are those of `elf/dl-load.c` (where a name is searched), `elf/dl-deps.c` (in which order) and
`elf/dl-version.c` (whether the versions match) of glibc 2.26 to 2.43; ld.so(8) summarizes them. A process is started
with a program or a library, as with `ld.so --list`, and may then dlopen more libraries:

    process = Process(fs, LoaderConfig(library_path="/opt/lib"))
    process.start("/usr/bin/python3")
    result = process.dlopen("libfabric.so.1", requester)

ld.so stops at the first error; the model records it and continues, so that one run reports all errors.

Not modelled: filters (DT_FILTER, DT_AUXILIARY: a warning names the file), AT_SECURE (setuid programs: LD_* is
dropped, $ORIGIN and names with a slash are restricted), LD_AUDIT and its libraries, GLIBC_TUNABLES, dlmopen, dlclose,
the preloads of a static program under an explicit ld.so, and whether the symbols of a version exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from copy import copy
from typing import TYPE_CHECKING

from lumiimg.core.access import read_or_empty
from lumiimg.elf.glibc import FileSystem, Loader, LoaderConfig, since
from lumiimg.elf.objects import FoundBy, LoadedNames, LoadedObject, LoadResult, MissingLibrary, SymbolScopes
from lumiimg.elf.refusals import (
    FIRST_MINOR_WITH_RELR,
    StaticTls,
    check_versions,
    isa_problem,
    map_problem,
    open_problem,
    run_problem,
)
from lumiimg.elf.search import Candidate, ElfCache, SearchRules, origin_of

if TYPE_CHECKING:
    from lumiimg.core.access import OpenFile

_SPELLED_AT_START = (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.EPERM, errno.EIO, errno.EACCES)
_ERRNO_AT_END = re.compile(f": (?:Error [0-9]+|{'|'.join(map(os.strerror, _SPELLED_AT_START))})$")
PRELOAD_FILE = "/etc/ld.so.preload"
_MAX_PRELOAD_BYTES = 1 << 20
_VDSO_SONAMES = frozenset({"linux-vdso.so.1", "linux-gate.so.1", "linux-vdso64.so.1"})
"""Sonames of the object that the kernel maps into each process (vdso(7))."""
_MAX_OBJECTS = 4096
_MAX_ERRORS = 4096
_FIRST_MINOR_WITH_REAL_ORIGIN = 42
_FIRST_MINOR_LISTING_ITSELF = 41
_NO_STATIC_TLS = "cannot allocate memory in static TLS block"


class Process:
    """One process: its loaded objects, and the rules by which it loads more.

    Processes over the same root file system may share a `cache`, so that its libraries are read only once.
    """

    def __init__(self, fs: FileSystem, config: LoaderConfig | None = None, *, cache: ElfCache | None = None) -> None:
        self.config = config or LoaderConfig()
        self.scopes = SymbolScopes()
        self.files = cache or ElfCache(fs)
        self._names = LoadedNames()
        self._rules: SearchRules | None = None
        self._loader: Loader | None = None
        self.machine = 0
        """e_machine of the started program or library."""
        self._stack_is_executable = False
        self._is_running = False
        self._runs = False
        self._tls: StaticTls | None = None
        self._before_failure: tuple[LoadedNames, StaticTls | None] | None = None

    @property
    def objects(self) -> list[LoadedObject]:
        """Objects of the process, in load order."""
        return self._names.objects

    @property
    def loader(self) -> Loader:
        """Loader of this process. Available only after `start`."""
        if self._loader is None:
            raise RuntimeError("the process does not start")
        return self._loader

    def start(self, path: str, *, exec_start: bool = False) -> LoadResult:
        """Start a program, or load a library on its own, as `ld.so --list PATH` does.

        $ORIGIN of the program is the directory of its real path if the kernel starts it (`exec_start`: it is run by its
        own name), and since glibc 2.42 under an explicit ld.so, too; before that, of the path as given.
        """
        result = LoadResult()
        self._runs = exec_start
        self._start(path, result)
        return result.without_repetitions()

    def _start(self, path: str, result: LoadResult) -> None:
        absolute = self.config.absolute(path)
        opened = self.files.open(absolute, to_run=self._runs)
        facts = opened.facts
        if facts is None:
            result.errors.append(self._not_run(path, opened) if self._runs else self._failure(path, opened))
            return
        self.machine = facts.machine
        self._loader = loader = self.files.loader(facts.machine, facts.interpreter)
        minor = loader.glibc_minor
        if self._runs or since(minor, _FIRST_MINOR_WITH_REAL_ORIGIN):
            absolute = self.files.resolve(absolute)
        origin = origin_of(absolute)
        main = LoadedObject(path, path, facts, FoundBy.PROGRAM, None, origin, is_recorded=opened.is_recorded)
        result.root = main
        self._names.add(main)
        result.objects.append(main)
        problem = None if self._runs else map_problem(facts, minor, is_program=True)
        if problem:
            result.errors.append(f"{path}: {problem}")
        if problem or not facts.is_dynamic:
            return
        if facts.interpreter and "ld-musl" in facts.interpreter:
            result.errors.append(f"{path}: its loader is musl's {facts.interpreter}, not glibc's")
            return
        self._rules = SearchRules(self.files, facts.machine, self.config, loader, main)
        result.warnings.extend(loader.warnings)
        self._add_loader(main, opened, result)
        self._preload(main, result)
        order = result.objects
        self._load_needed(order, result)
        if since(minor, _FIRST_MINOR_LISTING_ITSELF) and (facts.needed or len(order) > 1):
            # the loader is in every process; ld.so lists it last if nothing needs it, and calls a lone object static
            order.extend(each for each in self.objects[1:2] if each not in order)
        self.scopes.add_global([*order, *self.objects[1:2]])
        self._stack_is_executable = any(loaded.facts.executable_stack for loaded in order)
        self._check(order, result)
        self._tls = StaticTls(facts.machine, [loaded.facts for loaded in order], minor)
        self._is_running = True

    def may_differ_by_exec(self, path: str) -> bool:
        """Return whether a program started as by `ld.so --list` may load other files when the kernel starts it."""
        absolute = self.config.absolute(path)
        return not since(self.loader.glibc_minor, FIRST_MINOR_WITH_RELR) or self.files.resolve(absolute) != absolute

    def dlopen(self, name: str, requester: LoadedObject | None = None, *, rtld_global: bool = False) -> LoadResult:
        """Load a library into the running process; `requester` is the object whose code calls dlopen.

        Objects from a failed dlopen stay visible until the next dlopen, which starts without them.
        """
        if not self.objects:
            raise RuntimeError("the process does not start")
        if self._before_failure is not None:
            self._names, self._tls = self._before_failure
        before = self._names.copy(), copy(self._tls)
        result = LoadResult()
        self._dlopen(name, requester or self.objects[0], result)
        if rtld_global and result.root is not None:
            self.scopes.add_global(self.scopes.local_scope_of(result.root))
        self._before_failure = before if result.errors else None
        return result.without_repetitions()

    def _dlopen(self, name: str, requester: LoadedObject, result: LoadResult) -> None:
        already = frozenset(self.objects)
        root = result.root = self._map(name, requester, result, by_dlopen=True) if name else self.objects[0]
        if root is None:
            return
        result.closure[name] = root.path
        if root in already:
            return
        order = [root]
        self._load_needed(order, result)
        result.objects = [loaded for loaded in order if loaded not in already]
        self._check(result.objects, result)
        # relocation is in reverse order: an object's dependencies before the object
        for loaded in reversed(result.objects):
            if self._tls is not None and not self._tls.allocate(loaded.facts):
                result.errors.append(f"{loaded.path}: {_NO_STATIC_TLS}")

    def open(self, loaded: LoadedObject) -> contextlib.closing[OpenFile]:
        """Open the file of an object, for use in a `with`. Raises OSError, BadInputError."""
        is_run = self._runs and loaded.found_by is FoundBy.PROGRAM
        fs = self.files.fs
        return contextlib.closing((fs.open_exec if is_run else fs.open)(self.config.absolute(loaded.path)))

    def find(self, name: str) -> LoadedObject | None:
        """Return the object of the process with a name, path or soname; None if there is none."""
        found = self._names.find(name)
        if found is None and self.objects and name == self.objects[0].path:
            return self.objects[0]
        return found

    def skip_reason(self, path: str) -> str | None:
        """Return why the loader would skip an existing file in its search; None if it would not. Only after `start`."""
        opened = self.files.open(self.config.absolute(path), self.machine)
        if opened.is_other_machine or opened.is_other_class:
            return "it is for another architecture"
        return os.strerror(errno.EACCES) if opened.errno == errno.EACCES else None

    def would_take(self, path: str) -> bool:
        """Return whether the loader would use a file if its search reached it. Only after `start`."""
        opened = self.files.open(self.config.absolute(path), self.machine)
        return opened.facts is not None and not (opened.is_other_machine or opened.is_other_class)

    def cached(self, name: str) -> str | None:
        """Return the path that /etc/ld.so.cache contains for a name."""
        return self._rules.cached(name) if self._rules else None

    def _add_loader(self, main: LoadedObject, program: Candidate, result: LoadResult) -> None:
        """Add the loader itself to the process: a need for it is satisfied without a search."""
        path = self.loader.path
        opened = self.files.open(self.config.absolute(path), self.machine, to_run=True)
        if opened.facts is None:
            result.errors.append(self._not_run(path, opened))
        elif opened.identity != program.identity:  # otherwise the loader itself was started
            facts, recorded = opened.facts, opened.is_recorded
            name, by = facts.soname or path, FoundBy.INTERPRETER
            loader = LoadedObject(name, path, facts, by, main, origin_of(path), is_recorded=recorded)
            self._names.add(loader, name, path)

    def _preload(self, main: LoadedObject, result: LoadResult) -> None:
        sources = [("LD_PRELOAD", name) for entry in self.config.preload for name in re.split("[ :]", entry) if name]
        sources += [(PRELOAD_FILE, name) for name in self._preload_file()]
        for source, name in sources:
            attempt = LoadResult()
            loaded = self._map(name, main, attempt, found_by=FoundBy.PRELOAD)
            if loaded is not None and loaded not in result.objects:
                result.objects.append(loaded)
                result.closure[name] = loaded.path
            for error in attempt.errors:
                words = _ERRNO_AT_END.sub("", error.split(": ", 1)[-1])
                result.warnings.append(
                    f"ERROR: ld.so: object '{name}' from {source} cannot be preloaded ({words}): ignored."
                )

    def _preload_file(self) -> list[str]:
        data = read_or_empty(self.files.fs, PRELOAD_FILE, _MAX_PRELOAD_BYTES)
        text = re.sub(r"#[^\n]*", " ", data.decode("utf-8", "surrogateescape"))
        return [name for name in re.split(r"[ \t\n:]+", text) if name]

    def _load_needed(self, order: list[LoadedObject], result: LoadResult) -> None:
        """Load the dependencies of the objects in a list, breadth first, and append them to the list."""
        listed = set(order)
        for loaded in order:
            if len(self.objects) >= _MAX_OBJECTS:
                result.errors.append(f"more than {_MAX_OBJECTS} objects in one process: the rest is ignored")
                return
            if len(result.errors) >= _MAX_ERRORS:
                result.errors.append(f"{len(result.errors)} errors in one load: the rest is ignored")
                return
            if loaded.filter_note:
                result.warnings.append(loaded.filter_note)
            for name in loaded.facts.needed:
                dependency = self._need(name, loaded, result)
                if dependency is not None:
                    self.scopes.link(loaded, dependency)
                if dependency is not None and dependency not in listed:
                    order.append(dependency)
                    listed.add(dependency)

    def _need(self, name: str, loaded: LoadedObject, result: LoadResult) -> LoadedObject | None:
        if name in _VDSO_SONAMES:
            # in every process from the start, and known by its soname: no file with that name is searched for
            result.missing_names.add(name)
            result.closure[name] = name
            return None
        found = self._map(name, loaded, result)
        if result.closure.get(name) is None:
            # a name may be found for one object but not for another
            result.closure[name] = found.path if found else None
        return found

    def _map(
        self,
        name: str,
        requester: LoadedObject,
        result: LoadResult,
        *,
        found_by: FoundBy | None = None,
        by_dlopen: bool = False,
    ) -> LoadedObject | None:
        """Return the object for a name: a loaded one, or a file found by the rules (`_dl_map_object`)."""
        if self._rules is None:
            raise RuntimeError("the process has no loader: it is static, or not started")
        # the name of a need is always expanded, any other name only if it is a path
        is_need = found_by is None and not by_dlopen
        wanted = self._rules.expand(name, requester.origin) if is_need or "/" in name else name
        known = self._names.lookup(wanted)
        if known is not None:
            return known
        label = wanted if is_need else name
        rule, found, other_class = self._rules.search(wanted, requester)
        facts = found.facts if found is not None else None
        if found is None or facts is None:
            result.missing_names.update((name, wanted))
            if found is not None and found.problem:
                result.errors.append(self._failure(found.path, found))
            else:
                number = found.errno if found is not None else errno.ENOENT
                result.errors.append(self._failure(label, Candidate(label, errno=number, is_other_class=other_class)))
                result.missing.append(MissingLibrary(name, requester))
            return None
        same = self._names.same_file(found.identity, wanted)
        if same is not None:
            return same
        problem = map_problem(facts, self.loader.glibc_minor)
        if problem:
            result.missing_names.update((name, wanted))
            result.errors.append(f"{label}: {problem}")
            return None
        if self._is_running:
            refused = open_problem(facts, self.loader.glibc_minor, stack_is_executable=self._stack_is_executable)
            if refused:
                result.errors.append(f"{label}: {refused}")
        by, origin = found_by or rule, origin_of(found.path, self.config.cwd)
        loaded = LoadedObject(wanted, found.path, facts, by, requester, origin, by_dlopen, found.is_recorded)
        self._names.add(loaded, wanted, found.path, identity=found.identity)
        return loaded

    def _check(self, objects: list[LoadedObject], result: LoadResult) -> None:
        """Check newly loaded objects: their versions, the CPU they need, and whether their files are complete."""
        minor = self.loader.glibc_minor
        check_versions(objects, self._names.named, minor, result)
        for loaded in objects:
            problem = isa_problem(loaded.facts, minor, self.config.isa)
            if problem and loaded.found_by is not FoundBy.INTERPRETER:
                result.errors.append(f"{loaded.path}: {problem}")
            crash = run_problem(loaded.facts, minor) if self._runs or self._is_running else None
            if crash and not result.missing_versions:
                result.errors.append(f"{loaded.path}: {crash}")
            # mmap(2) accepts a truncated file, and reading a page past its end raises SIGBUS
            if loaded.facts.missing_bytes:
                result.warnings.append(
                    f"{loaded.path}: cut off: {loaded.facts.missing_bytes} bytes are not in the file"
                )
        result.warnings.extend(self._rules.doubts if self._rules else ())

    def _not_run(self, name: str, opened: Candidate) -> str:
        """Return why the kernel does not run a file, as a shell reports it."""
        if opened.errno == errno.EACCES:
            return f"{name}: cannot execute: {os.strerror(opened.errno)}"
        return self._failure(name, opened)

    def _failure(self, name: str, opened: Candidate) -> str:
        """Return the loader's message for a file that it cannot load."""
        if opened.is_other_class:
            return f"{name}: wrong ELF class: ELFCLASS32"
        if opened.problem and not opened.errno:
            return f"{name}: {opened.problem}"
        number = opened.errno or errno.ENOENT
        what = opened.problem or "cannot open shared object file"
        return f"{name}: {what}: {os.strerror(number) if self._is_running else _words_at_start(number)}"


def _words_at_start(number: int) -> str:
    """Return ld.so's text for an errno before libc is loaded, which exists for only a few (`elf/dl-minimal.c`)."""
    return os.strerror(number) if number in _SPELLED_AT_START else f"Error {number}"
