"""What a tool may say with what it returns, as data that is validated and never as text that is obeyed.

    shapes      what counts as a JSON object, array and text, and how a sentence speaks of what it found
    status      the seven words that an outcome may carry
    envelope    a value with effects and a status beside it; wire bytes as an adapter has them
    wire        the wire's own words for absences and ledgers, and wire bytes opened as far as one looks
    notes       every static sentence that travels with a result, published as data
    items       the lists that an absence and a ledger declare: how they are minted, read and served
    period      which time was asked about and which the data covers, and the one verdict on the two
    provenance  where a tool looked and when, and a known list among whose names it looked
    absence     "I looked here, and there is nothing"
    coverage    "my answer covers this and not that"
    search      a declared search, whose absences say by themselves where they looked
    served      what the model reads of them, where that is not what is on the record
    reading     the one funnel: what does this value declare, and what is served of it?
    evidence    what of a result may ground an answer
    answer      the block that travels with an answer
    rendering   a value becomes the text that the model reads, once
    streams     a value that is produced piece by piece: how a tool says so, and what the pieces come to

Everything here is pure: no I/O, no event loop, no clock. A recogniser answers ``None`` for a value that is not
its shape, never raises, and never changes a value; a mint refuses what it cannot say where it is called.
The rooms above import the modules themselves; this package re-exports nothing.
"""
