"""Foundation of every room: errors, findings, redaction, typed TOML and JSON, files; independent of any domain."""
