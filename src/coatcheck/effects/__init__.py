"""What becomes of what tools ask for: a pure state machine between the turns of a session.

A tool proposes, the host's own declarations decide, and every decision is on the record. No text of a result steers
anything by itself: the host's edges may read it, with predicates of the host's own.

    graph.py, instructions.py    what the host declares
    state.py                     what is remembered between two turns
    judgement.py                 the effects of one call: accepted, refused, superseded
    routing.py                   the edges that a result takes, and the model's own pick
    leases.py                    how long an instruction is delivered
    turn.py                      where the run goes next, and what the model is told there
    repeats.py                   the note on a call that was made before
"""
