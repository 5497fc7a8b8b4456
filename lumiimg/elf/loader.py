"""A model of glibc's ld.so: what one process would load from a root file system, and from where.

The rules are those of `elf/dl-load.c` (where a name is searched), `elf/dl-deps.c` (in which order) and
`elf/dl-version.c` (whether the versions fit) of glibc 2.26 to 2.43; ld.so(8) gives them in short. A process is started
with a program or a library, as `ld.so --list` does it, and may then dlopen more on top of what it has:

    process = Process(fs, Settings(library_path="/opt/lib"))
    process.start("/usr/bin/python3")
    outcome = process.dlopen("librccl-net.so", requester)

Where ld.so stops at the first error, the model notes it and goes on, so that one run reports everything that is wrong.

Not modelled: filters (DT_FILTER, DT_AUXILIARY: a warning names the file), AT_SECURE (setuid programs: LD_* is
dropped, $ORIGIN and names with a slash are restricted), LD_AUDIT and its libraries, GLIBC_TUNABLES, dlmopen, dlclose,
the preloads of a static program under an explicit ld.so, and whether the symbols behind a version are there.
"""

from __future__ import annotations

import errno
import os
import re
from copy import copy
from dataclasses import replace

from lumiimg.elf.files import Files, FileVerdict, Opened
from lumiimg.elf.hwcaps import platform
from lumiimg.elf.load_checks import isa_problem, map_problem, open_problem, run_problem, since
from lumiimg.elf.objects import FoundBy, LoadedNames, LoadedObject, LoadOutcome, MissingLibrary, Report
from lumiimg.elf.reader import FileSystem, Native
from lumiimg.elf.rules import LoaderSettings, SearchResult, SearchRules, expand, origin_of
from lumiimg.elf.scopes import SymbolScopes
from lumiimg.elf.static_tls import StaticTls
from lumiimg.elf.system import System, read_what_is_there
from lumiimg.elf.version_check import check_versions

_SPELLED_AT_START = (errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.EPERM, errno.EIO, errno.EACCES)
_ERRNO_AT_END = re.compile(f": (?:Error [0-9]+|{'|'.join(map(os.strerror, _SPELLED_AT_START))})$")
_DEFAULT_NATIVE = Native(machine=62, elf_class=64)
_PRELOAD_FILE = "/etc/ld.so.preload"
_MAX_PRELOAD_BYTES = 1 << 20
_OF_THE_KERNEL = frozenset({"linux-vdso.so.1", "linux-gate.so.1", "linux-vdso64.so.1"})
"""Sonames of the object that the kernel maps into each process (vdso(7))."""
_MAX_OBJECTS = 4096
_MAX_ERRORS = 4096
_FIRST_MINOR_WITH_REAL_ORIGIN = 42
_FIRST_MINOR_LISTING_ITSELF = 41
_NO_STATIC_TLS = "cannot allocate memory in static TLS block"


class Process:
    """One process: the objects that it has loaded, and the rules by which it loads more.

    `files` may be shared by processes over the same root file system, which saves reading its libraries again.
    """

    def __init__(self, fs: FileSystem, settings: LoaderSettings | None = None, *, files: Files | None = None) -> None:
        self.settings = settings or LoaderSettings()
        self.scopes = SymbolScopes()
        self._files = files or Files(fs)
        self._native = _DEFAULT_NATIVE
        self._names = LoadedNames()
        self._system: System | None = None
        self._rules: SearchRules | None = None
        self._stack_is_executable = False
        self._is_running = False
        self._runs = False
        self._tls: StaticTls | None = None
        self._before_failure: tuple[LoadedNames, StaticTls | None] | None = None

    @property
    def objects(self) -> list[LoadedObject]:
        """What the process has loaded, in the order in which it came."""
        return self._names.objects

    @property
    def system(self) -> System:
        """What the loader of this process has compiled in. Only after `start`."""
        if self._system is None:
            raise RuntimeError("the process is not started")
        return self._system

    def start(self, path: str, *, by_kernel: bool = False) -> LoadOutcome:
        """Start a program, or load a library alone, as `ld.so --list PATH` does it.

        $ORIGIN of the program is the directory of its real path where the kernel starts it (`by_kernel`: it is run by
        its own name), and since glibc 2.42 under an explicit ld.so too; before that, of the path as given.
        """
        report = Report()
        self._runs = by_kernel
        absolute = self.settings.absolute(path)
        self._native = self._files.native_of(absolute) or _DEFAULT_NATIVE
        opened = self._files.open(absolute, self._native)
        if opened.verdict is not FileVerdict.GOOD or opened.facts is None:
            report.errors.append(self._failure(path, opened))
            return report.outcome(None)
        facts = opened.facts
        system = self._files.system(self._native, facts.interpreter)
        own_platform = platform(self._native.machine, self.settings.hwcaps, intel=self.settings.intel)
        self._system = system = replace(system, platform=own_platform)
        if by_kernel or since(system.glibc_minor, _FIRST_MINOR_WITH_REAL_ORIGIN):
            absolute = self._files.fs.resolve(absolute)
        main = LoadedObject(path, path, facts, FoundBy.PROGRAM, None, origin_of(absolute, "/"))
        self._names.add(main)
        report.order.append(main)
        problem = None if by_kernel else map_problem(facts, system.glibc_minor, is_program=True)
        if problem:
            report.errors.append(f"{path}: {problem}")
        if problem or not facts.is_dynamic:
            return report.outcome(main)
        if facts.interpreter and "ld-musl" in facts.interpreter:
            report.errors.append(f"{path}: its loader is {facts.interpreter} of musl, not glibc's")
            return report.outcome(main)
        self._rules = SearchRules(self._files, self._native, self.settings, system, main)
        report.warnings.extend(system.warnings)
        self._add_loader(main, opened, report)
        self._preload(main, report)
        self._load_needed(report)
        lists_itself = since(system.glibc_minor, _FIRST_MINOR_LISTING_ITSELF)
        if lists_itself and (facts.needed or len(report.order) > 1):
            # it is in every process; ld.so lists it last where nothing needs it, and calls a lone object static
            report.order.extend(loader for loader in self.objects[1:2] if loader not in report.order)
        self.scopes.give_to_all([*report.order, *self.objects[1:2]])
        self._stack_is_executable = any(loaded.facts.executable_stack for loaded in report.order)
        self._check(report.order, report)
        report.warnings.extend(self._rules.doubts)
        self._tls = StaticTls(self._native.machine, report.order, system.glibc_minor)
        self._is_running = True
        return report.outcome(main)

    def dlopen(self, name: str, requester: LoadedObject | None = None, *, for_all: bool = False) -> LoadOutcome:
        """Load a library on top of what the process has; `requester` is the object whose code calls dlopen.

        `for_all`: with RTLD_GLOBAL.

        What a dlopen with errors has loaded can be looked at until the next dlopen, which finds the process without it.
        """
        if not self.objects:
            raise RuntimeError("the process is not started")
        if self._before_failure is not None:
            self._names, self._tls = self._before_failure
        before = self._names.copy(), copy(self._tls)
        report = Report()
        outcome = self._dlopen(name, requester or self.objects[0], report)
        if for_all and outcome.root is not None:
            self.scopes.give_to_all([outcome.root])
        self._before_failure = before if report.errors else None
        return outcome

    def _dlopen(self, name: str, requester: LoadedObject, report: Report) -> LoadOutcome:
        already = frozenset(self.objects)
        root = self._map(name, requester, report, by_dlopen=True) if name else self.objects[0]
        if root is None:
            return report.outcome(None)
        report.closure[name] = root.path
        if root in already:
            return report.outcome(root, already)
        report.order.append(root)
        self._load_needed(report)
        new = [loaded for loaded in report.order if loaded not in already]
        self._check(new, report)
        report.warnings.extend(self._rules.doubts if self._rules else ())
        # relocated in the reverse order, what is needed before what needs it
        for loaded in reversed(new):
            if self._tls is not None and not self._tls.take(loaded.facts):
                report.errors.append(f"{loaded.path}: {_NO_STATIC_TLS}")
        return report.outcome(root, already)

    def find(self, name: str) -> LoadedObject | None:
        """Return the object of the process that a name, path or soname belongs to."""
        found = self._names.find(name)
        if found is None and self.objects and name == self.objects[0].path:
            return self.objects[0]
        return found

    def passes_over(self, path: str) -> str | None:
        """Return why its search goes on behind a file that is there; None where it does not. Only after `start`."""
        opened = self._files.open(self.settings.absolute(path), self._native)
        if opened.verdict in {FileVerdict.OTHER_MACHINE, FileVerdict.OTHER_CLASS}:
            return "it is for another architecture"
        return os.strerror(errno.EACCES) if opened.errno == errno.EACCES else None

    def _add_loader(self, main: LoadedObject, program: Opened, report: Report) -> None:
        """Put the loader itself into the process: a need for it is met before any search."""
        path = self.system.loader
        opened = self._files.open(self.settings.absolute(path), self._native)
        if opened.verdict is not FileVerdict.GOOD or opened.facts is None:
            report.errors.append(self._failure(path, opened))
            return
        if opened.identity == program.identity:
            return  # the loader was started on itself
        name = opened.facts.soname or path
        loader = LoadedObject(name, path, opened.facts, FoundBy.INTERPRETER, main, origin_of(path, "/"))
        self._names.add(loader, name, path)

    def _preload(self, main: LoadedObject, report: Report) -> None:
        sources = [("LD_PRELOAD", name) for entry in self.settings.preload for name in re.split("[ :]", entry) if name]
        sources += [(_PRELOAD_FILE, name) for name in self._preload_file()]
        for source, name in sources:
            attempt = Report()
            loaded = self._map(name, main, attempt, found_by=FoundBy.PRELOAD)
            if loaded is not None and loaded not in report.order:
                report.order.append(loaded)
                report.closure[name] = loaded.path
            for error in attempt.errors:
                words = _ERRNO_AT_END.sub("", error.split(": ", 1)[-1])
                report.warnings.append(
                    f"ERROR: ld.so: object '{name}' from {source} cannot be preloaded ({words}): ignored."
                )

    def _preload_file(self) -> list[str]:
        data = read_what_is_there(self._files.fs, _PRELOAD_FILE, _MAX_PRELOAD_BYTES)
        text = re.sub(r"#[^\n]*", " ", data.decode("utf-8", "surrogateescape"))
        return [name for name in re.split(r"[ \t\n:]+", text) if name]

    def _load_needed(self, report: Report) -> None:
        """Load what the objects of a list need, breadth first."""
        order, listed = report.order, set(report.order)
        for loaded in order:
            if len(self.objects) >= _MAX_OBJECTS:
                report.errors.append(f"more than {_MAX_OBJECTS} objects in one process: the rest is not followed")
                return
            if len(report.errors) >= _MAX_ERRORS:
                report.errors.append(f"{len(report.errors)} errors in one load: the rest is not followed")
                return
            if loaded.facts.filters:
                filters = ", ".join(loaded.facts.filters)
                report.warnings.append(f"{loaded.path}: filters {filters}, which lumiimg does not follow")
            for name in loaded.facts.needed:
                dependency = self._need(name, loaded, report)
                if dependency is not None:
                    self.scopes.link(loaded, dependency)
                if dependency is not None and dependency not in listed:
                    order.append(dependency)
                    listed.add(dependency)

    def _need(self, name: str, loaded: LoadedObject, report: Report) -> LoadedObject | None:
        if name in _OF_THE_KERNEL:
            # in every process from its first moment, and known by its soname: no file of that name is looked for
            report.missing_names.add(name)
            report.closure[name] = name
            return None
        found = self._map(name, loaded, report)
        if report.closure.get(name) is None:
            # the same name may be found for one object and not for another
            report.closure[name] = found.path if found else None
        return found

    def _map(
        self,
        name: str,
        requester: LoadedObject,
        report: Report,
        *,
        found_by: FoundBy | None = None,
        by_dlopen: bool = False,
    ) -> LoadedObject | None:
        """Return the object for a name: one of the process, or a file that the rules find (`_dl_map_object`)."""
        if self._rules is None:
            raise RuntimeError("the process has no loader: it is static, or not started")
        # a need is expanded whatever it looks like, any other name only where it is a path
        is_need = found_by is None and not by_dlopen
        wanted = expand(name, origin=requester.origin, system=self.system) if is_need or "/" in name else name
        known = self._names.lookup(wanted)
        if known is not None:
            return known
        rule, found, other_class = self._rules.search(wanted, requester)
        if found is None or found.opened.verdict is not FileVerdict.GOOD or found.opened.facts is None:
            report.missing_names.update((name, wanted))
            report.errors.append(self._missing_words(wanted if is_need else name, found, other_class=other_class))
            if found is None or found.opened.verdict is not FileVerdict.FATAL:
                report.missing.append(MissingLibrary(name, requester))
            return None
        facts = found.opened.facts
        same = self._names.same_file(found.opened.identity, wanted)
        if same is not None:
            return same
        problem = map_problem(facts, self.system.glibc_minor)
        if problem:
            report.missing_names.update((name, wanted))
            report.errors.append(f"{wanted if is_need else name}: {problem}")
            return None
        if self._is_running:
            refused = open_problem(facts, self.system.glibc_minor, stack_is_executable=self._stack_is_executable)
            if refused:
                report.errors.append(f"{wanted if is_need else name}: {refused}")
        origin = origin_of(found.path, self.settings.cwd)
        loaded = LoadedObject(wanted, found.path, facts, found_by or rule, requester, origin, by_dlopen)
        self._names.add(loaded, wanted, found.path, identity=found.opened.identity)
        return loaded

    def _missing_words(self, name: str, found: SearchResult | None, *, other_class: bool) -> str:
        if found is not None and found.opened.verdict is FileVerdict.FATAL:
            return self._failure(found.path, found.opened)
        number = found.opened.errno if found is not None else errno.ENOENT
        opened = Opened(FileVerdict.OTHER_CLASS if other_class else FileVerdict.ABSENT, errno=number)
        return self._failure(name, opened)

    def _check(self, objects: list[LoadedObject], report: Report) -> None:
        """Judge what is new in the process: versions, the CPU that it needs, and whether it is whole."""
        minor = self.system.glibc_minor
        check_versions(objects, self._names.named, minor, report, warns=not self._is_running)
        for loaded in objects:
            problem = isa_problem(loaded.facts, minor, self.settings.hwcaps)
            if problem and loaded.found_by is not FoundBy.INTERPRETER:
                report.errors.append(f"{loaded.path}: {problem}")
            crash = run_problem(loaded.facts, minor) if self._runs or self._is_running else None
            if crash and not report.missing_versions:
                report.errors.append(f"{loaded.path}: {crash}")
        for loaded in objects:
            # mmap(2) takes a file that was cut off, and a read of a page that is not there is SIGBUS
            if loaded.facts.missing_bytes:
                lost = loaded.facts.missing_bytes
                report.warnings.append(f"{loaded.path}: cut off: {lost} bytes are not in the file")

    def _failure(self, name: str, opened: Opened) -> str:
        """Return the loader's words for a file that it cannot take."""
        if opened.verdict is FileVerdict.OTHER_CLASS:
            return f"{name}: wrong ELF class: ELFCLASS{32 if self._native.elf_class == 64 else 64}"
        if opened.verdict is FileVerdict.FATAL and not opened.errno:
            return f"{name}: {opened.problem}"
        number = opened.errno or errno.ENOENT
        what = opened.problem or "cannot open shared object file"
        return f"{name}: {what}: {os.strerror(number) if self._is_running else _words_at_start(number)}"


def _words_at_start(number: int) -> str:
    """Return the text of an errno as ld.so has it before libc is there: few are spelled out (`elf/dl-minimal.c`)."""
    return os.strerror(number) if number in _SPELLED_AT_START else f"Error {number}"
