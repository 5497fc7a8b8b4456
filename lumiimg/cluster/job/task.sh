#? In the container, each task: its numbers, its variables, then the program
@SETTINGS@
exec "$@"
