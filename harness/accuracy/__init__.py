"""Prove that answers stay right with each tier, cold and from disk; damaged chunks are the control."""
