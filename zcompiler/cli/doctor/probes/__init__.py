"""The probes: each looks at one thing and changes nothing that lasts. What it asks is handed to it by tests."""
