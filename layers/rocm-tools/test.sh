# The tools are there; without a GPU they can only say what they are.
/opt/rocm/bin/rocm-smi --help >/dev/null
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("amdsmi") is None)'
