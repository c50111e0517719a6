"""Inspection: rows decoded, a report, and whether every byte is what was written.

Comes in: a token set. Goes out: lines in a terminal, one HTML page, a list of damage.

    list_sets       `tokenmill list`: the sets on this disk
    documents       Documents: a split's documents as a sequence, and where each is in its file
    show            `tokenmill show`: rows, batches, steps; show_document: one document
    steps           which rows a run had in a step; rows_with: those that hold a document
    terminal        prints rows; metadata_table: what is known of their documents
    checkpoint_files  finds the positions in a checkpoint
    mix             `tokenmill mix`: what a mixture takes from each source, or has taken
    report          `tokenmill report`
    report_page     its page, from charts, report_rows, report_text and templates/
    set_statistics  lengths of a set's documents, and what is in the loss of chats
    packing_stats   what each packing does to lengths
    sample_rows     a few documents in all packings
    notebook        report and show in Python, which a notebook draws
    verify          `tokenmill verify`; set_checks: what it checks

It must never change what it inspects.
"""
