"""The profile with which damage is tried for longer; see `mutation.py`."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("long")
