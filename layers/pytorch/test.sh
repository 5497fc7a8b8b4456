# PyTorch is ROCm's and loads without a GPU; the pins that keep it so are there.
grep -q '^triton' /opt/lumiimg/constraints.txt || { echo "/opt/lumiimg/constraints.txt does not pin triton"; exit 1; }
grep -q '^torch==' /opt/lumiimg/constraints.txt || { echo "/opt/lumiimg/constraints.txt does not pin torch"; exit 1; }
/opt/venv/bin/python /opt/lumiimg/check_torch.py torchvision torchaudio
