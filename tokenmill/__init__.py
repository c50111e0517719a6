"""tokenmill: shards of text become training rows for language models. The rooms of the house:

what lies on disk     shards (the bytes), files (that appear whole), tokenizer, foreign (other people's tokenizers)
preparing             origin, sources, formats, units, parquet, lines (text comes in), hub, stdlib (from elsewhere),
                      inventory, missing, make (what is to do, and doing it), workers, cluster (where), engines,
                      codepoints (what tokenizes, proven), progress
rows                  packing (lengths -> plan), rows (plan -> filled arrays), planned, nanochat (a split's rows),
                      stream (which come next), skipped (which do not), position (what a checkpoint knows of it)
batches               transfer (to the device), ahead (in a thread), ranks, kept (get_batch's loaders), documents
looking               show, trace (the terminal), report, page, rowsview, charts, words, templates/ (a page),
                      statistics, figures, specimen (what it says), verify (every byte), commands
other people's files  convert, layouts

prepare_data.py, data.py and config.py, one level up, are what is run, imported and set.
"""
