"""What becomes of the effects that a tool declared: a pure state machine between the turns of a session.

A tool proposes, the host's own declarations decide, and every decision is on the record. Nothing here reads the
text of a result.
"""
