"""What the user wrote, read and checked: `mcpServers` files and `headstart.toml`.

Everything may import it; it imports only `errors` and `ids`. Only `cli` and app
factories read files and the environment through it.
"""
