"""The commands in the documents work as they stand there, page by page, in a fresh folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.commands import make_parser
from lumiimg.cli.main import without_program
from tests.shared.documents import PAGES, Block, Where, blocks, lumiimg_commands, parameters, run_page
from tests.shared.programs import needs
from tests.shared.shelf import make_shelf
from tests.shared.world import World, serve, wheels_of_layers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared.documents import Shelf

FOUND = [block for page in PAGES for block in blocks(page)]
RUN_HERE = [page for page in PAGES if any(block.where is Where.HERE for block in blocks(page))]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    wheels = wheels_of_layers()
    with serve(World(of_layers=wheels, wheels=wheels)) as world:
        yield make_shelf(tmp_path_factory.mktemp("shelf"), world)


@pytest.mark.documents
@pytest.mark.parametrize("page", parameters(RUN_HERE))
def test_the_commands_of_a_page_do_what_it_says(page: Path, shelf: Shelf, tmp_path: Path) -> None:
    needs("gcc", "mksquashfs")
    assert run_page(page, (Where.HERE,), shelf, tmp_path / "page")


@pytest.mark.parametrize("block", FOUND, ids=str)
def test_a_command_in_a_block_is_one_that_the_program_takes(block: Block) -> None:
    for command in block.commands:
        for words in lumiimg_commands(command):
            own, _ = without_program(words)
            make_parser().parse_args(own)


def test_what_is_not_run_says_why_and_is_the_smaller_part() -> None:
    silent = [block for block in FOUND if block.where is Where.NOWHERE]
    assert all(len(block.reason) > 10 for block in silent)
    assert len(silent) < len(FOUND) / 2
