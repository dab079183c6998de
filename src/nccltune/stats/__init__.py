"""Numbers in, numbers out: intervals and what they allow to say. No files, no printing."""
