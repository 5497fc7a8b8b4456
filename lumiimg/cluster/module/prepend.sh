
prepend() {
    case ":${@ENGINE@ENV_PREPEND_PATH-}:" in
        *":$1:"*) ;;
        *) export @ENGINE@ENV_PREPEND_PATH="$1${@ENGINE@ENV_PREPEND_PATH:+:$@ENGINE@ENV_PREPEND_PATH}" ;;
    esac
}
