"""Sphinx: the site made of these pages. `make docs` builds it, with warnings as errors and nothing fetched."""

project = "lumiimg"
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
html_title = "lumiimg"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
