"""The demo: real sessions over real MCP servers, in every pool mode, side by side."""
