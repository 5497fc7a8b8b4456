"""Why an attempt fails, in the words of the loader and with the numbers of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.versions import numbers_of
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, PRIVATE
from lumiimg.host.manifest import Loaded, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.elf.objects import LoadedObject, MissingLibrary, MissingVersion
    from lumiimg.host.bind_trial import BindPlan, BindTrial


class BindRefusedError(Exception):
    """An attempt that cannot be mended; caught by the solver, which tries the next."""

    def __init__(self, refusal: Refusal, loaded: tuple[Loaded, ...] = ()) -> None:
        self.refusal = refusal
        self.loaded = loaded
        super().__init__(str(refusal))


def why_not(trial: BindTrial) -> Refusal | None:
    """Return what keeps the process of an attempt from the fabric; None where nothing does."""
    if trial.outcome.missing:
        return missing(trial, trial.outcome.missing[0])
    if not trial.loads:
        return cannot_load(trial)
    return None if trial.provider else no_provider(trial)


def missing(trial: BindTrial, lacking: MissingLibrary) -> Refusal:
    """Return the refusal of a library that is on neither side."""
    have = "neither the image nor the host's closure has it" if trial.plan.of_host else "the image has none"
    if lacking.name in trial.plan.binds:
        have = "the host's is for another kind of machine"
    words = next((error for error in trial.outcome.errors if lacking.name in error), lacking.name)
    return _refusal(trial, lacking.name, lacking.name, have, lacking.chain[:-1] or lacking.chain, words)


def too_old(trial: BindTrial, version: MissingVersion) -> Refusal:
    """Return the refusal of a library that lacks a version which another one needs."""
    provider, requirer = trial.process.find(version.provider), trial.process.find(version.required_by)
    stem = version.version.rpartition("_")[0] + "_"
    defined = provider.facts.version_definitions if provider else ()
    newest = max((name for name in defined if name.startswith(stem)), key=numbers_of, default=None)
    of_host = trial.host_path(version.provider)
    whose = f"the host's {of_host}" if of_host else f"the image's {version.provider}"
    have = f"{whose} has {f'up to {newest}' if newest else 'no version of that name'}"
    need = f"{version.version} of {name_of(version.provider, provider)}"
    chain = requirer.chain if requirer else (version.required_by,)
    return _refusal(trial, version.required_by, need, have, chain, str(version))


def too_many(trial: BindTrial, rounds: int) -> Refusal:
    """Return the refusal of a host whose libraries need each other in more rounds than any real ones."""
    attempt, have = trial.plan.attempt, f"after {rounds} rounds of adding what is missing there is still more"
    return _refusal(trial, attempt, "a closure that ends", have, (attempt,), trial.outcome.errors[0])


def cannot_load(trial: BindTrial) -> Refusal:
    """Return the refusal of anything else: the first version that is lacking, or the loader's first words."""
    if trial.outcome.missing_versions:
        return too_old(trial, trial.outcome.missing_versions[0])
    words = trial.outcome.errors[0] if trial.outcome.errors else "nothing is loaded"
    library = words.partition(":")[0]
    found = trial.process.find(library)
    chain = found.chain if found else (library,)
    return _refusal(trial, library, "a file that ld.so takes", f"it does not take {library}", chain, words)


def no_provider(trial: BindTrial) -> Refusal:
    """Return the refusal of a libfabric that loads, and knows nothing of Slingshot."""
    libfabric, opened = trial.process.find(LIBFABRIC), trial.outcome.root
    whose = libfabric.path if libfabric else (opened.path if opened else "the plugin")
    have = f"{whose} was built without it" if libfabric else f"{whose} does not use libfabric"
    chain = libfabric.chain if libfabric else (whose,)
    words = f"{whose} does not load {LIBCXI}, and no provider that does is beside it"
    return _refusal(trial, whose, "the cxi provider", have, chain, words)


def passed_over(trial: BindTrial) -> Refusal:
    """Return the refusal of a bind that the process passes over: a DT_RPATH comes before LD_LIBRARY_PATH."""
    libfabric = trial.process.find(LIBFABRIC)
    path = libfabric.path if libfabric else "another one"
    rule = f" by {libfabric.found_by.value}" if libfabric else ""
    chain = libfabric.chain if libfabric else ()
    words = f"{path} is found{rule}, which comes before LD_LIBRARY_PATH"
    return _refusal(trial, path, "the host's libfabric", f"the process takes {path} instead", chain, words)


def no_target(plan: BindPlan, error: OSError) -> Refusal:
    """Return the refusal of an image in which the private folder cannot be made."""
    have, words = f"in this image that cannot be: {error.strerror}", f"{PRIVATE}: {error.strerror}"
    return Refusal(plan.attempt, PRIVATE, f"the folder {PRIVATE}", have, (PRIVATE,), words, plan.of_host)


def name_of(path: str, loaded: LoadedObject | None) -> str:
    """Return the name by which a library is needed: its soname, else its file's."""
    return (loaded.facts.soname if loaded else None) or path.rpartition("/")[2]


def _refusal(trial: BindTrial, library: str, need: str, have: str, chain: Sequence[str], words: str) -> Refusal:
    bound = trial.plan.binds
    marked = tuple(f"{name} (host)" if name in bound else name for name in chain)
    of_host = library in bound or any(name in bound for name in chain)
    return Refusal(trial.plan.attempt, library, need, have, marked, words, of_host)
