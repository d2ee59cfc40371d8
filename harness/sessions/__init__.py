"""Helpers of noxfile.py; nothing is installed when they run, so they import the standard library alone."""
