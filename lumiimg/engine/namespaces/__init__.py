"""An engine of the kernel's own: containers from user namespaces, where no container engine is installed.

It takes the words and the variables of Apptainer that lumiimg uses, and starts a program as Apptainer 1.4 does: the
same mounts, the same environment scripts in the same order. It needs no program that is set-user-id but newuidmap, and
that only to be root with many ids.
"""

import sys
from pathlib import Path

import lumiimg

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from lumiimg.engine.namespaces.__main__ import main; main()"
PROGRAM = (sys.executable, "-I", "-c", _START, str(Path(lumiimg.__file__).parents[1]))
"""What starts it, without modules of the current folder or of the user."""
