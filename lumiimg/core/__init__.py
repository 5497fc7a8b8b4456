"""What every room builds on: errors, findings, redaction, TOML and JSON as types, files; it knows no domain."""
