"""What people look at: rows decoded, a report, figures, and whether every byte is what was written.

Comes in: a token set. Goes out: lines in a terminal, one HTML page, a list of what is damaged.

    show          `tokenmill show`: rows, batches, steps, documents; asked: its settings; show_mixture: of a mixture
    drawing       how they are drawn
    trace         from a step to its documents, and forth; mixed_trace: of a mixture
    origins       where a document is from, in its source file
    counts        rows of windows, counted once and kept
    mix           `tokenmill mix`: what a mixture will give of each source; stages: its picture
    report        `tokenmill report`: page puts together charts, rowsview and words; templates/ has its HTML
    statistics    what is counted in a set; figures: what each packing does; specimen: a few documents in all packings
    verify        `tokenmill verify`; problems: what can be wrong; flipped: which bit is

It must never change what it looks at, but for shards that verify is told to take out.
"""
