"""A whole image: for every ELF file in it, the loader model and the real ld.so in the container agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from tests.shared.elf_oracles import assert_facts_of_pyelftools
from tests.shared.image_loader import assert_all_as_the_loader, elf_files

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/perl:;/lib64/::/nowhere:$ORIGIN"},
    {"LD_PRELOAD": "libm.so.6:libnowhere.so /usr/lib/none.so libgcc_s.so.1"},
)
_ENOUGH = 1000


@pytest.mark.parametrize("environment", _ENVIRONMENTS, ids=["plain", "library-path", "preload"])
def test_every_file_of_an_image(engine: Engine, demo: Path, environment: dict[str, str]) -> None:
    assert_all_as_the_loader(engine, demo, environment, _ENOUGH // len(_ENVIRONMENTS))


def test_facts_of_every_file_of_an_image_are_those_of_pyelftools(demo: Path) -> None:
    with open_image(demo) as image:
        files = elf_files(image.root)
        assert len(files) * 2 > _ENOUGH
        for path in files:
            content = image.root.read_bytes(path, 1 << 30)
            if len(content) < 8 << 20:  # the peer takes minutes for the symbols of the largest
                assert_facts_of_pyelftools(content)
