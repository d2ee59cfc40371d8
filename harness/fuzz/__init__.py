"""Fuzz targets over everything that kvfs reads from disk or is configured with, and what runs them."""
