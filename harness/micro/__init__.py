"""The micro benchmark: chunks to disk and back without a model, beside vLLM's tier and the disk's limit."""
