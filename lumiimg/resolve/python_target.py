"""Which Python distributions are for an image: wheels for its Python and C library, and none for NVIDIA's GPUs.

The image's Python is not the one that runs lumiimg.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from lumiimg.catalog.needs import version_of
from lumiimg.core.errors import BadInputError
from lumiimg.core.toml import package_toml

TRITON = "triton"
ROCM_TRITONS = ("pytorch-triton-rocm", "triton-rocm")
"""Names of PyTorch's triton for ROCm: up to 2.9, and from then on. Source: METADATA of torch at its own index."""
OF_TORCH = frozenset({"torch", "torchvision", "torchaudio", TRITON, *ROCM_TRITONS})
"""Fixed at the image's versions, so it does not matter where else a project gets them from."""
_TAGS_LIMIT = 256

# PEP 600; before it PEP 513, 571 and 599 gave these glibc versions names of their own.
_OLDEST_GLIBC_MINOR = 5
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

# Only major.minor of the image's Python is known. Its patch release is more often a late one than the first:
# `>=3.9.1` is meant to accept 3.9, and `<=3.11` does exclude 3.11.7.
_PATCH = 99

# The glibc versions for which uv has a platform. Source: uv, TargetTriple in crates/uv-configuration.
_UV_GLIBC_MINORS = (17, 28, *range(31, 41))


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """The image's Python: CPython 3 with the GIL, on glibc 2 and x86_64. Raises BadInputError for any other."""

    version: tuple[int, int]
    glibc: tuple[int, int]

    def __post_init__(self) -> None:
        if self.version[0] != 3 or self.glibc[0] != 2:
            raise BadInputError(f"wheels are chosen for CPython 3 and glibc 2 only, not for {self}")

    @classmethod
    def from_versions(cls, versions: Mapping[str, str]) -> Self | None:
        """Return the target for an image; None if its Python or its C library is not known."""
        python, glibc = (version_of(versions.get(name)) for name in ("python", "glibc"))
        if python is None or glibc is None or min(len(python.release), len(glibc.release)) < 2:
            return None
        return cls((python.major, python.minor), (glibc.major, glibc.minor))

    def __str__(self) -> str:
        """Return it for messages: `Python 3.12 with glibc 2.39`."""
        return f"Python {self.python} with glibc {self.glibc[0]}.{self.glibc[1]}"

    @property
    def python(self) -> str:
        """Version of the Python: `3.12`."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def full_version(self) -> str:
        """Version with a patch release: see `_PATCH`."""
        return full_version(self.version)

    @property
    def platform(self) -> str:
        """Its name in uv, with the newest glibc that uv knows and the image has. Raises BadInputError without one."""
        minor = max((known for known in _UV_GLIBC_MINORS if known <= self.glibc[1]), default=None)
        if minor is None:
            raise BadInputError(f"wheels are chosen for glibc 2.{_UV_GLIBC_MINORS[0]} or newer, not for {self}")
        return f"x86_64-manylinux_2_{minor}"

    def tags(self) -> tuple[Tag, ...]:
        """Return the tags of wheels that it can install, the most specific first.

        As `packaging.tags.sys_tags()` in the image would, with one difference: `linux_x86_64` comes after the manylinux
        tags, because it promises no glibc. Source: PEP 425, 600.
        """
        interpreter = f"cp{self.version[0]}{self.version[1]}"
        # `m`: built with pymalloc, which makes no difference from 3.8 on (bpo-36707)
        abi = f"{interpreter}m" if self.version < (3, 8) else interpreter
        platforms = tuple(self._platforms())
        return (
            *cpython_tags(self.version, [abi], platforms),
            *compatible_tags(self.version, interpreter, platforms),
        )

    def rank(self, filename: str) -> int | None:
        """Return the position of a wheel's best tag in `tags()`; None if the wheel does not fit. Raises ValueError."""
        # Reading a compressed tag set expands it (PEP 425): 255 characters can stand for 40,000 tags.
        if math.prod(part.count(".") + 1 for part in filename.split("-")[-3:]) > _TAGS_LIMIT:
            raise ValueError(f"{filename[:200]} has more than {_TAGS_LIMIT} tags")
        ranks = _ranks(self)
        return min((ranks[tag] for tag in parse_wheel_filename(filename)[3] if tag in ranks), default=None)

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc[1], _OLDEST_GLIBC_MINOR - 1, -1):
            yield f"manylinux_2_{minor}_x86_64"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_x86_64"
        yield "linux_x86_64"


def full_version(minor: tuple[int, int]) -> str:
    """Return the version of a Python that is compared with bounds: see `_PATCH`."""
    return f"{minor[0]}.{minor[1]}.{_PATCH}"


@lru_cache(8)
def _ranks(target: PythonTarget) -> Mapping[Tag, int]:
    """Return the position of each tag of a target."""
    return {tag: rank for rank, tag in enumerate(target.tags())}


# -- CUDA packages, by name: beside ROCm they mean that a wrong wheel was selected --


@cache
def _facts() -> dict[str, Any]:
    return package_toml("lumiimg.resolve", "cuda.toml")


@cache
def _names(*, of_index: bool) -> re.Pattern[str]:
    return re.compile("|".join([*_facts()["names"], *(_facts()["of_index"] if of_index else ())]))


def is_of_cuda(name: str, *, of_index: bool = False) -> bool:
    """Return whether a project is CUDA's, by its normalized name (PEP 503); `of_index`: in the general index."""
    return _names(of_index=of_index).fullmatch(name) is not None


def instead_of(name: str) -> str | None:
    """Return the project that does the same without CUDA; None if none is known."""
    found: dict[str, str] = _facts()["instead"]
    return found.get(name)
