
# -- packages of the user's own are in a Python environment that is bound, whose programs are called by their paths --
if [ "$kind" = pip ]; then
    case " $* " in
        *" install "* | *" uninstall "*)
            fail "the environment is read-only: lumiimg venv makes another, for which the module is made again" 1
            ;;
    esac
    program=$python
    set -- -m pip "$@"
fi
