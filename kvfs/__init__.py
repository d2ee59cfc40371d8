"""kvfs: a directory as a fast, trustworthy tier of KV cache for vLLM."""
