"""Commands in the documents that need an engine or Slurm are run with real ones, along with the rest of their page."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lumiimg.catalog.settings import default_cache
from tests.shared.doc_files import make_doc_files
from tests.shared.documents import PAGES, Where, blocks, parameters, run_page
from tests.shared.world import World, serve, wheels_of_layers

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

WITH_MORE = [page for page in PAGES if any(block.where in {Where.ENGINE, Where.SLURM} for block in blocks(page))]


@pytest.mark.parametrize("page", parameters(WITH_MORE))
def test_the_commands_of_a_page_do_what_it_says(
    page: Path, slurm: dict[str, str], demo: Path, with_plugin: Path, tmp_path: Path
) -> None:
    wheels = wheels_of_layers()
    kept = {"SLURM_CONF": slurm["SLURM_CONF"], "LUMIIMG_CACHE": str(default_cache(os.environ))}
    with serve(World(of_layers=wheels, wheels=wheels)) as world:
        doc_files = make_doc_files(tmp_path, world, {"demo": demo, "with-plugin": with_plugin})
        assert run_page(page, (Where.HERE, Where.ENGINE, Where.SLURM), doc_files, tmp_path / "page", kept)
