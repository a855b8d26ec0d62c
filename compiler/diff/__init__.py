"""`typed Graph, typed Graph -> Report`: what changed between two specs, told by the edits that caused it. `specs/DIFF.md` is its manual."""

from __future__ import annotations
