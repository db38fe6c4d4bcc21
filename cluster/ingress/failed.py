"""The exception that leaves the ingress, in a module of its own, without imports.

Serve's proxy unpickles it, and so imports its module: PyTorch and transformers, which the rest of the
ingress needs, would stop every stream of that proxy for seconds at the first refused request.
"""

from __future__ import annotations


class RequestFailed(Exception):
    """Ends a call whose status is already set on its context; its text is that status."""
