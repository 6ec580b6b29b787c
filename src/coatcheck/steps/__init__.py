"""The law: four steps around the tool, each a pure decision and a thin middleware that acts on it.

    truncation( placement( governance( ceiling( tool ) ) ) )

The alphabetical order of the modules happens to be the precedence. No step imports another.
"""
