# Install the wheels of the lock: the packages that the user named, and what they require beside what is there.
layer=own-packages
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

python=$(find_python)
list_distributions >before.txt
if grep -q '^torch==' before.txt; then
    use_torch
else
    use_environment
    list_distributions >before.txt
fi
install_wheels
list_distributions >after.txt
# The lock holds what it knows of. An environment's own tools are newer then, and what is replaced on purpose; nothing
# else may be.
others="pip|setuptools|wheel${REPLACED:+|${REPLACED// /|}}"
lost=$(LC_ALL=C comm -23 before.txt after.txt | grep -vE "^($others)==" || true)
[ -z "$lost" ] || fail "these of the image were replaced, as the lock did not know of them: $(tr '\n' ' ' <<<"$lost")"
mkdir -p "${constraints%/*}"
LC_ALL=C comm -13 before.txt after.txt >"${constraints%/*}/own-packages.txt"
chmod 644 "${constraints%/*}/own-packages.txt"
finish_python
