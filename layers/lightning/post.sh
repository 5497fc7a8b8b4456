# Install Lightning; the torch of the image stays.
layer=lightning
# shellcheck source=layers/pytorch/python.sh
. "$LAYER_FILES/python.sh"

use_torch
if has_wheels; then
    install_wheels
    install_missing
else
    pip_install "lightning==$VERSION"
fi
finish_python
"$python" /opt/lumiimg/check_torch.py lightning
