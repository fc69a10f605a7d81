"""Files of strangers to pixels, samples and texts, for killable children."""
