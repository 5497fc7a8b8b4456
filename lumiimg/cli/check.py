"""`lumiimg check`."""


def configure_parser(commands):
    pass
