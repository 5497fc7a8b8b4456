"""The options of the commands that show what is there, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.cli import arguments


def show(parser: argparse.ArgumentParser) -> None:
    """List bases, layers, recipes and sites, yours first, or show one: a base or a
    layer (arguments, releases, sources, what it requires, provides and sets), a
    recipe, a site (driver, fabric, partitions, cores, environment, advice), or how
    an image was built, by its own record. With --gpu: for which GPUs an image has
    code, as a table for an issue or a mail. `lumiimg list` is the same command.
    """
    what = "a base, layer, recipe or site, or an image, image.sif (default: list all bases, layers, recipes and sites)"
    parser.add_argument("name", metavar="NAME", nargs="?", help=what)
    parser.add_argument("--gpu", action="store_true", help="for an image, list for which GPUs each component has code")
    arguments.add_machine(parser, "with --gpu, mark the code that its GPU accepts")
    arguments.add_layers(parser)
    arguments.add_output_options(parser, quiet="")


def schema(parser: argparse.ArgumentParser) -> None:
    """Print the JSON Schema (2020-12) of a kind of output; without a name, list the
    kinds. Each schema is complete in itself. See docs/reference/json.md for
    tables.

    examples:
      lumiimg schema check > check.schema.json
      lumiimg check image.sif --json > check.json
      check-jsonschema --schemafile check.schema.json check.json
    """
    parser.add_argument("name", metavar="NAME", nargs="?", help="check, log, host, …")
    arguments.add_output_options(parser, quiet="")


def completion(parser: argparse.ArgumentParser) -> None:
    """Print the script by which a shell completes what you type.

    to enable it for every new shell, one line:
      bash:  echo 'eval "$(lumiimg completion bash)"' >> ~/.bashrc
      zsh:   echo 'eval "$(lumiimg completion zsh)"' >> ~/.zshrc    # after compinit
      fish:  lumiimg completion fish > ~/.config/fish/completions/lumiimg.fish

    It completes commands, options, their values, files that fit, and the names of
    bases, layers, recipes and sites, including yours. For bash and zsh the line
    above starts lumiimg once per new shell. To avoid that, write the output to a
    file and source the file; it stays valid when lumiimg is updated.
    """
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="one of bash, zsh, fish")


def draft(parser: argparse.ArgumentParser) -> None:
    """Read a Dockerfile as it would be built up to a stage, and list its base,
    arguments and steps, what the catalogue has already, and what a layer cannot
    carry over. With -o, write a draft of a layer. Nothing is run.

    examples:
      lumiimg draft Dockerfile.rocm
      lumiimg draft rocm.Dockerfile --arg GPU_ARCH=gfx942 -o layers/sgl-draft
      lumiimg show --layers layers sgl-draft
    """
    parser.add_argument("file", metavar="DOCKERFILE", type=Path, help="the file")
    parser.add_argument("--target", metavar="STAGE", help="a stage by its name or number (default: the last)")
    what = "argument to set: an ARG, as docker build --build-arg does (may be repeated)"
    arguments.add_repeated(parser, "--arg", "NAME=VALUE", what)
    arguments.add_output(parser, "the folder of the new layer; its name becomes the layer's", "DIR")
    arguments.add_output_options(parser)
