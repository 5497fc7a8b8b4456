"""`lumiimg log`."""


def configure_parser(commands):
    pass
