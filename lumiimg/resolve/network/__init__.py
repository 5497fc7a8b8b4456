"""Servers, asked in bounded answers: registries, package indexes, mirrors, a daemon. It knows no layer and no lock."""
