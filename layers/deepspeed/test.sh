# It loads without a GPU, and torch is still ROCm's.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
"$python" /opt/lumiimg/check_torch.py deepspeed
# hostname -I names the wrong network interface on LUMI.
file=$("$python" -c 'import deepspeed.comm.comm as comm; print(comm.__file__)' | tail -n 1)
if grep -n 'hostname -I' "$file"; then exit 1; fi
