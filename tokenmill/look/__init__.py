"""Inspection: rows decoded, a report, statistics, and whether every byte is what was written.

Comes in: a token set. Goes out: lines in a terminal, one HTML page, a list of damage.

    list_sets       `tokenmill list`: the sets on this disk
    documents       TokenSet.documents: the documents of a split as a sequence
    show            `tokenmill show`: rows, batches, steps, documents; show_config: its command line
    steps           which rows a run had in a step, and where a document is; run_history: what a run did, leg by leg
    terminal        prints rows; metadata_table: a batch by the metadata of its documents
    checkpoint_files  finds the positions in a checkpoint
    source_places   where a document is in its source file
    mix             `tokenmill mix`: what a mixture takes from each source, and what a run took so far
    mixture_chart   the picture of both
    report          `tokenmill report`; report_page: the page, from charts, report_rows, report_text and templates/
    token_stats     statistics of a set; packing_stats: what each packing does; loss_stats: of a chat set's loss mask
    sample_rows     a few documents in all packings
    verify          `tokenmill verify`; verify_checks: its checks; bit_errors: finds a flipped bit

It must never change what it inspects, except for shards that you tell verify to remove.
"""
