"""What a tool may say with what it returns, as data that is validated and never as text that is obeyed.

    shapes      what counts as a JSON object, array and text, and how a sentence speaks of what it found
    status      the seven words that an outcome may carry
    envelope    a value with effects and a status beside it; wire bytes as an adapter has them
    absence     "I looked here, and there is nothing"
    coverage    "my answer covers this and not that"
    reading     the one funnel: what does this value declare?
    items       the lists that an absence and a ledger declare, and their refusals
    notes       every static sentence that travels with a result, published as data
    rendering   a value becomes the text that the model reads, once

Everything here is pure: no I/O, no event loop, no clock. A recogniser answers ``None`` for a value that is not
its shape, never raises, and never changes a value; a mint refuses what it cannot say where it is called.
The rooms above import the modules themselves; this package re-exports nothing.
"""
