"""Decides, and never sees a tensor: scheduler, page accounting, the loop, and the way to its clients."""
