"""Sampling a corpus: conversations in the order of their indices, many at once, stored shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from actors.messages import Ids
from actors.sampling.noise import Purpose, stream
from actors.training.data.errors import BadData
from actors.training.data.filters import FEWEST_TOKENS, digest, is_question, loop_start
from actors.training.data.recipe import Plan, Recipe
from actors.training.data.shards import Text, known_digests, num_tokens, read_shard, shard_numbers, write_shard
from actors.training.data.turns import Message, Turns
from actors.training.data.writer import Writer

CONVERSATIONS_PER_SHARD = 64
_MOST_EMPTY_SHARDS = 4  # in a row: then the target has nothing new to say


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    num_tokens: int  # of stored texts
    num_texts: int
    num_shards: int
    num_written: int  # tokens that the engine wrote in this run, dropped ones included


@dataclass(slots=True, eq=False)
class _Conversation:
    """One in the making."""

    plan: Plan
    messages: list[Message]
    ids: list[Ids] = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)  # of each of `ids`
    turn: int = 0
    digest: int = 0


class Sampler:
    """Fills `directory` until it holds enough; goes on where an earlier run stopped, with the same result."""

    def __init__(
        self, writer: Writer, turns: Turns, recipe: Recipe, directory: Path,
        prompts: Sequence[list[Message]] = (), only_prompts: bool = False, shard_size: int = CONVERSATIONS_PER_SHARD,
    ) -> None:
        """`prompts`: of the user, answered first; the target's own follow, unless `only_prompts`.

        `directory` holds its description already.
        """
        self._writer = writer
        self._turns = turns
        self._recipe = recipe
        self._directory = directory
        self._prompts = prompts
        self._only_prompts = only_prompts
        self._shard_size = shard_size
        self._shards: dict[int, dict[int, Text | None]] = {}  # those not yet written: by number, index -> text
        done = shard_numbers(directory)
        if done != list(range(len(done))):
            raise BadData(f"{directory} lacks shard {min(set(range(len(done))) - set(done))}: sample into a new one")
        self._num_shards = len(done)
        self._next_index = len(done) * shard_size
        stored = [text for number in done for text in read_shard(directory, number)]
        self._num_tokens, self._num_texts = num_tokens(stored), len(stored)
        self._known = set(known_digests(directory))
        self._num_empty = 0

    @property
    def progress(self) -> Progress:
        """Of all runs together."""
        return Progress(self._num_tokens, self._num_texts, self._num_shards, self._writer.num_written)

    def run(
        self, wanted_tokens: int, on_progress: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Progress:
        """Write whole shards until they hold `wanted_tokens`, or `stop()` says so, or the prompts are used up.

        Conversations under way are dropped then: they are written again, the same, by the next run. Raises
        `BadData` when the target says nothing usable.
        """
        while self._num_tokens < wanted_tokens and not stop():
            while self._writer.num_active < self._writer.num_parallel and self._begin_next():
                pass
            if not self._writer.num_active:
                break
            self._writer.step()
            self._store(wanted_tokens)
            on_progress(self.progress)
        return self.progress

    def _begin_next(self) -> bool:
        """Start the next conversation; False if there is none."""
        index = self._next_index
        own = index - len(self._prompts)
        if own >= 0 and self._only_prompts:
            return False
        self._next_index += 1
        self._shards.setdefault(index // self._shard_size, {})
        plan = self._recipe.plan(index)
        if own < 0:
            self._ask(_Conversation(plan, list(self._prompts[index])))
        elif not self._turns.has_template:
            self._free(_Conversation(plan, []))
        else:
            self._question(_Conversation(plan, []), self._turns.before_question(plan.topic, plan.opening))
        return True

    # The turns of a conversation

    def _question(self, talk: _Conversation, prompt: Ids) -> None:
        def asked(ids: Ids) -> None:
            opening = talk.plan.opening if talk.turn == 0 else ""
            ended = int(ids[-1]) in self._writer.end_ids
            text = (opening + self._turns.text(ids)).strip()
            if not ended or not is_question(text) or loop_start(ids) is not None:
                self._end(talk)
                return
            talk.messages.append({"role": "user", "content": text})
            self._ask(talk)

        plan = talk.plan
        self._start(talk, prompt, self._recipe.max_question_tokens, plan.question_temperature, "question", asked)

    def _ask(self, talk: _Conversation) -> None:
        """Have the last message answered."""
        if talk.turn == 0:
            talk.digest = digest(talk.messages[-1]["content"])
            prompt = self._turns.before_answer(talk.messages)
            talk.ids, talk.answer = [prompt], [False]
        else:
            talk.ids.append(self._turns.after_question(talk.messages))
            talk.answer.append(False)

        def answered(ids: Ids) -> None:
            loop = loop_start(ids)
            kept = ids if loop is None else ids[:loop]
            if len(kept) >= FEWEST_TOKENS:
                talk.ids.append(kept)
                talk.answer.append(True)
            ended = loop is None and int(ids[-1]) in self._writer.end_ids
            talk.turn += 1
            if not ended or talk.turn >= talk.plan.num_turns or len(kept) < FEWEST_TOKENS:
                self._end(talk)
                return
            talk.messages.append({"role": "assistant", "content": self._turns.text(ids)})
            self._follow_up(talk, ids)

        limit = self._recipe.max_answer_tokens
        self._start(talk, np.concatenate(talk.ids), limit, talk.plan.answer_temperature, "answer", answered)

    def _follow_up(self, talk: _Conversation, answer: Ids) -> None:
        between = self._turns.next_question(talk.messages)
        if between is None:
            self._end(talk)
            return
        if len(between) and between[0] == answer[-1]:  # the end of the turn was written by the target itself
            between = between[1:]
        before = np.concatenate([*talk.ids, between])

        def asked(ids: Ids) -> None:
            text = self._turns.text(ids).strip()
            if int(ids[-1]) not in self._writer.end_ids or not is_question(text) or loop_start(ids) is not None:
                self._end(talk)
                return
            talk.ids += [between, ids[:-1]]
            talk.answer += [False, False]
            talk.messages.append({"role": "user", "content": text})
            self._ask(talk)

        self._start(
            talk, before, self._recipe.max_question_tokens, talk.plan.question_temperature, "question", asked
        )

    def _free(self, talk: _Conversation) -> None:
        """A text of a model without a chat template."""
        prompt = self._turns.before_question("", talk.plan.opening)
        talk.ids, talk.answer = [prompt], [False]

        def written(ids: Ids) -> None:
            loop = loop_start(ids)
            talk.ids.append(ids if loop is None else ids[:loop])
            talk.answer.append(True)
            talk.digest = digest(self._turns.text(ids))
            self._end(talk)

        self._start(talk, prompt, self._recipe.max_answer_tokens, talk.plan.question_temperature, "answer", written)

    def _start(
        self, talk: _Conversation, prompt: Ids, max_tokens: int, temperature: float, part: str,
        then: Callable[[Ids], None],
    ) -> None:
        if len(prompt) >= self._writer.max_context_tokens:
            self._end(talk)
            return
        noise = stream(talk.plan.seed, Purpose.DRAFT, talk.turn, 0 if part == "question" else 1)
        self._writer.start(prompt, max_tokens, temperature, int(noise.integers(2**62)), then)

    def _end(self, talk: _Conversation) -> None:
        shard = self._shards[talk.plan.index // self._shard_size]
        shard[talk.plan.index] = _finished(talk) if any(talk.answer) else None

    def _store(self, wanted_tokens: int) -> None:
        """Write the shards that are complete, in order: what a later one may hold depends on those before it.

        None beyond what is wanted: how many are complete by then hangs on how many texts are written at once.
        """
        while self._num_tokens < wanted_tokens:
            shard = self._shards.get(self._num_shards)
            if shard is None:
                return
            expected = self._shard_size
            if self._only_prompts:
                expected = min(expected, len(self._prompts) - self._num_shards * self._shard_size)
            if len(shard) < expected:
                return
            texts: list[Text] = []
            for index in sorted(shard):
                text = shard[index]
                if text is not None and text.digest not in self._known:
                    self._known.add(text.digest)
                    texts.append(text)
            self._num_empty = 0 if texts else self._num_empty + 1
            if self._num_empty >= _MOST_EMPTY_SHARDS:
                raise BadData(
                    f"{self._num_empty * self._shard_size} conversations in a row gave no usable text: this target "
                    "writes no questions by itself; give it prompts with --prompts"
                )
            write_shard(self._directory, self._num_shards, texts)
            del self._shards[self._num_shards]
            self._num_shards += 1
            self._num_tokens += num_tokens(texts)
            self._num_texts += len(texts)


def _finished(talk: _Conversation) -> Text:
    while talk.answer and not talk.answer[-1]:  # a question that was not answered
        talk.ids.pop()
        talk.answer.pop()
    marks = [np.full(len(ids), kind, np.uint8) for ids, kind in zip(talk.ids, talk.answer, strict=True)]
    return Text(
        np.concatenate(talk.ids).astype(np.int32), np.concatenate(marks), talk.plan.index, talk.plan.held_out,
        talk.plan.answer_temperature, talk.digest,
    )
