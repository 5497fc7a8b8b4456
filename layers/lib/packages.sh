# shellcheck shell=bash
# Packages that a build needs and an image does not: added by apt, taken away again when the build is done.
#
#   add_packages NAME...            install what is named; the first call notes what was there before
#   keep_packages NAME...           the same for what the image needs at run time, too
#   remove_packages KEEP_FILE...    remove what was added, except what is kept and the libraries that these ELF files load
#
# The working directory must be the layer's own at the first call: the notes are kept there.

packages_notes=""
packages_kept=()

# In a user namespace that maps one user only, apt cannot become its user _apt.
apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -qq "$@"
}

list_packages() {
    dpkg-query -W -f '${db:Status-Abbrev} ${Package}:${Architecture}\n' | sed -n 's/^.i. *//p' | LC_ALL=C sort
}

add_packages() {
    [ $# -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "this image has no apt-get; install these (Debian's names) in a layer before: $*" >&2
        return 1
    fi
    if [ -z "$packages_notes" ]; then
        packages_notes=$PWD/packages
        list_packages >"$packages_notes.before"
        apt_get update
    fi
    echo "adding for the build: $*"
    apt_get install -y --no-install-recommends "$@" >/dev/null
}

keep_packages() {
    add_packages "$@"
    packages_kept+=("$@")
}

# The packages that own the libraries which the loader finds for these files. dpkg knows a file by the name in its package,
# which may be /lib/... or /usr/lib/... where /lib is a link.
owners_of_libraries() {
    local library name
    ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | LC_ALL=C sort -u | while read -r library; do
        for name in "$library" "$(readlink -f "$library")" "${library#/usr}" "/usr$library"; do
            { dpkg-query -S "$name" 2>/dev/null || true; } | sed -n 's/: \/.*//p' | tr -d ' ' | tr , '\n'
        done
    done | LC_ALL=C sort -u
}

remove_packages() {
    local added keep garbage
    [ -n "$packages_notes" ] || return 0
    list_packages >"$packages_notes.after"
    LC_ALL=C comm -13 "$packages_notes.before" "$packages_notes.after" >"$packages_notes.added"
    mapfile -t added <"$packages_notes.added"
    if [ ${#added[@]} -gt 0 ]; then
        keep=("${packages_kept[@]}")
        if [ $# -gt 0 ]; then
            owners_of_libraries "$@" | sed 's/:.*//' >"$packages_notes.owners"
            mapfile -t -O ${#keep[@]} keep < <(sed 's/:.*//' "$packages_notes.added" | grep -Fx -f "$packages_notes.owners" || true)
        fi
        # apt itself says which of the added ones nothing needs any more, so what stays is complete.
        apt-mark auto "${added[@]}" >/dev/null
        [ ${#keep[@]} -eq 0 ] || apt-mark manual "${keep[@]}" >/dev/null
        apt-get -s -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false autoremove |
            sed -n 's/^Remv \([^ ]*\).*/\1/p' | sed 's/:.*//' | LC_ALL=C sort -u >"$packages_notes.unneeded"
        mapfile -t garbage < <(sed 's/:.*//' "$packages_notes.added" | grep -Fx -f "$packages_notes.unneeded" || true)
        [ ${#garbage[@]} -eq 0 ] || apt_get purge -y "${garbage[@]}" >/dev/null
        echo "removed after the build: ${#garbage[@]} of ${#added[@]} added packages; kept for run time: ${keep[*]:-none}"
    fi
    apt-get clean
    rm -rf /var/lib/apt/lists/*
}
