"""Checkpoints made elsewhere: what a folder's config.json changes in the spec of its family, in memory and as text."""
