# Run by a shell of the image before the program starts. Like engines, it sources each script of the image in order, and
# sets the variables of APPTAINERENV_ right after that of the base. Source of the order: Apptainer 1.4.5,
# internal/pkg/util/fs/files/action_script.sh. options.py appends the functions that differ for each container:
# lumiimg_injected sets those variables, lumiimg_restored the user's own.

# Appends the usual folders that PATH lacks.
lumiimg_path() {
    for lumiimg_folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
        case ":${PATH-}:" in
        *":$lumiimg_folder:"*) ;;
        *) PATH=${PATH:+$PATH:}$lumiimg_folder ;;
        esac
    done
    unset lumiimg_folder
    export PATH
}

lumiimg_runtime() {
    if [ -n "${SING_USER_DEFINED_PREPEND_PATH-}" ]; then
        PATH=$SING_USER_DEFINED_PREPEND_PATH:$PATH
        unset SING_USER_DEFINED_PREPEND_PATH
    fi
    if [ -n "${SING_USER_DEFINED_APPEND_PATH-}" ]; then
        PATH=$PATH:$SING_USER_DEFINED_APPEND_PATH
        unset SING_USER_DEFINED_APPEND_PATH
    fi
    if [ -n "${SING_USER_DEFINED_PATH-}" ]; then
        PATH=$SING_USER_DEFINED_PATH
        unset SING_USER_DEFINED_PATH
    fi
    export PATH
}

# Exits like engines if the program does not exist.
lumiimg_require() {
    case $1 in
    */*) if [ -f "$1" ] && [ -x "$1" ]; then return; fi ;;
    *) if command -v -- "$1" >/dev/null; then return; fi ;;
    esac
    printf 'FATAL:   "%s" is not a program of the image\n' "$1" >&2
    exit 255
}

lumiimg_source() {
    if [ ! -d /.singularity.d/env ]; then # images from before Singularity 2.3
        if [ -f /environment ]; then
            # shellcheck disable=SC1091 # of the image
            . /environment
            lumiimg_path
        fi
        lumiimg_injected
        lumiimg_runtime
        return
    fi
    # shellcheck disable=SC1090 # of the image
    for lumiimg_script in $(lumiimg_sorted); do
        [ -f "$lumiimg_script" ] || continue
        case $lumiimg_script in
        */90-environment.sh)
            if [ -z "${PATH+set}" ]; then lumiimg_path; fi
            . "$lumiimg_script"
            ;;
        */10-docker2singularity.sh | */10-docker.sh)
            . "$lumiimg_script"
            lumiimg_path
            ;;
        */99-base.sh)
            . "$lumiimg_script"
            lumiimg_injected
            ;;
        */99-runtimevars.sh) lumiimg_runtime ;; # of the engine, even if the image has one
        *) . "$lumiimg_script" ;;
        esac
    done
    unset lumiimg_script
    [ -f /.singularity.d/env/99-runtimevars.sh ] || lumiimg_runtime
}
