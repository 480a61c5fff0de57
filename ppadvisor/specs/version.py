"""The two versions that every JSON document carries (design: the contract with the outside)."""

FORMAT_VERSION = "1.1"
"""Of the documents' form. Minor: fields were added. Major: a field changed or went."""
MODEL_VERSION = "2026.11-22"
"""Of the numbers: changes whenever any predicted number can change; a golden test holds it to that."""
