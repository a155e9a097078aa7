"""Clients of OpenAI's and Anthropic's interfaces, run against `spac serve`: `python -m tools.clients`."""
