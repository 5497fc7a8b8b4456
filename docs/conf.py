"""Sphinx: the site made of these pages. `make docs` builds it, with warnings as errors and nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.report.json_output import KINDS
from lumiimg.report.schema import schema_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "lumiimg"
release = __version__
author = "The lumiimg authors"
project_copyright = "the lumiimg authors, Apache-2.0"

extensions = ["myst_parser"]
exclude_patterns = ["_build", "man", "decisions/template.md"]
nitpicky = True
smartquotes = False  # `--base` stays what is typed

myst_heading_anchors = 3
myst_links_external_new_tab = False
highlight_language = "none"  # a block without a language is what a program printed

html_theme = "furo"
html_title = f"lumiimg {__version__}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = [("pages.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def write_schemas(app: Sphinx, _: Exception | None) -> None:
    """Put the JSON Schemas beside the page that describes them."""
    folder = Path(app.outdir, "reference", "schemas")
    folder.mkdir(exist_ok=True)
    for name in KINDS:
        (folder / f"{name}.json").write_text(json.dumps(schema_of(name), indent=2))


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write_schemas)
