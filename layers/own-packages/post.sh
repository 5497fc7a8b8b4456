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
mapfile -t commits < <(find "${WHEELS:-}" -name '*.tar' -type f 2>/dev/null | LC_ALL=C sort)
if [ ${#commits[@]} -eq 0 ]; then
    install_wheels
else
    # Projects at commits of git, NAME-VERSION.tar, are built with what the image and the wheels have; a wheel may require
    # one. They have no history, by which setuptools-scm would find the version.
    mapfile -t wheels < <(find "$WHEELS" -name '*.whl' -type f | LC_ALL=C sort)
    before=$(missing_requirements)
    [ ${#wheels[@]} -eq 0 ] || run_pip install --no-index --no-deps "${wheels[@]}"
    for commit in "${commits[@]}"; do
        version=${commit##*-}
        SETUPTOOLS_SCM_PRETEND_VERSION=${version%.tar} \
            run_pip install --no-index --no-deps --no-build-isolation "$commit" ||
            fail "${commit##*/} was not built: what its build needs beside Python goes into a layer of your own"
    done
    unmet=$(new_in "$before" "$(missing_requirements)")
    [ -z "$unmet" ] || fail "the requirements leave unmet: $unmet; name it beside them"
fi
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
