"""Inspection: rows decoded, a report, statistics, and whether every byte is what was written.

Comes in: a token set. Goes out: lines in a terminal, one HTML page, a list of damage.

    list_sets       `tokenmill list`: the sets on this disk
    documents       TokenSet.documents: the documents of a split as a sequence
    show            `tokenmill show`: rows, batches, steps, documents
    show_config     its command line; show_query: which rows it asks for; show_notes: what they depend on
    when_seen       when the model saw a document
    terminal        prints rows; metadata_table: a batch by the metadata of its documents
    checkpoint_files  finds the positions in a checkpoint; run_steps: which rows of a run were a step's
    trace           finds the documents of a step, and the steps of a document, by segment_rows
    source_places   where a document is in its source file
    row_counts      the number of rows of windows, counted once and cached
    mix             `tokenmill mix`: what a mixture takes from each source; run_history: what a run took so far
    mixture_chart   the picture of both
    report          `tokenmill report`; report_page: the page, from charts, report_rows, report_text and templates/
    token_stats     statistics of a set; packing_stats: what each packing does; loss_stats: of a chat set's loss mask
    bench           `tokenmill bench`: what a device waits for
    sample_rows     a few documents in all packings
    verify          `tokenmill verify`; verify_checks: its checks; bit_errors: finds a flipped bit

It must never change what it inspects, except for shards that you tell verify to remove.
"""
