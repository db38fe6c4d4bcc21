"""Drafts for the likely outcomes of a verify pass under way, as `actors.drafters.ahead` makes them, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from actors.emulation.voice import Speaker, extend
from actors.messages import AheadPlan, Branch, Draft
from cluster.simulation.growing import Grown, grow, guesses
from cluster.simulation.walking import walk


@dataclass(frozen=True, slots=True)
class Sprout:
    """A branch before it has taken time."""

    node: int  # the outcome: the draft up to and with it is accepted,
    token: int  # and then this is the verifier's own
    path: list[int]  # tokens from the context to that token, included
    grown: Grown
    first_pass: int  # in which `token` is fed

    def rows(self, number: int) -> int:
        """Of this branch in the pass of that number."""
        level = number - self.first_pass
        if level == 0:
            return 1
        return self.grown.level_rows[level - 1] if 0 < level < len(self.grown.level_rows) else 0

    def after(self, passes: int, tier: int) -> Branch | None:
        """What is there of it when so many passes have ended; None: not a token."""
        levels = min(passes - self.first_pass, len(self.grown.level_rows))
        if levels < 1:
            return None
        tokens, parents = self.grown.tokens, self.grown.parents
        if parents is None:
            return Branch(self.node, self.token, Draft(np.array(tokens[:levels], np.int32), tier=tier))
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        kept = [node for node, depth in enumerate(depths) if depth < levels]
        names = {node: name for name, node in enumerate(kept)} | {-1: -1}
        return Branch(self.node, self.token, Draft(
            np.array([tokens[node] for node in kept], np.int32), tier=tier,
            parents=np.array([names[parents[node]] for node in kept], np.int32),
        ))


def sprouts(
    speaker: Speaker, author: Speaker, prefix: int, num_context: int, tokens: Sequence[int], parents: Sequence[int],
    plan: AheadPlan,
) -> list[Sprout]:
    """Branches for the likeliest outcomes of verifying a draft after the prefix of that hash, likeliest first.

    What may follow the draft's last token is known one pass later than the rest: only then is that token fed.
    Which outcomes are drafted for is the drafter's guess alone. But chains after an outcome that will not come true by
    `author`, the target's voice, get words without meaning: nobody will ever compare them, and making them up as
    `speaker` would takes most of a simulation's time.
    """
    paths: list[list[int]] = [[]]  # [num_nodes + 1], as below: entry i + 1 belongs to node i, entry 0 to the context
    prefixes = [prefix]
    following = [guesses(speaker, prefix, 0, 2)]
    reach = [1.0]
    children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
    for token, parent in zip(tokens, parents, strict=True):
        at = parent + 1
        children[at].append(token)
        reach.append(reach[at] * dict(following[at]).get(token, 0.0))
        prefixes.append(extend(prefixes[at], token))
        paths.append([*paths[at], token])
        following.append(guesses(speaker, prefixes[-1], len(paths[-1]), 2))
    last = len(tokens) - 1
    outcomes: list[tuple[float, int, int]] = []
    for node in range(-1, len(tokens)):
        at = node + 1
        others = [(token, chance) for token, chance in following[at] if token not in children[at] and chance > 0]
        outcomes += [(reach[at] * chance, node, token) for token, chance in others[: plan.num_guesses]]
    outcomes.sort(key=lambda outcome: -outcome[0])
    accepted = walk(author, prefix, tokens, parents)
    true_node = accepted[-1] if accepted else -1
    true_token = author.choose(prefixes[true_node + 1]).best
    found: list[Sprout] = []
    for _, node, token in outcomes[: plan.num_branches]:
        path = [*paths[node + 1], token]
        room = plan.max_total_tokens - 1 - num_context - len(path)  # the verifier adds a token of its own
        if room < 1:
            continue
        shape = replace(plan.shape, num_tokens=min(plan.shape.num_tokens, room))
        if shape.is_chain and (node, token) != (true_node, true_token):
            grown = Grown([0] * shape.num_tokens, None, [1] * shape.num_tokens)
        else:
            grown = grow(speaker, extend(prefixes[node + 1], token), shape)
        found.append(Sprout(node, token, path, grown, first_pass=int(node == last)))
    return found


def pass_rows(found: Sequence[Sprout], catch_up: int) -> list[int]:
    """Rows of each pass until all branches have their shape; the first one feeds `catch_up` rows besides."""
    count = max((sprout.first_pass + len(sprout.grown.level_rows) for sprout in found), default=1)
    rows = [sum(sprout.rows(number) for sprout in found) for number in range(count)]
    return [rows[0] + catch_up, *rows[1:]]
