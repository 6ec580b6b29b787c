"""The async shell: it composes the chain, runs tools, and keeps the session. It holds no rules of its own."""
