"""Inspection: rows decoded, a report, and whether every byte is what was written.

Comes in: a token set. Goes out: lines in a terminal, one HTML page, a list of damage.

    list_sets       `tokenmill list`: the sets on this disk
    documents       TokenSet.documents: the documents of a split as a sequence
    show            `tokenmill show`: rows, batches, steps, documents
    steps           which rows a run had in a step, and where a document is
    terminal        prints rows
    checkpoint_files  finds the positions in a checkpoint
    source_places   where a document is in its source file, and what is known of it
    mix             `tokenmill mix`: what a mixture takes from each source, and what a run took so far
    report          `tokenmill report`; report_page: the page, from report_rows, report_text and templates/
    lengths         of a set's documents; text_sample: of text that was not prepared
    packing_stats   what each packing does to lengths; loss_stats: what is in the loss of a chat set
    sample_rows     a few documents in all packings
    verify          `tokenmill verify`; verify_checks: its checks

It must never change what it inspects.
"""
