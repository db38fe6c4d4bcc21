"""How many tokens a target decodes by itself before it answers, when nobody drafts for it."""

from __future__ import annotations

MANY_REQUESTS = 8  # from so many on, what each answer costs beside the models adds up to a good part of a pass


class OpenRequests:
    """How many requests a coordinator runs now."""

    def __init__(self) -> None:
        self.num = 0


def run_tokens(most: int, num_requests: int, num_remaining: int) -> int:
    """Tokens to ask for in one call of a plain round: one where few requests run, so that each is seen at once.

    Where many do, a pass serves all of them and takes long, and so do their answers together.
    """
    return max(1, min(most, num_remaining)) if num_requests >= MANY_REQUESTS else 1
