"""tokenmill: shards of text become training rows for language models (the map is in README.md)."""
