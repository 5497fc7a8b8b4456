# Install the three in the releases that belong together; the torch of the image stays.
layer=transformers
# shellcheck source=layers/pytorch/python.sh
. "$LAYER_FILES/python.sh"

use_torch
if has_wheels; then
    install_wheels
    install_missing
else
    pip_install "transformers==$VERSION" "accelerate==$ACCELERATE" "peft==$PEFT"
fi
finish_python
"$python" /opt/lumiimg/check_torch.py transformers accelerate peft
