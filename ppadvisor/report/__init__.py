"""How it looks: one file a format; the only place that rounds."""
