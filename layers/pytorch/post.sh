# Install the wheels of torch and what belongs to it, and pin them for whatever comes after.
layer=pytorch
# shellcheck source=layers/pytorch/python.sh
. "$LAYER_FILES/python.sh"

use_venv
install_wheels
write_constraints
install_missing
finish_python
"$python" /opt/lumiimg/check_torch.py torchvision torchaudio
