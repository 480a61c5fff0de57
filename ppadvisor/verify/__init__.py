"""A plan run for real on torch's own pipeline engine. Needs torch (extra `torch`); only the command imports it."""
