"""With an image, the shared file system sees a few opens for any import; with a folder, at least one per module."""

from __future__ import annotations

import subprocess
import venv
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import built, lumiimg, write_layer
from tests.shared.programs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

MODULES = 500
# in the layer, and on this machine
MAKE = f"""\
mkdir -p "$site/many"
for number in $(seq {MODULES}); do
    echo 'x = 1' >"$site/many/m$number.py"
    echo "from . import m$number" >>"$site/many/__init__.py"
done
python3 -m compileall -q "$site"
"""


@pytest.fixture(scope="module")
def image(images: Path) -> Path:
    """debian-13, whose Python finds the package through PYTHONPATH."""
    layers = write_layer(images / "startup-layers/many", f"site=/opt/site\n{MAKE}")
    return built(images / "many.sif", "--layers", layers, "--base", "debian-13", "--add", "many")


def measured(engine: Engine, place: Path, module: str) -> dict[str, Any]:
    env = {f"{engine.prefix}ENV_PYTHONPATH": "/opt/site", "PYTHONNOUSERSITE": "1"}
    result = lumiimg("bench", "import", place, "--module", module, "--json", env=env)
    assert result.code == 0, result.err
    (data,) = result.data["places"]
    return dict(data)


def test_an_image_is_one_file_to_the_shared_file_system(engine: Engine, image: Path, tmp_path: Path) -> None:
    needs("strace")
    venv.create(place := tmp_path / "venv", symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    subprocess.run(["sh", "-euc", f"site=$1\n{MAKE}", "sh", site], check=True)
    folder, many, few = (measured(engine, *what) for what in ((place, "many"), (image, "many"), (image, "json")))
    # the program does the same in both
    assert folder["program"]["opens"] > MODULES
    assert many["program"]["opens"] > MODULES
    # but files below the folder are opened there, and files in the image are not
    assert folder["shared"]["opens"] > MODULES
    assert many["shared"]["opens"] == few["shared"]["opens"] < 10
    assert many["shared"]["metadata"] == few["shared"]["metadata"] < 80
