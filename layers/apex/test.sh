# The extension that a silent build without compiler leaves out is there, and torch is still ROCm's.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py apex amp_C
