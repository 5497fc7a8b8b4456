"""Writes docs/import.svg, and the table of docs/explanation/startup.md to standard output: `import torch` from three places.

python -m tools.bench_startup      as a user whose engine works; a few minutes

The torch is PyTorch's wheel for CPUs, of one version in all places, with Python 3.11 of Debian 12 on both sides.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lumiimg.cli.main import main as lumiimg
from lumiimg.engine.engine import find_engine
from tools.bench_build import Bench, torch_layer

PICTURE = Path(__file__).parents[1] / "docs" / "import.svg"
PYTHON = "python3.11"
COMPILE = "python3 -m compileall -q -j 0 /opt/site || true\n"
"""As pip does where it installs; some files of torch are templates, and no Python."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-", dir=os.environ.get("LUMIIMG_CACHE")) as name:
        folder = Path(name)
        bench = Bench(find_engine(os.environ), folder)
        bench.lumiimg("torch.sif", *torch_layer(bench, COMPILE))
        site = folder / "site-packages"
        for wheel in sorted((folder / "wheels").glob("*.whl")):
            subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
        venv = folder / "venv"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", venv], check=True)
        shutil.copytree(site, venv / "lib" / PYTHON / "site-packages", dirs_exist_ok=True)
        # the image keeps its packages in a folder of their own; on this machine no other folder may help
        os.environ |= {f"{bench.engine.prefix}ENV_PYTHONPATH": "/opt/site", "PYTHONNOUSERSITE": "1"}
        os.chdir(folder)
        sys.exit(
            lumiimg(
                ["bench", "import", "site-packages", "venv", "torch.sif", "--python", PYTHON, "--svg", str(PICTURE)]
            )
        )


if __name__ == "__main__":
    main()
