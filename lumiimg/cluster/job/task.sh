#? In the container, once per task: its numbers, its variables, then the program
@SETTINGS@
exec "$@"
