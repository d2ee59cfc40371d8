"""The pure-Python implementation of docs/engine.md, for when the extension is missing or disabled."""

from kvfs.fallback.batch import batch_load, batch_lookup, batch_store
from kvfs.fallback.copy import copy_pages
from kvfs.fallback.engine import Engine
from kvfs.jobs import Completion

__all__ = ["Completion", "Engine", "batch_load", "batch_lookup", "batch_store", "copy_pages"]
